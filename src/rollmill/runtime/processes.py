"""The processes runtime: the learner here, everything else in worker processes that share memory with it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import cast

from rollmill.errors import NoExperience, Stalled
from rollmill.events import Event, WorkerReplaced
from rollmill.launch.process import set_threads
from rollmill.learners.learner import Learner
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.graph import Graph
from rollmill.runtime.supervise import Supervisor
from rollmill.runtime.wiring import SharedWiring
from rollmill.types import ResumePoint

START_SECONDS = 120.0  # that workers have at least to import and to build their environments
WAIT_SECONDS = 0.5  # between looks at the clock and the stop flag while nothing comes


class ProcessRuntime:
    """Runs the learner, and has the workers supervised."""

    def __init__(self, graph: Graph, config: RuntimeConfig, logs: Path | None = None) -> None:
        self._graph, self._config, self._logs = graph, config, logs
        self._wiring: SharedWiring | None = None
        self._supervisor: Supervisor | None = None
        self._is_stopping = False
        self._is_closed = False
        self.learner: Learner

    def start(self, points: Mapping[int, ResumePoint] | None = None) -> None:
        """Make the links, build the learner, start the workers; with `points` the actors continue from there."""
        _allow_many_descriptors()
        self._wiring = SharedWiring(self._graph)
        self._supervisor = Supervisor(self._graph, self._config, self._wiring, self._logs)
        self._supervisor.prepare()
        set_threads(self._config.threads_of("learner"))
        ports = self._wiring.attach("learner")
        self.learner = cast(Learner, self._graph.node("learner").build("learner", ports))
        self._supervisor.start(self.learner, ports, points or {})

    def plan(self) -> tuple[str, ...]:
        """What runs where, for people."""
        assert self._supervisor is not None
        lines = [f"main: learner, threads {self._config.threads_of('learner')}, process {os.getpid()}"]
        for place, core in self._supervisor.cores().items():
            nodes = [node for node in self._graph.nodes if node.place == place]
            threads = max(self._config.threads_of(node.role) for node in nodes)
            where = "any core" if core is None else f"core {core}"
            lines.append(f"{place}: {', '.join(node.name for node in nodes)}, threads {threads}, {where}")
        return tuple(lines)

    def run(self) -> Iterator[Event]:
        """Work until the learner is done or stop() is called; WorkerFailed if a worker can't be replaced."""
        supervisor = self._supervisor
        assert supervisor is not None
        has_begun = False
        quiet_since = monotonic()
        while not self.learner.done and not self._is_stopping:
            try:
                progressed = has_begun and self.learner.work()
            except NoExperience:
                yield from supervisor.hear()  # what the environments had to say explains it
                raise
            while self.learner.events:
                yield self.learner.events.popleft()
            if progressed:
                quiet_since = monotonic()
                if not supervisor.is_due:
                    continue
            elif supervisor.wait(WAIT_SECONDS):
                quiet_since = monotonic()  # also after we were suspended: what has come is looked at first
            for event in supervisor.events():
                if isinstance(event, WorkerReplaced):
                    quiet_since = monotonic()
                yield event
            if not has_begun and not supervisor.starting:
                # Training begins when every worker is there: their start is not counted as its time.
                has_begun, quiet_since = True, monotonic()
            patience = max(self._config.stall_seconds, START_SECONDS if supervisor.starting else 0.0)
            if monotonic() - quiet_since > patience:
                raise Stalled(self._diagnosis(supervisor.starting, patience))
        yield from supervisor.hear()

    def stop(self) -> None:
        """End soon."""
        self._is_stopping = True

    def close(self) -> None:
        """End the workers, the gentle way first, and let go of every descriptor."""
        supervisor, wiring = self._supervisor, self._wiring
        if supervisor is not None and wiring is not None and not self._is_closed:
            self._is_closed = True
            supervisor.close()
            for descriptor in wiring.descriptors:
                with suppress(OSError):
                    os.close(descriptor)

    def _diagnosis(self, starting: list[str], patience: float) -> str:
        limit = f"{patience:.0f} s"
        if starting:
            return f"{', '.join(starting)} did not start within {limit}; raise runtime.stall_seconds?"
        missing = self.learner.missing()
        remedy = "a hung environment? raise runtime.stall_seconds if it is only slow"
        return f"no unroll for {limit} from actors {missing}; {remedy}"


def _allow_many_descriptors() -> None:
    """Every link takes a few; the usual soft limit of 1024 is reached with some dozens of split groups."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
