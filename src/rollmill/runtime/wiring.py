"""From links to attached ports, for each transport."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from rollmill.nested import Nested
from rollmill.runtime.graph import End, Graph, Link
from rollmill.transport.local import LocalCell, LocalChannel, LocalPorts
from rollmill.transport.ports import Kind
from rollmill.transport.shared import CellPlan, ChannelPlan, SharedPorts, create_cell, create_channel


def local_ports(graph: Graph) -> dict[str, LocalPorts]:
    """The ports of every node, all in this process."""
    ports = {node.name: LocalPorts() for node in graph.nodes}
    for link in graph.links:
        if link.kind is Kind.CELL:
            cell = LocalCell(graph.spec(link), link.depth)
            for end in link.producers:
                ports[end.node].writers[end.port] = cell
            for end in link.consumers:
                ports[end.node].readers[end.port] = cell
        else:
            channel = LocalChannel(graph.spec(link), len(link.producers), len(link.consumers), link.depth)
            for number, end in enumerate(link.producers):
                ports[end.node].senders[end.port] = channel.sender(number)
            for number, end in enumerate(link.consumers):
                ports[end.node].receivers[end.port] = channel.receiver(number)
    return ports


class SharedWiring:
    """Every link of a graph as shared memory and pipes; made by the parent, inherited by the workers."""

    def __init__(self, graph: Graph) -> None:
        self._plans = [(link, _allocate(link, graph.spec(link))) for link in graph.links]

    @property
    def descriptors(self) -> list[int]:
        """What a worker must inherit."""
        return [descriptor for _, plan in self._plans for descriptor in plan.descriptors]

    def attach(self, node: str, busy: Mapping[End, tuple[int, ...]] | None = None) -> SharedPorts:
        """The ports of one node, in the process that hosts it; `busy` is what `renew` gave for a node that died."""
        busy = busy or {}
        ports = SharedPorts()
        for link, plan in self._plans:
            producers, consumers = _of(node, link.producers), _of(node, link.consumers)
            if isinstance(plan, CellPlan):
                ports.writers |= {end.port: plan.attach() for _, end in producers}
                ports.readers |= {end.port: plan.attach() for _, end in consumers}
                continue
            ports.senders |= {end.port: plan.sender(i, busy.get(end, ())) for i, end in producers}
            ports.receivers |= {end.port: plan.receiver(i) for i, end in consumers}
        return ports

    def renew(self, dead: Collection[str], survivor: str, ports: SharedPorts) -> dict[End, tuple[int, ...]]:
        """Reset the ends of the `dead` nodes, for others to take their place.

        All that they were linked with must be dead too, except for the `survivor`, whose `ports` are given. The result
        is the slots of dead producers that the survivor still reads.
        """
        busy: dict[End, tuple[int, ...]] = {}
        for link, plan in self._plans:
            if isinstance(plan, CellPlan):
                continue  # the readers of a cell are never waited for
            consumers = [i for i, end in enumerate(link.consumers) if end.node in dead]
            for i in consumers:
                plan.empty_ready(i)
            for _, end in _of(survivor, link.producers) if consumers else ():
                ports.senders[end.port].start_over()
            for i, end in enumerate(link.producers):
                if end.node in dead:
                    plan.empty_free(i)
                    busy[end] = tuple(
                        n for _, c in _of(survivor, link.consumers) for n in ports.receivers[c.port].in_use(i)
                    )
        return busy


def _allocate(link: Link, spec: Nested) -> ChannelPlan | CellPlan:
    if link.kind is Kind.CELL:
        return create_cell(link.name, spec, link.depth)
    return create_channel(link.name, spec, len(link.producers), len(link.consumers), link.depth)


def _of(node: str, ends: tuple[End, ...]) -> list[tuple[int, End]]:
    return [(number, end) for number, end in enumerate(ends) if end.node == node]
