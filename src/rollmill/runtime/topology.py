"""What runs where, and every message path of a run on one screen."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from rollmill.models.weights import weights_spec
from rollmill.nested import Nested
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.graph import End, Graph, Link, Node, Port
from rollmill.transport.ports import Kind
from rollmill.types import TICKET

WEIGHT_VERSIONS = 2  # kept side by side: the one in use and the one being written


class _Makers(NamedTuple):
    """The components that make unrolls, and the ends by which they are joined to the learner."""

    nodes: list[Node]
    tickets: list[End]  # of each group
    weights: list[End]
    unrolls: list[End]
    links: list[Link]  # among themselves


def draw_graph(plan: Blueprint) -> Graph:
    """The components of a run and their links: the same for every kind of training, but for the room in the links.

    Synchronous: each actor makes one unroll per update, with the weights that it will change. Asynchronous: an actor
    has up to `in_flight` tickets and slots, so it runs while the learner learns; a ticket names the version that was
    newest when it was given, and as many are kept as pass until its turn comes, if all actors are equally fast.
    Offline: the learner is alone, and the stream of unrolls has no producer.
    """
    groups, in_flight = range(plan.actors), plan.flow.in_flight
    versions = WEIGHT_VERSIONS
    if plan.recipe.topology.kind == "async":
        versions += -(-plan.actors * in_flight // plan.flow.unrolls)
    unrolls = plan.fields.unroll_spec(plan.assembler.steps, plan.env.group_size)
    weights = weights_spec(plan.network("cpu").published())
    makers = (_fused if plan.runtime.roles == "fused" else _apart)(plan, unrolls, weights)

    ports = {"unrolls": Port(Kind.STREAM, "in", unrolls), "weights": Port(Kind.CELL, "out", weights)}
    ports |= {f"tickets.{i}": Port(Kind.STREAM, "out", TICKET) for i in groups}
    learner = Node("learner", "learner", "main", ports, plan.build_learner)
    tickets = [
        Link(f"tickets.{i}", Kind.STREAM, (End("learner", f"tickets.{i}"),), (makers.tickets[i],), 2 * in_flight)
        for i in groups
    ]
    kept = max(versions, plan.versions or 0)
    published = Link("weights", Kind.CELL, (End("learner", "weights"),), tuple(makers.weights), kept)
    slots = in_flight + plan.spare_slots
    made = Link("unrolls", Kind.STREAM, tuple(makers.unrolls), (End("learner", "unrolls"),), slots)
    return Graph((*makers.nodes, learner), (*tickets, published, *makers.links, made))


def _worker(plan: Blueprint, group: int) -> str:
    return "main" if plan.runtime.kind == "serial" else f"worker.{group % plan.runtime.workers}"


def _fused(plan: Blueprint, unrolls: Nested, weights: Nested) -> _Makers:
    """One actor per group."""
    groups = range(plan.actors)
    ports = {
        "tickets": Port(Kind.STREAM, "in", TICKET),
        "weights": Port(Kind.CELL, "in", weights),
        "unrolls": Port(Kind.STREAM, "out", unrolls),
    }
    nodes = [Node(f"actor.{i}", "actor", _worker(plan, i), ports, partial(plan.build_actor, i)) for i in groups]
    tickets, cells, streams = ([End(node.name, port) for node in nodes] for port in ("tickets", "weights", "unrolls"))
    return _Makers(nodes, tickets, cells, streams, [])


def _apart(plan: Blueprint, unrolls: Nested, weights: Nested) -> _Makers:
    """An environment and a collector per group, one inference for all; `split` has the collectors in one process."""
    groups, is_serial = range(plan.actors), plan.runtime.kind == "serial"
    scenes, decisions = plan.fields.scene_spec(plan.env.group_size), plan.fields.decision_spec(plan.env.group_size)

    def broadcast(direction: str, spec: Nested) -> Port:
        return Port(Kind.BROADCAST, direction, spec)

    steps = {"decisions": broadcast("in", decisions), "scenes": broadcast("out", scenes)}
    gather = {"scenes": broadcast("in", scenes), "decisions": broadcast("in", decisions)}
    gather |= {"unrolls": Port(Kind.STREAM, "out", unrolls)}
    decide = {"weights": Port(Kind.CELL, "in", weights)}
    for i in groups:
        decide |= {f"scenes.{i}": broadcast("in", scenes), f"decisions.{i}": broadcast("out", decisions)}
        decide |= {f"tickets.{i}": Port(Kind.STREAM, "in", TICKET)}
    together = plan.runtime.roles == "split" and not is_serial
    nodes = [
        *(
            Node(f"environment.{i}", "environment", _worker(plan, i), steps, partial(plan.build_environment, i))
            for i in groups
        ),
        Node("inference", "inference", "main" if is_serial else "inference", decide, plan.build_inference),
        *(
            Node(
                f"collector.{i}",
                "collector",
                "collector" if together else _worker(plan, i),
                gather,
                plan.build_collector,
            )
            for i in groups
        ),
    ]
    return _Makers(
        nodes,
        [End("inference", f"tickets.{i}") for i in groups],
        [End("inference", "weights")],
        [End(f"collector.{i}", "unrolls") for i in groups],
        [link for i in groups for link in _step_links(i)],
    )


def _step_links(i: int) -> tuple[Link, Link]:
    """Scenes and decisions of one group; a few slots each, so that a slow collector delays no step."""
    environment, collector = f"environment.{i}", f"collector.{i}"
    return (
        Link(
            f"scenes.{i}",
            Kind.BROADCAST,
            (End(environment, "scenes"),),
            (End("inference", f"scenes.{i}"), End(collector, "scenes")),
            depth=4,
        ),
        Link(
            f"decisions.{i}",
            Kind.BROADCAST,
            (End("inference", f"decisions.{i}"),),
            (End(environment, "decisions"), End(collector, "decisions")),
            depth=4,
        ),
    )
