"""One body of claims, every transport: a link behaves the same inside a process and between processes."""

from __future__ import annotations

import os
import select
import subprocess
import sys

import numpy as np
import pytest

from rollmill import nested
from rollmill.transport import local, shared
from rollmill.transport.shared import ALIGNMENT, Layout
from rollmill.types import ArraySpec

SPEC = {"x": ArraySpec((3,), "float32"), "deep": {"flag": ArraySpec((), "bool")}}


def make_channel(kind, producers=1, consumers=1, depth=2):
    if kind == "local":
        return local.LocalChannel(SPEC, producers, consumers, depth)
    return shared.create_channel("test", SPEC, producers, consumers, depth)


def make_cell(kind, depth=2):
    if kind == "local":
        cell = local.LocalCell(SPEC, depth)
        return cell, cell
    plan = shared.create_cell("test", SPEC, depth)
    return plan.attach(), plan.attach()  # two mappings, as two processes have


def values(number):
    return {"x": np.full(3, number, np.float32), "deep": {"flag": np.array(number % 2 == 1)}}


def send(sender, number):
    lease = sender.reserve()
    assert lease is not None
    lease.arrays["x"][:] = number
    lease.arrays["deep"]["flag"][...] = number % 2 == 1
    sender.commit(lease)


def receive(receiver):
    lease = receiver.take()
    if lease is None:
        return None
    number = int(lease.arrays["x"][0])
    assert lease.arrays["deep"]["flag"] == (number % 2 == 1)
    receiver.release(lease)
    return number


both = pytest.mark.parametrize("kind", ["local", "shared"])


@both
def test_a_stream_keeps_order_and_refuses_when_full(kind):
    channel = make_channel(kind, depth=2)
    sender, receiver = channel.sender(0), channel.receiver(0)
    send(sender, 1)
    send(sender, 2)
    assert sender.reserve() is None, "two slots hold two messages: the third must be refused, not block"
    assert sender.counters.refused == 1
    assert receive(receiver) == 1
    send(sender, 3)
    assert [receive(receiver) for _ in range(3)] == [2, 3, None]
    assert receiver.counters.passed == 3
    assert receiver.counters.depth_peak == 2
    assert receiver.counters.waited == 1


@both
def test_a_slot_that_is_taken_but_not_released_stays_in_use(kind):
    channel = make_channel(kind, depth=1)
    sender, receiver = channel.sender(0), channel.receiver(0)
    send(sender, 7)
    lease = receiver.take()
    assert sender.reserve() is None
    assert lease.arrays["x"][0] == 7
    receiver.release(lease)
    assert sender.reserve() is not None


@both
def test_a_broadcast_reaches_everyone_and_frees_its_slot_after_the_last(kind):
    channel = make_channel(kind, consumers=2, depth=1)
    sender, first, second = channel.sender(0), channel.receiver(0), channel.receiver(1)
    send(sender, 5)
    assert receive(first) == 5
    assert sender.reserve() is None, "the second consumer has not read it yet"
    assert receive(second) == 5
    assert sender.reserve() is not None


@both
def test_producers_have_their_own_slots(kind):
    channel = make_channel(kind, producers=2, depth=1)
    one, two, receiver = channel.sender(0), channel.sender(1), channel.receiver(0)
    send(one, 1)
    assert one.reserve() is None
    send(two, 2)
    assert sorted([receive(receiver), receive(receiver)]) == [1, 2]
    assert one.reserve() is not None
    assert two.reserve() is not None


@both
def test_a_cell_gives_exactly_the_version_asked_for(kind):
    writer, reader = make_cell(kind, depth=2)
    target = values(0)
    assert reader.version == -1
    assert not reader.read_into(0, target)
    for version in range(5):
        writer.write(version, values(10 + version))
    assert reader.version == 4
    assert reader.read_into(3, target)
    assert target["x"].tolist() == [13, 13, 13]
    assert reader.read_into(4, target)
    assert target["x"].tolist() == [14, 14, 14]
    assert not reader.read_into(2, target), "version 2 was overwritten by 4"
    assert target["x"].tolist() == [14, 14, 14], "a refused read changes nothing"


def test_a_cell_that_is_being_written_is_refused():
    plan = shared.create_cell("test", SPEC, 2)
    writer, reader = plan.attach(), plan.attach()
    writer.write(0, values(1))
    writer._locks[0] += 1  # a writer that stopped half-way
    assert not reader.read_into(0, values(0))


def test_fields_are_aligned():
    layout = Layout(SPEC)
    assert all(offset % ALIGNMENT == 0 for _, offset in nested.leaves(layout.offsets))
    assert layout.nbytes == 2 * ALIGNMENT  # a bool and three floats, one line each
    memory = bytearray(layout.nbytes)
    layout.views(memory)["x"][:] = 1.0
    assert not layout.views(memory)["deep"]["flag"]


def test_keys_with_dots_do_not_share_memory():
    layout = Layout({"a.b": ArraySpec((), "int64"), "a": {"b": ArraySpec((), "int64")}})
    views = layout.views(bytearray(layout.nbytes))
    views["a.b"][...], views["a"]["b"][...] = 1, 2
    assert (int(views["a.b"]), int(views["a"]["b"])) == (1, 2)


def test_a_message_crosses_to_another_process_and_the_ready_pipe_wakes_a_poll():
    to_child = shared.create_channel("there", SPEC, 1, 1, 1)
    to_parent = shared.create_channel("back", SPEC, 1, 1, 1)
    code = """
import pickle, select, sys
there, back = pickle.load(sys.stdin.buffer)
receiver, sender = there.receiver(0), back.sender(0)
poll = select.poll(); poll.register(receiver.fileno(), select.POLLIN); poll.poll(10_000)
message = receiver.take(); number = message.arrays["x"][0]; receiver.release(message)
answer = sender.reserve(); answer.arrays["x"][:] = number * 2; answer.arrays["deep"]["flag"][...] = False
sender.commit(answer)
"""
    import pickle

    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, pass_fds=[*to_child.descriptors, *to_parent.descriptors]
    )
    child.stdin.write(pickle.dumps((to_child, to_parent)))
    child.stdin.close()
    receiver = to_parent.receiver(0)
    send(to_child.sender(0), 21)
    poll = select.poll()
    poll.register(receiver.fileno(), select.POLLIN)
    assert poll.poll(20_000), "no answer within 20 s"
    assert receive(receiver) == 42
    assert child.wait(10) == 0
    assert not [name for name in os.listdir("/dev/shm") if "rollmill" in name]


def test_a_new_producer_waits_for_a_slot_of_the_old_one_that_is_still_read():
    channel = shared.create_channel("test", SPEC, 2, 1, 1)
    old, neighbour, receiver = channel.sender(0), channel.sender(1), channel.receiver(0)
    send(old, 1)
    assert receive(receiver) == 1  # given back, but the old producer dies before it hears of it
    send(old, 2)  # so it heard of the first; the second is being read when it dies
    send(neighbour, 9)
    held = receiver.take()
    channel.empty_free(0)
    assert receiver.in_use(0) == (0,), "the neighbour's slot is not meant"
    new = channel.sender(0, busy=receiver.in_use(0))
    assert new.reserve() is None, "the receiver still reads it"
    assert held.arrays["x"][0] == 2
    receiver.release(held)
    send(new, 3)
    assert new.reserve() is None, "one slot, one message: nothing was counted twice"
    assert [receive(receiver), receive(receiver)] == [9, 3]
    assert receiver.taken == [3, 1]


def test_a_slot_given_back_to_a_dead_producer_is_not_counted_for_the_new_one():
    channel = shared.create_channel("test", SPEC, 1, 1, 1)
    send(channel.sender(0), 1)
    receiver = channel.receiver(0)
    assert receive(receiver) == 1
    channel.empty_free(0)
    new = channel.sender(0)
    send(new, 2)
    assert new.reserve() is None, "the old token would have freed a slot that is full"


def test_a_sender_starts_over_when_its_consumer_has_died():
    channel = shared.create_channel("test", SPEC, 1, 1, 1)
    sender, dead = channel.sender(0), channel.receiver(0)
    send(sender, 1)
    assert dead.take() is not None  # and it never gives it back
    assert sender.reserve() is None
    sender.start_over()
    send(sender, 2)
    channel.empty_ready(0)
    assert channel.receiver(0).take() is None, "what was meant for the dead one is gone"
    sender.start_over()
    send(sender, 3)
    assert receive(channel.receiver(0)) == 3
