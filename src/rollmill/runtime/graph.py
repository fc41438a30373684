"""A run as plain data: components, and the links that join their ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from rollmill import nested
from rollmill.actors.component import Component
from rollmill.events import Event
from rollmill.learners.learner import Learner
from rollmill.nested import Nested
from rollmill.transport.ports import Kind, Ports
from rollmill.types import ResumePoint


class GraphError(ValueError):
    """Two ends that don't fit; a defect of a topology, not of the user's input."""


@dataclass(frozen=True)
class Port:
    """One end of a link as its component declares it."""

    kind: Kind
    direction: str  # "in" | "out"
    spec: Nested  # of ArraySpec


@dataclass(frozen=True)
class Node:
    """A component to be built where it will live."""

    name: str
    role: str  # "actor" | "environment" | "inference" | "collector" | "learner"; threads and devices go by it
    place: str  # which process hosts it: "main", "worker.0", …
    ports: dict[str, Port]
    build: Callable[[str, Ports], Component]  # (name, attached ports); picklable


@dataclass(frozen=True)
class End:
    """A port of a node."""

    node: str
    port: str

    def __str__(self) -> str:
        return f"{self.node}:{self.port}"


@dataclass(frozen=True)
class Link:
    """Producers and consumers of one kind of message; `depth` slots per producer, or versions kept."""

    name: str
    kind: Kind
    producers: tuple[End, ...]
    consumers: tuple[End, ...]
    depth: int


@dataclass(frozen=True)
class Graph:
    """Checked when made: every port is wired once, and both ends agree in kind, shape and dtype."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    def __post_init__(self) -> None:
        unwired = {End(node.name, port) for node in self.nodes for port in node.ports}
        for link in self.links:
            self._check(link)
            for end in (*link.producers, *link.consumers):
                if end not in unwired:
                    raise GraphError(f"{end} is wired twice or doesn't exist (link {link.name})")
                unwired.remove(end)
        if unwired:
            raise GraphError(f"not wired: {', '.join(sorted(map(str, unwired)))}")

    def node(self, name: str) -> Node:
        """The node called `name`."""
        return next(node for node in self.nodes if node.name == name)

    def port(self, end: End) -> Port:
        """What the component declares for this end."""
        try:
            return self.node(end.node).ports[end.port]
        except (StopIteration, KeyError):
            raise GraphError(f"{end} doesn't exist") from None

    def spec(self, link: Link) -> Nested:
        """What the link carries."""
        return self.port((*link.producers, *link.consumers)[0]).spec

    @property
    def places(self) -> tuple[str, ...]:
        """Every process of the run, the main one first."""
        return ("main", *dict.fromkeys(node.place for node in self.nodes if node.place != "main"))

    def _check(self, link: Link) -> None:
        first = (*link.producers, *link.consumers)[0]
        expected = dict(nested.leaves(self.port(first).spec))
        for end, direction in [(e, "out") for e in link.producers] + [(e, "in") for e in link.consumers]:
            port = self.port(end)
            if (port.kind, port.direction) != (link.kind, direction):
                raise GraphError(f"{end} is a {port.kind} {port.direction}, link {link.name} a {link.kind} {direction}")
            actual = dict(nested.leaves(port.spec))
            for path in sorted(expected.keys() | actual.keys()):
                if expected.get(path) != actual.get(path):
                    raise GraphError(
                        f"link {link.name}: {path or 'value'} is {expected.get(path)} at {first} "
                        f"but {actual.get(path)} at {end}"
                    )
        if link.kind is Kind.STREAM and len(link.consumers) > 1:
            raise GraphError(f"link {link.name}: a stream has one consumer; use a broadcast")
        if link.kind is not Kind.STREAM and len(link.producers) > 1:
            raise GraphError(f"link {link.name}: a {link.kind} has one producer")

    def text(self) -> str:
        """The graph for people: what runs where, and which component sends to which."""
        lines = []
        for place in self.places:
            names = _shortened([node.name for node in self.nodes if node.place == place])
            lines.append(f"{place:<12} {', '.join(names)}")
        lines.append("")
        seen: dict[tuple[str, ...], list[Link]] = {}
        for link in self.links:
            ends = [end.node for end in (*link.producers[:1], *link.consumers[:2])]
            family, *of_ends = (name.split(".")[0] for name in (link.name, *ends))
            seen.setdefault((family, link.kind, *of_ends), []).append(link)
        for (family, kind, *_), links in seen.items():
            sources = _shortened(list(dict.fromkeys(e.node for link in links for e in link.producers)))
            targets = _shortened(list(dict.fromkeys(e.node for link in links for e in link.consumers)))
            size = sum(leaf.nbytes for _, leaf in nested.leaves(self.spec(links[0])))
            lines.append(
                f"{', '.join(sources)} ──{family}──► {', '.join(targets)}   "
                f"[{kind}, depth {links[0].depth}, {_readable(size)} each]"
            )
        return "\n".join(lines)


def _shortened(names: list[str]) -> list[str]:
    """actor.0, actor.1, actor.2 → actor.0–2."""
    families: dict[str, list[int]] = {}
    for name in names:
        family, _, number = name.partition(".")
        families.setdefault(family, []).extend([int(number)] if number else [])
    return [f"{family}.{','.join(_runs(sorted(n)))}" if n else family for family, n in families.items()]


def _runs(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]


def _readable(size: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


class Runtime(Protocol):
    """Executes a graph; the learner is in the process that calls it."""

    learner: Learner  # after `start`

    def start(self, points: Mapping[int, ResumePoint] | None = None) -> None:
        """Build and wire the components; with `points` the actors continue from there."""

    def plan(self) -> tuple[str, ...]:
        """What runs where, for people."""

    def run(self) -> Iterator[Event]:
        """Work until the learner is done or `stop` is called."""

    def stop(self) -> None:
        """Make `run` return soon; safe in a signal handler."""

    def close(self) -> None:
        """End the components and what belongs to them."""
