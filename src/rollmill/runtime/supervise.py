"""Supervision: a worker that dies, hangs or grows too large is replaced by one that continues where its unroll began.

The journal has the resume point of every actor after its last unroll, and all randomness is keyed by use: the
new worker makes, bit for bit, the unroll that the old one would have made. What to do is decided in `teams.py`; here
are the processes: starting them, killing them, and what they report.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from rollmill.errors import WorkerFailed
from rollmill.events import ComponentFailed, Event, Said, WorkerReplaced
from rollmill.launch.guardian import Guardian
from rollmill.launch.json_lines import Lines
from rollmill.launch.proc import is_alive, kill_group, resident_bytes
from rollmill.launch.process import usable_cores
from rollmill.launch.pulse import LOOK_SECONDS
from rollmill.learners.learner import Learner
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.forkserver import Forkserver, ForkserverPlan
from rollmill.runtime.graph import End, Graph
from rollmill.runtime.teams import Action, Fault, GiveUp, Kill, Replaced, Team, TeamStep
from rollmill.runtime.vitals import Vitals
from rollmill.runtime.wiring import SharedWiring
from rollmill.runtime.worker import WorkerPlan
from rollmill.transport.shared import SharedPorts
from rollmill.types import ResumePoint

FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # exit codes that say nothing about the worker itself


class Supervisor:
    """Starts the workers of a graph, watches them, and replaces them."""

    def __init__(self, graph: Graph, config: RuntimeConfig, wiring: SharedWiring, logs: Path | None) -> None:
        self._graph, self._config, self._wiring, self._logs = graph, config, wiring, logs
        self.places = tuple(place for place in graph.places if place != "main")
        self._teams = list(_teams(graph, self.places, config))
        self._team_of = {place: team for team in self._teams for place in team.places}
        self._said = {place: Lines() for place in self.places}
        self._reports = Lines()
        self._vitals = Vitals(self.places, config)
        self._life_read, self._life = os.pipe()
        self._forkserver: Forkserver | None = None
        self._guardian = Guardian()
        self._pids: dict[str, int] = {}
        self._busy: Mapping[End, tuple[int, ...]] = {}  # slots of dead workers that the learner still reads
        self._looked = monotonic()
        self._poll = select.poll()
        for lines in (self._reports, *self._said.values()):
            self._poll.register(lines.read, select.POLLIN)
        self._learner: Learner

    @property
    def starting(self) -> list[str]:
        """The places that are not ready."""
        return sorted(place for team in self._teams for place in team.starting)

    def prepare(self) -> None:
        """Start the forkserver, which takes seconds to load the libraries, and the guardian."""
        self._forkserver = self._new_forkserver()
        self._guardian.start()

    def start(self, learner: Learner, ports: SharedPorts, points: Mapping[int, ResumePoint]) -> None:
        """Start the workers; `ports` are the learner's."""
        self._learner, self._ports, self._unrolls = learner, ports, ports.receivers["unrolls"]
        self._poll.register(self._unrolls.fileno(), select.POLLIN)
        for team in self._teams:
            self._start(team, points)

    def wait(self, seconds: float) -> bool:
        """Sleep until there is something to look at; whether unrolls have come."""
        starts = [team.start_at for team in self._teams if team.start_at is not None]
        until = min([monotonic() + seconds, *starts])
        for descriptor, _ in self._poll.poll(max(until - monotonic(), 0.0) * 1000):
            if descriptor == self._unrolls.fileno():
                self._unrolls.drain()
                return True
        return False

    @property
    def is_due(self) -> bool:
        """It is time for another look, however busy the learner is."""
        return monotonic() - self._looked > LOOK_SECONDS

    def events(self) -> Iterator[Event]:
        """What has happened; starts what is to be started. Raises WorkerFailed when replacing has no use."""
        yield from self.hear()
        if self.is_due:
            self._looked = monotonic()
            self._look()
        for team in self._teams:
            if team.has_to_recover:
                self._learner.take_in()  # what they finished
            taken = sum(self._unrolls.taken[actor] for actor in team.actors)
            while (action := team.decide(monotonic(), taken, self._config.restarts)) is not None:
                yield from self._do(team, action)

    def hear(self) -> Iterator[Event]:
        """What workers said, and who of them ended."""
        reports = self._reports.take()  # before what workers said: then the last words of a dead one are there
        for place, lines in self._said.items():
            for message in lines.take():
                yield from self._heard(place, message)
        self._note(reports)
        if self._forkserver is not None and (code := self._forkserver.exit_code) is not None:
            self._lose_forkserver(code)

    def close(self) -> None:
        """End the workers, the gentle way first, and let go of every descriptor."""
        os.close(self._life)  # the workers see the end of this pipe and leave
        if self._forkserver is not None:
            self._forkserver.close(3.0)
            self._forkserver = None
            self._note(self._reports.take())
        for pid in self._pids.values():
            kill_group(pid)
        self._guardian.close()
        pipes = [end for lines in (self._reports, *self._said.values()) for end in (lines.read, lines.write)]
        for descriptor in (*pipes, self._life_read, *self._vitals.descriptors):
            os.close(descriptor)

    def cores(self) -> dict[str, int | None]:
        """A core for each worker where they all fit; roles that talk step by step do better where they like.

        The first core is chosen by our process number, so that several runs don't all crowd the same cores.
        """
        cores = usable_cores()
        if not self._config.pin or self._config.roles != "fused" or len(self.places) > len(cores):
            return dict.fromkeys(self.places)
        return {place: cores[(os.getpid() + number) % len(cores)] for number, place in enumerate(self.places)}

    def _heard(self, place: str, message: dict[str, Any]) -> Iterator[Event]:
        team, kind = self._team_of[place], message["kind"]
        if kind == "ready":
            team.ready(place, message["replay_seconds"])
        elif kind == "said":
            yield Said(self._learner.progress(), **message["what"])
        else:
            team.blame(Fault(place, message["component"], message["message"], message["traceback"]), monotonic())

    def _note(self, reports: list[dict[str, Any]]) -> None:
        """Who was born and who died."""
        for report in reports:
            place, pid = report["place"], report["pid"]
            if report["kind"] == "started":
                self._pids[place] = pid
                self._guardian.watch(pid)
            else:
                self._pids.pop(place, None)
                self._guardian.forget(pid)
                team, code = self._team_of[place], report["code"]
                team.living.discard(place)
                names = ", ".join(node.name for node in self._graph.nodes if node.place == place)
                reason = f"{how_it_ended(code)} ({names})"
                team.blame(Fault(place, place, reason, is_from_outside=code in FROM_OUTSIDE), monotonic())

    def _lose_forkserver(self, code: int) -> None:
        """The kernel kills its workers with it; we kill what they started."""
        assert self._forkserver is not None
        self._note(self._reports.take())
        for pid in self._pids.values():
            kill_group(pid)
        deadline = monotonic() + 2.0
        while any(is_alive(pid) for pid in self._pids.values()) and monotonic() < deadline:
            time.sleep(0.005)
        for team in self._teams:
            for place in tuple(team.living):
                reason, is_from_outside = how_it_ended(code), code in FROM_OUTSIDE
                team.blame(Fault(place, "forkserver", reason, is_from_outside=is_from_outside), monotonic())
            team.living.clear()
        for pid in self._pids.values():
            self._guardian.forget(pid)
        self._pids.clear()
        self._poll.unregister(self._forkserver.ended)
        self._guardian.forget(self._forkserver.pid)
        self._forkserver.close(0.0)
        self._forkserver = None

    def _look(self) -> None:
        """Whether workers hang or take too much memory, and whether the guardian is there."""
        self._guardian.look()
        for place, pid in self._pids.items():
            team = self._team_of[place]
            if not team.is_at_fault and (fault := self._fault(place, pid, team)) is not None:
                team.blame(fault, monotonic())

    def _fault(self, place: str, pid: int, team: Team) -> Fault | None:
        config, taken = self._config, self._unrolls.taken
        hung = self._vitals.hung(place) or team.silence(
            monotonic(), taken, self._learner.missing(), config.stall_seconds
        )
        if hung is not None:
            return Fault(place, place, hung, self._dump(place, pid), grace=0.0)
        limit = config.worker_memory_gb
        if limit is not None and (used := resident_bytes(pid) / 1e9) > limit:
            reason = f"used {used:.2g} GB, more than runtime.worker_memory_gb={limit:g}"
            return Fault(place, place, reason, grace=0.0)
        return None

    def _dump(self, place: str, pid: int) -> str:
        """The stacks of a hung worker, which are kept in the logs, too."""
        stack = self._vitals.dump(place, pid)
        if self._logs is None:
            print(f"{place} hangs:\n{stack}", file=sys.stderr, flush=True)
        else:
            with suppress(OSError), (self._logs / f"{place}.stack").open("a") as file:
                file.write(stack)
        return stack

    def _do(self, team: Team, action: Action) -> Iterator[Event]:
        """Carry out what was decided for a team."""
        match action:
            case Kill():
                if self._forkserver is not None:
                    self._forkserver.send(action)
            case TeamStep.RECOVER:
                self._busy = {**self._busy, **self._wiring.renew(team.nodes, "learner", self._ports)}
                for place in team.places:
                    self._said[place].forget()
                for actor in team.actors:
                    self._learner.reissue(actor)
            case TeamStep.START:
                self._start(team, self._learner.resume_points())
            case Replaced(fault, seconds, attempt):
                progress, what = self._learner.progress(), (fault.place, fault.reason, fault.traceback)
                yield WorkerReplaced(progress, *what, seconds, team.replay_seconds, attempt)
            case GiveUp(fault, message):
                yield ComponentFailed(self._learner.progress(), fault.component, message, fault.traceback)
                raise WorkerFailed(f"{fault.component}: {message}", fault.traceback)

    def _start(self, team: Team, points: Mapping[int, ResumePoint]) -> None:
        team.start()
        self._forkserver = self._forkserver or self._new_forkserver()
        theirs = {actor: points[actor] for actor in team.actors if actor in points}
        for place in team.places:
            self._vitals.renew(place)
            self._forkserver.send(self._worker_plan(place, theirs))

    def _new_forkserver(self) -> Forkserver:
        plan = ForkserverPlan(self._life_read, self._reports.write, self._wiring)
        pipes = [lines.write for lines in self._said.values()]
        inherited = [*self._wiring.descriptors, *pipes, *self._vitals.descriptors]
        forkserver = Forkserver(plan, inherited, self._guardian.mark)
        self._poll.register(forkserver.ended, select.POLLIN)
        self._guardian.watch(forkserver.pid, has_time=True)
        return forkserver

    def _worker_plan(self, place: str, points: Mapping[int, ResumePoint]) -> WorkerPlan:
        nodes = tuple(node for node in self._graph.nodes if node.place == place)
        output = None if self._logs is None else str(self._logs / f"{place}.out")
        threads = tuple(self._config.threads_of(node.role) for node in nodes)
        pulse, stack = self._vitals.plan(place)
        core = self.cores()[place]
        niceness = self._config.niceness
        return WorkerPlan(
            place, nodes, threads, core, niceness, self._said[place].write, output, pulse, stack, points, self._busy
        )


def _teams(graph: Graph, places: tuple[str, ...], config: RuntimeConfig) -> Iterator[Team]:
    makers = next(link for link in graph.links if link.name == "unrolls").producers
    for group in [(place,) for place in places] if config.roles == "fused" else [places]:
        nodes = frozenset(node.name for node in graph.nodes if node.place in group)
        actors = tuple(actor for actor, end in enumerate(makers) if end.node in nodes)
        yield Team(group, nodes, actors, starting=set(group))


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended by itself with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return f"killed by {names.get(-code, f'signal {-code}')}"
