"""The serial runtime: every component in this process, one after the other; breakpoints work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import cast

from rollmill.actors.component import Component
from rollmill.errors import Stalled
from rollmill.events import Event, Said
from rollmill.launch.process import set_threads
from rollmill.learners.learner import Learner
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.graph import Graph
from rollmill.runtime.wiring import local_ports
from rollmill.types import ResumePoint


class SerialRuntime:
    """Gives each component its turn until the learner is done."""

    def __init__(self, graph: Graph, config: RuntimeConfig) -> None:
        self._graph, self._config = graph, config
        self._components: list[tuple[int, Component]] = []
        self._is_stopping = False
        self.learner: Learner

    def start(self, points: Mapping[int, ResumePoint] | None = None) -> None:
        """Build and wire every component; with `points` the actors continue from there."""
        ports = local_ports(self._graph)
        for node in self._graph.nodes:
            threads = self._config.threads_of(node.role)
            set_threads(threads)
            component = node.build(node.name, ports[node.name])
            if points:
                component.resume(points)
            self._components.append((threads, component))
            if node.role == "learner":
                self.learner = cast(Learner, component)

    def component(self, name: str) -> Component:
        """The component called `name`."""
        return next(component for _, component in self._components if component.name == name)

    def give_threads(self, name: str, threads: int) -> None:
        """Another number of threads for a component, from its next turn on."""
        self._components = [(threads if c.name == name else before, c) for before, c in self._components]

    def plan(self) -> tuple[str, ...]:
        """What runs where, for people."""
        roles = dict.fromkeys(node.role for node in self._graph.nodes)
        threads = ", ".join(f"{role} {self._config.threads_of(role)}" for role in roles)
        return (f"serial: everything in this process; threads: {threads}",)

    def run(self) -> Iterator[Event]:
        """Work until the learner is done or stop() is called."""
        for node in self._graph.nodes:
            yield Said(self.learner.progress(), node.name, f"{node.role} in the main process")
        while not self.learner.done:
            progressed = False
            for threads, component in self._components:
                set_threads(threads)
                progressed = component.work() or progressed
                while component.notices:
                    yield Said(self.learner.progress(), *component.notices.popleft())
                if self._is_stopping:
                    break
            while self.learner.events:
                yield self.learner.events.popleft()
            if self._is_stopping:
                return
            if not progressed:
                raise Stalled(f"no component can go on; unrolls missing from actors {self.learner.missing()}")

    def stop(self) -> None:
        """End soon, between two pieces of work."""
        self._is_stopping = True

    def close(self) -> None:
        """Close every component; one that fails to close keeps no other from it."""
        while self._components:
            _, component = self._components.pop()  # taken out first: who hangs in it is not asked again
            with suppress(Exception):
                component.close()
