"""Supervision: a worker that dies, hangs or grows too large is replaced by one that continues where its unroll began.

The journal has the resume point of every actor after its last unroll, and all randomness is keyed by use: the
new worker makes, bit for bit, the unroll that the old one would have made. Steps under way between components of
several processes (roles `central` and `split`) are lost with any of them, so those are replaced together: a *team*.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rollmill.actors.component import Notice
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
from rollmill.runtime.vitals import Vitals
from rollmill.runtime.wiring import SharedWiring
from rollmill.runtime.worker import WorkerPlan
from rollmill.transport.shared import SharedPorts
from rollmill.types import ResumePoint

FIRST_DELAY_SECONDS = 0.5  # before the second replacement in a row; each further one waits twice as long
CLOSE_SECONDS = 1.0  # that a failed worker has to close its environments
FROM_OUTSIDE = (-signal.SIGKILL, -signal.SIGTERM)  # exit codes that say nothing about the worker itself


@dataclass
class Incident:
    """Something that went wrong with a worker, until its team is started again."""

    place: str
    component: str
    reason: str
    traceback: str
    is_from_outside: bool
    noticed: float
    kill_at: float  # when those that still live are killed
    start_at: float | None = None  # when the new workers are started; None before the old ones have ended


@dataclass
class Team:
    """Workers that can only be replaced together, and how they fared."""

    places: tuple[str, ...]
    nodes: frozenset[str]
    actors: tuple[int, ...]
    living: set[str] = field(default_factory=set)  # places that were started and have not ended
    starting: set[str] = field(default_factory=set)  # places that are not ready
    has_run: bool = False  # every place has been ready once
    incident: Incident | None = None
    replaced: Incident | None = None  # what the workers that are starting now replace
    replay_seconds: float = 0.0
    attempts: int = 0  # replacements in a row
    first: Incident | None = None  # that made them necessary
    unrolls: int = 0  # that had come at the last of them
    seen: tuple[int, int, float] = (0, 0, 0.0)  # its unrolls when the last came, everybody's then, and when that was
    busy: Mapping[End, tuple[int, ...]] = field(default_factory=dict)


class Supervisor:
    """Starts the workers of a graph, watches them, and replaces them."""

    def __init__(self, graph: Graph, config: RuntimeConfig, wiring: SharedWiring, logs: Path | None) -> None:
        self._graph, self._config, self._wiring, self._logs = graph, config, wiring, logs
        self.places = tuple(place for place in graph.places if place != "main")
        self._team_of = {place: team for team in _teams(graph, self.places, config) for place in team.places}
        self._teams = list({id(team): team for team in self._team_of.values()}.values())
        self._said = {place: Lines() for place in self.places}
        self._reports = Lines()
        self._vitals = Vitals(self.places, config)
        self._life_read, self._life = os.pipe()
        self._forkserver: Forkserver | None = None
        self._guardian = Guardian()
        self._pids: dict[str, int] = {}
        self._looked = monotonic()
        self._poll = select.poll()
        for lines in (self._reports, *self._said.values()):
            self._poll.register(lines.read, select.POLLIN)
        self._learner: Learner
        self.replacements: list[WorkerReplaced] = []

    @property
    def starting(self) -> list[str]:
        """The places that are not ready."""
        return sorted(place for team in self._teams for place in team.starting)

    def prepare(self) -> None:
        """Start the forkserver, which takes seconds to load the libraries, and the guardian."""
        self._forkserver = self._new_forkserver()
        self._guardian.start()
        for team in self._teams:
            team.starting = set(team.places)

    def start(self, learner: Learner, ports: SharedPorts, points: Mapping[int, ResumePoint]) -> None:
        """Start the workers; `ports` are the learner's."""
        self._learner, self._ports, self._unrolls = learner, ports, ports.receivers["unrolls"]
        self._poll.register(self._unrolls.fileno(), select.POLLIN)
        for team in self._teams:
            self._start(team, points)

    def wait(self, seconds: float) -> bool:
        """Sleep until there is something to look at; whether unrolls have come."""
        starts = [team.incident.start_at for team in self._teams if team.incident and team.incident.start_at]
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
            yield from self._advance(team)

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
            team.starting.discard(place)
            team.replay_seconds = max(team.replay_seconds, message["replay_seconds"])
        elif kind == "said":
            yield Said(self._learner.progress(), message["component"], message["text"])
        elif kind == "notice":
            notice = Notice(**{field: message[field] for field in Notice._fields})
            yield Said(self._learner.progress(), *notice)
        else:
            self._blame(place, message["component"], message["message"], message["traceback"])

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
                self._team_of[place].living.discard(place)
                code = report["code"]
                reason = f"{how_it_ended(code)} ({self._names(place)})"
                self._blame(place, place, reason, is_from_outside=code in FROM_OUTSIDE)

    def _lose_forkserver(self, code: int) -> None:
        """Its workers die with it, by the kernel's hand; what they started does by ours."""
        assert self._forkserver is not None
        self._note(self._reports.take())
        for pid in self._pids.values():
            kill_group(pid)
        deadline = monotonic() + 2.0
        while any(is_alive(pid) for pid in self._pids.values()) and monotonic() < deadline:
            time.sleep(0.005)
        for team in self._teams:
            for place in tuple(team.living):
                self._blame(place, "forkserver", how_it_ended(code), is_from_outside=code in FROM_OUTSIDE)
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
        limit = self._config.worker_memory_gb
        for place, pid in self._pids.items():
            if self._team_of[place].incident is not None:
                continue
            if (hung := self._vitals.hung(place)) is not None:
                self._blame(place, place, hung, self._dump(place, pid), kill_after=0.0)
            elif (silence := self._silence(self._team_of[place])) is not None:
                self._blame(place, place, silence, self._dump(place, pid), kill_after=0.0)
            elif limit is not None and (used := resident_bytes(pid) / 1e9) > limit:
                reason = f"used {used:.2g} GB, more than runtime.worker_memory_gb={limit:g}"
                self._blame(place, place, reason, kill_after=0.0)

    def _silence(self, team: Team) -> str | None:
        """How long nothing came from workers that have tickets, while others continued; None if that is expected."""
        taken = self._unrolls.taken
        own, all_of_them = sum(taken[actor] for actor in team.actors), sum(taken)
        waits = not team.starting and not set(self._learner.missing()).isdisjoint(team.actors)
        if not waits or own != team.seen[0] or not team.seen[2]:
            team.seen = (own, all_of_them, monotonic())
        silent = monotonic() - team.seen[2]
        if silent < self._config.stall_seconds or all_of_them - team.seen[1] < 2 * len(taken):
            return None  # with everybody silent it is the whole run that stalls
        return f"made no unroll for {silent:.0f} s while others did (runtime.stall_seconds)"

    def _dump(self, place: str, pid: int) -> str:
        """The stacks of a hung worker, which are kept in the logs, too."""
        stack = self._vitals.dump(place, pid)
        if self._logs is None:
            print(f"{place} hangs:\n{stack}", file=sys.stderr, flush=True)
        else:
            with suppress(OSError), (self._logs / f"{place}.stack").open("a") as file:
                file.write(stack)
        return stack

    def _blame(
        self,
        place: str,
        component: str,
        reason: str,
        traceback: str = "",
        is_from_outside: bool = False,
        kill_after: float = CLOSE_SECONDS,
    ) -> None:
        """Take down what went wrong first; the rest of the team is of no use without this place."""
        team, now = self._team_of[place], monotonic()
        if team.incident is None:
            team.incident = Incident(place, component, reason, traceback, is_from_outside, now, now + kill_after)
            for other in team.living if kill_after == 0.0 else team.living - {place}:
                self._kill(other)

    def _kill(self, place: str) -> None:
        if self._forkserver is not None:
            self._forkserver.kill(place)

    def _advance(self, team: Team) -> Iterator[Event]:
        incident = team.incident
        if incident is None:
            if not team.starting:
                team.has_run = True
                yield from self._tell_of_replacement(team)
        elif team.living:
            if monotonic() > incident.kill_at:
                incident.kill_at = monotonic() + CLOSE_SECONDS
                for place in team.living:
                    self._kill(place)
        elif incident.start_at is None:
            yield from self._settle(team, incident)
        if incident is not None and incident.start_at is not None and monotonic() >= incident.start_at:
            self._start(team, self._learner.resume_points())

    def _settle(self, team: Team, incident: Incident) -> Iterator[Event]:
        """All of the team are dead: keep what they finished, forget the rest, and set the hour of the new ones."""
        self._learner.take_in()
        unrolls = sum(self._unrolls.taken[actor] for actor in team.actors)
        if unrolls > team.unrolls:
            team.attempts, team.first = 0, None
        team.unrolls, team.first, team.replaced = unrolls, team.first or incident, None
        is_hopeless = not team.has_run and not incident.is_from_outside
        if is_hopeless or team.attempts >= self._config.restarts:
            yield from self._give_up(team)
        team.starting = set(team.places)
        team.busy = self._wiring.renew(team.nodes, "learner", self._ports)
        for place in team.places:
            self._said[place].forget()
        for actor in team.actors:
            self._learner.reissue(actor)
        delay = FIRST_DELAY_SECONDS * 2 ** (team.attempts - 1) if team.attempts else 0.0
        team.attempts += 1
        incident.start_at = monotonic() + delay

    def _give_up(self, team: Team) -> Iterator[Event]:
        assert team.first is not None
        first = team.first
        message = first.reason
        if team.attempts:
            message += f"; replaced {team.attempts} times in a row (runtime.restarts), each time in vain"
        yield ComponentFailed(self._learner.progress(), first.component, message, first.traceback)
        raise WorkerFailed(f"{first.component}: {message}", first.traceback)

    def _tell_of_replacement(self, team: Team) -> Iterator[Event]:
        if (old := team.replaced) is not None:
            team.replaced = None
            seconds = monotonic() - old.noticed
            self.replacements.append(
                WorkerReplaced(
                    self._learner.progress(),
                    old.place,
                    old.reason,
                    old.traceback,
                    seconds,
                    team.replay_seconds,
                    team.attempts,
                )
            )
            yield self.replacements[-1]

    def _start(self, team: Team, points: Mapping[int, ResumePoint]) -> None:
        team.incident, team.replaced, team.replay_seconds = None, team.incident, 0.0
        team.living, team.starting = set(team.places), set(team.places)
        self._forkserver = self._forkserver or self._new_forkserver()
        theirs = {actor: points[actor] for actor in team.actors if actor in points}
        for place in team.places:
            self._vitals.renew(place)
            self._forkserver.start(self._worker_plan(place, theirs, team.busy))

    def _new_forkserver(self) -> Forkserver:
        plan = ForkserverPlan(self._life_read, self._reports.write, self._wiring)
        pipes = [lines.write for lines in self._said.values()]
        inherited = [*self._wiring.descriptors, *pipes, *self._vitals.descriptors]
        forkserver = Forkserver(plan, inherited, self._guardian.mark)
        self._poll.register(forkserver.ended, select.POLLIN)
        self._guardian.watch(forkserver.pid, has_time=True)
        return forkserver

    def _worker_plan(
        self, place: str, points: Mapping[int, ResumePoint], busy: Mapping[End, tuple[int, ...]]
    ) -> WorkerPlan:
        nodes = tuple(node for node in self._graph.nodes if node.place == place)
        output = None if self._logs is None else str(self._logs / f"{place}.out")
        threads = tuple(self._config.threads_of(node.role) for node in nodes)
        pulse, stack = self._vitals.plan(place)
        core = self.cores()[place]
        niceness = self._config.niceness
        return WorkerPlan(
            place, nodes, threads, core, niceness, self._said[place].write, output, pulse, stack, points, busy
        )

    def _names(self, place: str) -> str:
        return ", ".join(node.name for node in self._graph.nodes if node.place == place)


def _teams(graph: Graph, places: tuple[str, ...], config: RuntimeConfig) -> Iterator[Team]:
    makers = next(link for link in graph.links if link.name == "unrolls").producers
    for group in [(place,) for place in places] if config.roles == "fused" else [places]:
        nodes = frozenset(node.name for node in graph.nodes if node.place in group)
        yield Team(group, nodes, tuple(actor for actor, end in enumerate(makers) if end.node in nodes))


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code >= 0:
        return f"ended by itself with exit code {code}"
    names = {number.value: number.name for number in signal.Signals}  # real-time signals have none
    return f"killed by {names.get(-code, f'signal {-code}')}"
