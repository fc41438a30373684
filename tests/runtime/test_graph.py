"""A graph is checked when it is made: kinds, directions, shapes and dtypes of both ends."""

from __future__ import annotations

import pytest

from rollmill.runtime.graph import End, Graph, GraphError, Link, Node, Port
from rollmill.transport.ports import Kind
from rollmill.types import ArraySpec


def node(name, **ports):
    return Node(name, "actor", "main", ports, build=lambda name, ports: None)


def out(shape=(2,), dtype="float32", kind=Kind.STREAM):
    return Port(kind, "out", {"x": ArraySpec(shape, dtype)})


def into(shape=(2,), dtype="float32", kind=Kind.STREAM):
    return Port(kind, "in", {"x": ArraySpec(shape, dtype)})


def link(kind=Kind.STREAM):
    return Link("l", kind, (End("a", "o"),), (End("b", "i"),), 1)


def test_equal_ends_fit():
    graph = Graph((node("a", o=out()), node("b", i=into())), (link(),))
    assert "a ──l──► b   [stream, depth 1, 8 B each]" in graph.text()


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        (out(), into((3,)), r"x is ArraySpec\(shape=\(2,\), dtype='float32'\) at a:o but .*\(3,\).* at b:i"),
        (out(), into(dtype="int64"), "dtype='int64'"),
        (out(), into(kind=Kind.CELL), "b:i is a cell in, link l a stream in"),
        (out(), out(), "b:i is a stream out, link l a stream in"),
    ],
)
def test_ends_that_do_not_fit_are_named(source, target, message):
    with pytest.raises(GraphError, match=message):
        Graph((node("a", o=source), node("b", i=target)), (link(),))


def test_a_stream_has_one_consumer_and_a_cell_one_producer():
    ends = (End("b", "i"), End("c", "i"))
    nodes = (node("a", o=out()), node("b", i=into()), node("c", i=into()))
    with pytest.raises(GraphError, match="a stream has one consumer"):
        Graph(nodes, (Link("l", Kind.STREAM, (End("a", "o"),), ends, 1),))
    cell_out, cell_in = out(kind=Kind.CELL), into(kind=Kind.CELL)
    nodes = (node("a", o=cell_out), node("d", o=cell_out), node("b", i=cell_in))
    with pytest.raises(GraphError, match="a cell has one producer"):
        Graph(nodes, (Link("l", Kind.CELL, (End("a", "o"), End("d", "o")), (End("b", "i"),), 1),))


def test_a_port_left_open_or_wired_twice_is_named():
    nodes = (node("a", o=out()), node("b", i=into(), extra=into()))
    with pytest.raises(GraphError, match="not wired: b:extra"):
        Graph(nodes, (link(),))
    with pytest.raises(GraphError, match="a:o is wired twice"):
        Graph(nodes, (link(), Link("m", Kind.STREAM, (End("a", "o"),), (End("b", "extra"),), 1)))
    with pytest.raises(GraphError, match="c:i doesn't exist"):
        Graph(nodes, (Link("n", Kind.STREAM, (End("a", "o"),), (End("c", "i"),), 1),))
