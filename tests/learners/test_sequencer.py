"""The sequencer takes unrolls in one fixed order, and counts them when the store commits them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rollmill.events import Progress
from rollmill.learners.sequencer import Sequencer
from rollmill.learners.stopwatch import Stopwatch
from rollmill.transport.ports import Lease, PortCounters
from rollmill.types import ArraySpec, Flow, Problem, Ticket

ACTORS, T, K = 3, 4, 2
PROBLEM = Problem(ArraySpec((1,), "float32"), ArraySpec((), "int64"), {})


class Inbox:
    """The receiving end of the unrolls."""

    def __init__(self):
        self.counters, self.leases, self.released = PortCounters(), [], []

    def take(self):
        return self.leases.pop(0) if self.leases else None

    def release(self, lease):
        self.released.append(lease.key)


class Outbox:
    """The sending end of an actor's tickets."""

    def __init__(self):
        self.counters, self.sent = PortCounters(), []

    def reserve(self):
        return Lease({"ticket": np.zeros(3, np.int64)}, 0)

    def commit(self, lease):
        self.sent.append(Ticket(*lease.arrays["ticket"].tolist()))


class EmptyStore:
    def waiting(self):
        return []


def unroll(ticket, key, ended=()):
    """Every environment valid; `ended` are the (step, environment, return) of the episodes that end."""
    terminated, returns = np.zeros((T, K), bool), np.zeros((T, K))
    for t, k, value in ended:
        terminated[t, k], returns[t, k] = True, value
    arrays = {
        "ticket": np.array(ticket),
        "seconds": np.zeros(3),
        "length": np.array(T),
        "obs": np.zeros((T + 1, K, 1), np.float32),
        "reset": np.concatenate([np.zeros((1, K), bool), terminated]),
        "action": np.zeros((T, K), np.int64),
        "terminated": terminated,
        "truncated": np.zeros((T, K), bool),
        "valid": np.ones((T, K), bool),
        "episode_return": returns,
        "episode_length": np.ones((T, K), np.int64),
        "last_state": {},
        "broken": np.zeros(K, bool),
        "snapshot": np.zeros((K, 0), np.uint8),
        **{name: np.zeros(K, np.int64) for name in ("episode", "failures", "troubles")},
    }
    return Lease(arrays, key)


def make(has_begun=True, **flow):
    inbox = Inbox()
    flow = Flow(**{"unrolls": ACTORS, "in_flight": 1} | flow)
    sequencer = Sequencer(inbox, [Outbox() for _ in range(ACTORS)], 2, EmptyStore(), flow, PROBLEM, Stopwatch())
    if has_begun:
        sequencer.ledger.give(0)
    return sequencer, inbox


def taken_from(sequencer):
    sequencer.receive()
    return list(iter(sequencer.take, None))


@pytest.mark.parametrize("arrival", list(itertools.permutations(range(ACTORS))))
def test_ordered_unrolls_are_taken_by_ticket_whenever_they_arrive(arrival):
    sequencer, inbox = make()
    taken = []
    for actor in arrival:
        inbox.leases.append(unroll((actor, 0, 0), actor))
        taken += [item.ticket.actor for item in taken_from(sequencer)]
    assert taken == [0, 1, 2]


def test_ordered_unrolls_of_an_actor_that_is_ahead_wait_for_the_others():
    sequencer, inbox = make(unrolls=3, in_flight=2)
    tickets = [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    inbox.leases = [unroll((*ticket, 0), number) for number, ticket in enumerate(tickets)]
    assert [item.ticket[:2] for item in taken_from(sequencer)] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)]


def test_unordered_unrolls_are_taken_as_they_arrive():
    sequencer, inbox = make(is_ordered=False)
    inbox.leases = [unroll((actor, 0, 0), actor) for actor in (2, 0, 1)]
    assert [item.ticket.actor for item in taken_from(sequencer)] == [2, 0, 1]


def test_steps_scores_and_resume_points_advance_when_unrolls_are_committed():
    sequencer, inbox = make()
    inbox.leases = [unroll((0, 0, 0), 0, [(1, 0, 5.0)]), unroll((1, 0, 0), 1, [(0, 1, 7.0)]), unroll((2, 0, 0), 2)]
    unrolls = taken_from(sequencer)
    assert (sequencer.env_steps, sequencer.scores.episodes) == (0, 0)
    assert sequencer.capture()[0] == {}
    ended = sequencer.commit(unrolls[:2])
    assert ended.returns == (7.0, 5.0), "in the order of time"
    assert sequencer.env_steps == 2 * T * K
    assert sorted({name.split(".")[0] for name in sequencer.capture()[0]}) == ["0", "1"]
    assert inbox.released == []
    sequencer.release(unrolls[:2], Progress(0, 0, 0, 1))
    assert inbox.released == [0, 1]


def test_resume_points_follow_what_has_arrived_and_is_not_yet_taken():
    sequencer, inbox = make()
    inbox.leases = [unroll((2, 0, 0), 2)]
    assert taken_from(sequencer) == []
    assert list(sequencer.resume_points()) == [2]


def test_a_restored_sequencer_expects_the_unrolls_that_were_not_committed():
    sequencer, inbox = make()
    inbox.leases = [unroll((actor, 0, 0), actor) for actor in range(ACTORS)]
    unrolls = taken_from(sequencer)
    sequencer.commit(unrolls)
    sequencer.release(unrolls, Progress(0, 0, 0, 1))
    sequencer.ledger.give(1)
    inbox.leases = [unroll((1, 1, 1), 1)]
    assert taken_from(sequencer) == []

    arrays, state = sequencer.capture()
    resumed, inbox = make(has_begun=False)
    resumed.restore(arrays, state, sequencer.env_steps, 1)
    resumed.ledger.give(1)
    inbox.leases = [unroll((actor, 1, 1), actor) for actor in (2, 1, 0)]
    assert [(item.ticket.actor, item.incarnation) for item in taken_from(resumed)] == [(0, 1), (1, 1), (2, 1)]
