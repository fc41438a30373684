"""What runs where, and every message path of a run on one screen."""

from __future__ import annotations

from functools import partial

from rollmill.models.weights import weights_spec
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.graph import End, Graph, Link, Node, Port
from rollmill.transport.ports import Kind
from rollmill.types import TICKET

WEIGHT_VERSIONS = 2  # kept side by side: the one in use and the one being written


def sync(plan: Blueprint) -> Graph:
    """Synchronous training: each actor makes one unroll per update, with the weights that it will change."""
    return _wired(plan, WEIGHT_VERSIONS)


def asynchronous(plan: Blueprint) -> Graph:
    """Asynchronous training: the same components and links with room for what is in flight and for replaced tickets.

    An actor has up to `in_flight` tickets and slots, so it runs while the learner learns. A ticket names the version
    that was newest when it was given; as many are kept as pass until its turn comes, if all actors are equally fast.
    """
    flow = plan.flow
    return _wired(plan, WEIGHT_VERSIONS + -(-plan.env.groups * flow.in_flight // flow.unrolls))


def _wired(plan: Blueprint, versions: int) -> Graph:
    in_flight = plan.flow.in_flight
    groups, size = range(plan.env.groups), plan.env.group_size
    unrolls = plan.fields.unroll_spec(plan.assembler.steps, size)
    weights = weights_spec(plan.network("cpu"))
    scenes, decisions = plan.fields.scene_spec(size), plan.fields.decision_spec(size)

    is_serial, roles = plan.runtime.kind == "serial", plan.runtime.roles
    workers = [("main" if is_serial else f"worker.{i % plan.runtime.workers}") for i in groups]
    inference_place = "main" if is_serial else "inference"
    collector_places = ["main" if is_serial else "collector"] * len(groups) if roles == "split" else workers

    def stream(direction: str, spec: object) -> Port:
        return Port(Kind.STREAM, direction, spec)

    def broadcast(direction: str, spec: object) -> Port:
        return Port(Kind.BROADCAST, direction, spec)

    learner_ports = {"unrolls": stream("in", unrolls), "weights": Port(Kind.CELL, "out", weights)}
    learner_ports |= {f"tickets.{i}": stream("out", TICKET) for i in groups}
    learner = Node("learner", "learner", "main", learner_ports, plan.build_learner)
    weights_in = Port(Kind.CELL, "in", weights)

    if roles == "fused":
        ports = {"tickets": stream("in", TICKET), "weights": weights_in, "unrolls": stream("out", unrolls)}
        nodes = [Node(f"actor.{i}", "actor", workers[i], ports, partial(plan.build_actor, i)) for i in groups]
        ticket_ends = [End(f"actor.{i}", "tickets") for i in groups]
        makers, deciders = [node.name for node in nodes], [node.name for node in nodes]
        between: list[Link] = []
    else:
        steps = {"decisions": broadcast("in", decisions), "scenes": broadcast("out", scenes)}
        gather = {"scenes": broadcast("in", scenes), "decisions": broadcast("in", decisions)}
        gather |= {"unrolls": stream("out", unrolls)}
        decide: dict[str, Port] = {"weights": weights_in}
        for i in groups:
            decide |= {f"scenes.{i}": broadcast("in", scenes), f"decisions.{i}": broadcast("out", decisions)}
            decide |= {f"tickets.{i}": stream("in", TICKET)}
        nodes = [
            *(
                Node(f"environment.{i}", "environment", workers[i], steps, partial(plan.build_environment, i))
                for i in groups
            ),
            Node("inference", "inference", inference_place, decide, plan.build_inference),
            *(Node(f"collector.{i}", "collector", collector_places[i], gather, plan.build_collector) for i in groups),
        ]
        ticket_ends = [End("inference", f"tickets.{i}") for i in groups]
        makers, deciders = [f"collector.{i}" for i in groups], ["inference"]
        between = [link for i in groups for link in _step_links(i)]

    links = [
        *(
            Link(f"tickets.{i}", Kind.STREAM, (End("learner", f"tickets.{i}"),), (ticket_ends[i],), 2 * in_flight)
            for i in groups
        ),
        Link(
            "weights",
            Kind.CELL,
            (End("learner", "weights"),),
            tuple(End(d, "weights") for d in deciders),
            max(versions, plan.versions or 0),
        ),
        *between,
        Link(
            "unrolls",
            Kind.STREAM,
            tuple(End(m, "unrolls") for m in makers),
            (End("learner", "unrolls"),),
            in_flight + plan.spare_slots,
        ),
    ]
    return Graph((*nodes, learner), tuple(links))


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


TOPOLOGIES = {"sync": sync, "async": asynchronous}
