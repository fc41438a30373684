"""The processes runtime: the learner here, everything else in worker processes that share memory with it."""

from __future__ import annotations

import json
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

from rollmill.errors import Stalled, WorkerFailed
from rollmill.learners.learner import Learner
from rollmill.observe.events import ComponentFailed, Event, Said
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.graph import Graph
from rollmill.runtime.nursery import NurseryPlan
from rollmill.runtime.process import THREAD_VARIABLES, set_threads, usable_cores
from rollmill.runtime.wiring import SharedWiring
from rollmill.runtime.worker import WorkerPlan

START_SECONDS = 120.0  # that workers have at least to import and to build their environments
POLL_MILLISECONDS = 500  # between looks at the clock and the stop flag while nothing comes


class _Lines:
    """JSON lines that arrive through a pipe."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        os.set_blocking(self.read, False)
        self._rest = b""

    def take(self) -> list[dict[str, Any]]:
        """The messages that are complete by now."""
        with suppress(BlockingIOError):
            while chunk := os.read(self.read, 65536):
                self._rest += chunk
        *lines, self._rest = self._rest.split(b"\n")
        return [json.loads(line) for line in lines]


class ProcessRuntime:
    """Starts the workers, runs the learner, watches both."""

    def __init__(self, graph: Graph, config: RuntimeConfig, logs: Path | None = None) -> None:
        self._graph, self._config, self._logs = graph, config, logs
        self._nursery: subprocess.Popen[bytes] | None = None
        self._places = [place for place in graph.places if place != "main"]
        self._reports: dict[str, _Lines] = {}
        self._exits: _Lines
        self._life = -1
        self._descriptors: list[int] = []
        self._starting = set(self._places)  # workers that are not ready yet
        self._is_stopping = False
        self._ended = False
        self.learner: Learner

    def start(self) -> None:
        """Make the links, start the workers, build the learner."""
        _allow_many_descriptors()
        wiring = SharedWiring.create(self._graph)
        self._descriptors = list(wiring.descriptors)
        self._reports = {place: _Lines() for place in self._places}
        self._exits = _Lines()
        life_read, self._life = os.pipe()
        nursery = NurseryPlan(os.getpid(), life_read, self._exits.write)
        workers = [self._worker_plan(place, core) for place, core in zip(self._places, self._cores(), strict=True)]
        inherited = [*wiring.descriptors, life_read, self._exits.write, *(r.write for r in self._reports.values())]
        environment = dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
        self._nursery = subprocess.Popen(
            [sys.executable, "-c", "from rollmill.runtime.nursery import main; main()", str(os.getpid())],
            stdin=subprocess.PIPE,
            pass_fds=inherited,
            env=os.environ | environment,
            process_group=0,  # Ctrl-C in the terminal is for the main process, which ends the others in order
        )
        assert self._nursery.stdin is not None
        with suppress(BrokenPipeError):  # it died at once; its exit will be noticed below
            self._nursery.stdin.write(pickle.dumps((nursery, workers, wiring)))
            self._nursery.stdin.close()
        for descriptor in (life_read, self._exits.write, *(r.write for r in self._reports.values())):
            os.close(descriptor)
        self._descriptors += [self._exits.read, *(r.read for r in self._reports.values())]

        node = self._graph.node("learner")
        set_threads(self._config.threads_of("learner"))
        self._ports = wiring.attach("learner")
        component = node.build("learner", self._ports)
        assert isinstance(component, Learner)
        self.learner = component

    def plan(self) -> tuple[str, ...]:
        """What runs where, for people."""
        lines = [f"main: learner, threads {self._config.threads_of('learner')}, process {os.getpid()}"]
        for place, core in zip(self._places, self._cores(), strict=True):
            nodes = [node for node in self._graph.nodes if node.place == place]
            threads = max(self._config.threads_of(node.role) for node in nodes)
            where = "any core" if core is None else f"core {core}"
            lines.append(f"{place}: {', '.join(node.name for node in nodes)}, threads {threads}, {where}")
        return tuple(lines)

    def run(self) -> Iterator[Event]:
        """Work until the learner is done or somebody calls stop(); a dead worker ends it with WorkerFailed."""
        unrolls = self._ports["unrolls"]
        poll = select.poll()
        for descriptor in (unrolls.fileno(), self._exits.read, *(r.read for r in self._reports.values())):
            poll.register(descriptor, select.POLLIN)
        quiet_since = monotonic()
        while not self.learner.done and not self._is_stopping:
            # Training begins when every worker is there: their start is not counted as its time.
            progressed = not self._starting and self.learner.work()
            while self.learner.events:
                yield self.learner.events.popleft()
            if progressed:
                quiet_since = monotonic()
                continue
            for descriptor, event in poll.poll(POLL_MILLISECONDS):
                if descriptor == unrolls.fileno():
                    unrolls.drain()
                    quiet_since = monotonic()  # also after we were suspended: what has come is looked at first
                elif event & select.POLLHUP and not event & select.POLLIN:
                    poll.unregister(descriptor)
            yield from self._messages()
            patience = max(self._config.stall_seconds, START_SECONDS if self._starting else 0.0)
            if monotonic() - quiet_since > patience:
                raise Stalled(self._diagnosis(patience))
        yield from self._messages()

    def stop(self) -> None:
        """End soon."""
        self._is_stopping = True

    def close(self) -> None:
        """End the workers, the gentle way first, and let go of every descriptor."""
        if self._ended:
            return
        self._ended = True
        if self._life >= 0:
            os.close(self._life)  # the workers see the end of this pipe and leave
        if self._nursery is not None:
            try:
                self._nursery.wait(timeout=3)
            except subprocess.TimeoutExpired:
                os.killpg(self._nursery.pid, signal.SIGKILL)
                self._nursery.wait()
        for descriptor in self._descriptors:
            with suppress(OSError):
                os.close(descriptor)

    def _messages(self) -> Iterator[Event]:
        """What workers said; raises if one of them ended."""
        failure: ComponentFailed | None = None
        exits = self._exits.take()
        for place, lines in self._reports.items():
            for message in lines.take():
                if message["kind"] == "ready":
                    self._starting.discard(place)
                elif message["kind"] == "said":
                    yield Said(self.learner.progress(), message["component"], message["text"])
                elif failure is None:
                    failure = ComponentFailed(
                        self.learner.progress(), message["component"], message["message"], message["traceback"]
                    )
        assert self._nursery is not None
        if failure is None and exits:
            place, code = exits[0]["place"], exits[0]["code"]
            names = ", ".join(node.name for node in self._graph.nodes if node.place == place)
            failure = ComponentFailed(self.learner.progress(), place, f"{_how_it_ended(code)} ({names})", "")
        if failure is None and self._nursery.poll() is not None:
            code = self._nursery.returncode
            failure = ComponentFailed(self.learner.progress(), "nursery", _how_it_ended(code), "")
        if failure is not None:
            yield failure
            raise WorkerFailed(f"{failure.component}: {failure.message}", failure.traceback)

    def _diagnosis(self, patience: float) -> str:
        limit = f"{patience:.0f} s"
        if self._starting:
            return f"{', '.join(sorted(self._starting))} did not start within {limit}; raise runtime.stall_seconds?"
        missing = self.learner.store.missing()
        remedy = "a hung environment? raise runtime.stall_seconds if it is only slow"
        return f"no unroll for {limit} from actors {missing}; {remedy}"

    def _worker_plan(self, place: str, core: int | None) -> WorkerPlan:
        nodes = tuple(node for node in self._graph.nodes if node.place == place)
        output = None if self._logs is None else str(self._logs / f"{place}.out")
        threads = tuple(self._config.threads_of(node.role) for node in nodes)
        return WorkerPlan(place, nodes, threads, core, self._reports[place].write, output)

    def _cores(self) -> list[int | None]:
        """A core for each worker where they all fit; roles that talk step by step do better where they like.

        The first core is chosen by our process number, so that several runs don't all crowd the same cores.
        """
        cores = usable_cores()
        if not self._config.pin or self._config.roles != "fused" or len(self._places) > len(cores):
            return [None] * len(self._places)
        return [cores[(os.getpid() + worker) % len(cores)] for worker in range(len(self._places))]


def _allow_many_descriptors() -> None:
    """Every link takes a few; the usual soft limit of 1024 is reached with some dozens of split groups."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _how_it_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended by itself with exit code {code}"
