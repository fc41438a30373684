"""Tickets: who gets how many, what becomes of those that outlive their weights, and how many the controller allows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from rollmill.actors.tickets import Turn
from rollmill.algorithms.appo import APPOConfig
from rollmill.errors import Refused, Stalled
from rollmill.learners.ledger import LagController, TicketLedger
from rollmill.models.weights import WeightsLoader, weights_of, weights_spec
from rollmill.transport.local import LocalCell, LocalChannel
from rollmill.types import TICKET, Flow, Ticket


class Table:
    """A ledger and the actors at the other end of its ports, over real local links; actors play when told to."""

    def __init__(self, actors, flow, versions=2, room=None):
        self.channels = [LocalChannel(TICKET, 1, 1, room or flow.in_flight) for _ in range(actors)]
        self.ledger = TicketLedger([channel.sender(0) for channel in self.channels], flow, versions)
        self.network = torch.nn.Linear(1, 1)
        self.cell = LocalCell(weights_spec(self.network.state_dict()), versions)
        self.turns = [self.new_turn(actor) for actor in range(actors)]
        self.version = -1

    def new_turn(self, actor):
        return Turn(self.channels[actor].receiver(0), self.cell, WeightsLoader(torch.nn.Linear(1, 1).state_dict()))

    def publish(self):
        """The next version, and the tickets that follow from it."""
        self.version += 1
        self.cell.write(self.version, weights_of(self.network))
        self.ledger.give(self.version)

    def play(self, actor):
        """The actor makes an unroll, if it may, and the learner takes it in."""
        ticket = self.turns[actor].ready()
        if ticket is not None:
            self.turns[actor].used()
            self.ledger.arrived(ticket)
            self.ledger.send()
        return ticket

    def waiting(self, actor):
        """The tickets in the actor's port, in order."""
        channel = self.channels[actor]
        return [Ticket(*channel.slots[slot]["ticket"].tolist()) for slot in channel.ready[0]]


def test_synchronous_training_is_one_ticket_per_actor_and_update():
    table = Table(3, Flow(unrolls=3, in_flight=1))
    for update in range(4):
        table.publish()
        assert [table.waiting(actor) for actor in range(3)] == [[Ticket(actor, update, update)] for actor in range(3)]
        table.ledger.give(table.version)
        played = [table.play(actor) for actor in range(3)]
        assert table.ledger.missing() == []
        table.ledger.give(table.version)
        assert not any(table.waiting(actor) for actor in range(3)), "what is here but not consumed is in flight"
        table.ledger.consumed(played)


def test_no_actor_has_more_in_flight_than_allowed_and_none_is_forgotten():
    rng = np.random.default_rng(0)
    table, store, consumed = Table(4, Flow(unrolls=3, in_flight=2), versions=12), [], Counter()
    table.publish()
    for _ in range(2000):
        if ticket := table.play(int(rng.integers(4))):
            store.append(ticket)
        in_flight = Counter(t.actor for t in store)
        in_flight.update(t.actor for out in table.ledger._out for t in out)
        assert max(in_flight.values()) <= 2
        assert table.ledger.in_flight == sum(in_flight.values()) <= 8
        if len(store) >= 3 and rng.random() < 0.5:
            table.ledger.consumed(store[:3])
            consumed.update(t.actor for t in store[:3])
            del store[:3]
            table.publish()
    assert sum(consumed.values()) > 600
    assert max(consumed.values()) - min(consumed.values()) < 0.3 * max(consumed.values()), consumed


def test_sequences_of_an_actor_have_no_gap_and_versions_never_go_back():
    """The second actor is twenty times as slow, so that its tickets outlive their weights again and again."""
    rng = np.random.default_rng(1)
    table, played = Table(2, Flow(unrolls=1, in_flight=3), versions=2), [[], []]
    table.publish()
    replaced = 0
    for _ in range(3000):
        actor = int(rng.random() < 0.05)
        table.turns[1].ready()  # begins as soon as it can
        table.ledger.send()
        if ticket := table.play(actor):
            replaced += ticket.version - table.version <= -2
            played[actor].append(ticket)
            table.ledger.consumed([ticket])
            table.publish()
    for tickets in played:
        assert [t.sequence for t in tickets] == list(range(len(tickets)))
        assert [t.version for t in tickets] == sorted(t.version for t in tickets)
    assert len(played[1]) > 100
    assert replaced > 50, "unrolls of the slow one are older than what is kept"


def test_with_few_allowed_they_go_round():
    """Two in flight for five actors: each gets its turn."""
    table, served = Table(5, Flow(unrolls=1, in_flight=4)), []
    table.ledger.controller.allowed = 2
    table.publish()
    for _ in range(20):
        oldest = min((t for out in table.ledger._out for t in out), key=lambda t: (t.version, t.actor))
        served.append(oldest.actor)
        table.ledger.consumed([table.play(oldest.actor)])
        table.publish()
        assert table.ledger.in_flight == 2
    assert Counter(served) == dict.fromkeys(range(5), 4)


def test_a_ticket_whose_version_is_gone_is_replaced_and_used_once():
    """Two versions are kept; actor 1 sleeps through four updates."""
    table = Table(2, Flow(unrolls=1, in_flight=2))
    table.publish()
    assert table.waiting(1) == [Ticket(1, 0, 0), Ticket(1, 1, 0)]
    for _ in range(4):
        table.ledger.consumed([table.play(0)])
        table.publish()
    # versions 3 and 4 are kept, and the port is still full of the old tickets: the new ones wait for room
    assert table.waiting(1) == [Ticket(1, 0, 0), Ticket(1, 1, 0)]
    assert table.turns[1].ready() is None, "both of them are gone"
    table.ledger.send()
    assert table.waiting(1) == [Ticket(1, 0, 4), Ticket(1, 1, 4)]
    assert table.play(1) == Ticket(1, 0, 4)
    assert table.play(1) == Ticket(1, 1, 4)
    assert table.play(1) is None
    assert table.ledger._here == [0, 2]


def test_an_actor_that_had_loaded_the_old_weights_plays_with_them_and_drops_the_replacement():
    """The other outcome of the race: the unroll comes with the old version, and its replacement is never played."""
    table = Table(2, Flow(unrolls=1, in_flight=2), room=4)
    table.ledger.controller.allowed = 3
    table.publish()
    assert table.turns[1].ready() == Ticket(1, 0, 0)  # from here on it is playing
    table.ledger.controller.allowed = 4
    for _ in range(4):
        table.ledger.consumed([table.play(0)])
        table.publish()
    # unroll 0 was replaced when version 2 came, and unroll 1 with it; both again when version 4 came
    assert table.waiting(1) == [Ticket(1, 1, 1), Ticket(1, 0, 2), Ticket(1, 1, 2), Ticket(1, 0, 4)]
    assert table.play(1) == Ticket(1, 0, 0), "the same ticket until it is used"
    assert table.play(1) is None, "what is gone is left out, and so are further tickets for unroll 0"
    table.ledger.send()
    assert table.play(1) == Ticket(1, 1, 4)
    assert table.play(1) is None
    assert table.ledger.missing() == [0]


def test_a_ticket_that_is_faster_than_its_weights_waits_for_them():
    table = Table(1, Flow(unrolls=1, in_flight=1))
    table.ledger.give(0)
    assert table.turns[0].ready() is None
    assert table.turns[0].ready() is None
    table.cell.write(0, weights_of(table.network))
    assert table.play(0) == Ticket(0, 0, 0)


def test_while_its_weights_are_being_overwritten_an_actor_waits_for_the_replacement():
    table = Table(1, Flow(unrolls=1, in_flight=1))
    table.publish()
    table.cell._versions[0] = -1  # as the writer of version 2 leaves it while version 1 is the newest
    table.cell.version = 1
    assert table.turns[0].ready() is None
    table.version = 1
    table.publish()
    assert table.play(0) == Ticket(0, 0, 2)


def test_another_incarnation_gets_all_tickets_again_and_begins_where_the_last_one_stood():
    table = Table(2, Flow(unrolls=4, in_flight=3))
    table.publish()
    first = table.play(1)
    table.channels[1] = LocalChannel(TICKET, 1, 1, 3)  # the links of the dead one are renewed
    table.ledger._ports[1] = table.channels[1].sender(0)
    table.turns[1] = table.new_turn(1)
    table.ledger.reissue(1, table.version)
    assert first == Ticket(1, 0, 0)
    assert [table.play(1) for _ in range(3)] == [Ticket(1, 1, 0), Ticket(1, 2, 0), None]
    assert table.ledger.in_flight == 6


def test_tickets_that_find_no_room_are_sent_later_and_in_order():
    table = Table(1, Flow(unrolls=3, in_flight=3), room=1)
    table.publish()
    assert table.waiting(0) == [Ticket(0, 0, 0)]
    assert [table.play(0) for _ in range(4)] == [Ticket(0, 0, 0), Ticket(0, 1, 0), Ticket(0, 2, 0), None]
    assert table.ledger._ports[0].counters.refused > 0


@pytest.mark.parametrize("wrong", [Ticket(0, 1, 0), Ticket(0, 7, 0)])
def test_an_unroll_out_of_order_is_a_defect(wrong):
    table = Table(1, Flow(unrolls=1, in_flight=2))
    table.publish()
    with pytest.raises(Stalled, match="came out of order"):
        table.ledger.arrived(wrong)


def test_a_checkpoint_makes_again_what_was_in_flight():
    table = Table(2, Flow(unrolls=1, in_flight=2))
    table.publish()
    consumed, waits = table.play(0), table.play(0)
    table.ledger.consumed([consumed])
    table.publish()
    assert waits == Ticket(0, 1, 0)
    state = table.ledger.state()
    assert state["sequences"] == [1, 0], "what waits in the store is lost with it"
    again = Table(2, Flow(unrolls=1, in_flight=2))
    again.ledger.restore(state)
    again.version = table.version - 1
    again.publish()
    assert again.waiting(0) == [Ticket(0, 1, 1), Ticket(0, 2, 1)]
    assert again.waiting(1) == [Ticket(1, 0, 1), Ticket(1, 1, 1)]


def settled(flow, actors, updates, rng=None):
    """The mean lag of each update with the controller's allowance beside it; with `rng` unrolls overtake each other."""
    controller, flight, found = LagController(flow, actors), [], []
    for version in range(updates):
        flight += [version] * (controller.allowed - len(flight))
        taken = [flight.pop(int(rng.integers(min(3, len(flight)))) if rng else 0) for _ in range(flow.unrolls)]
        lag = version - sum(taken) / len(taken)
        found.append((lag, controller.allowed))
        controller.measured(lag)
    return found


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
@pytest.mark.parametrize(
    ("actors", "in_flight", "unrolls", "target"), [(8, 4, 1, 3.0), (8, 4, 1, 0.5), (6, 4, 4, 2.0), (4, 2, 2, 1.5)]
)
def test_the_controller_keeps_the_mean_lag_under_its_target(actors, in_flight, unrolls, target, seed):
    rng = None if seed is None else np.random.default_rng(seed)
    found = settled(Flow(unrolls, in_flight, target), actors, 2000, rng)
    lags, allowed = zip(*found[400:], strict=True)
    assert np.mean(lags) <= target + (0.05 if rng else 0.0)
    assert np.mean(lags) >= target - 1, "and doesn't throw away more than one unroll's worth"
    assert min(allowed) >= unrolls


def test_the_controller_begins_with_what_its_target_allows():
    """One consumed per update: with 4 in flight an unroll waits for 3 others."""
    assert {allowed for _, allowed in settled(Flow(1, 4, 3.0), 8, 200)} == {4}


def test_the_controller_does_not_mistake_what_was_in_flight_before_a_change_for_its_effect():
    """32 in flight, one consumed: a turn shows 31, so 4 are allowed, and that stays although 28 must go first.

    32 updates fill the flight and 32 are measured.
    """
    controller = LagController(Flow(1, 4, 3.0), 8)
    controller.restore({"allowed": 32})
    flight, allowed = [], []
    for version in range(200):
        flight += [version] * (controller.allowed - len(flight))
        allowed.append(controller.allowed)
        controller.measured(version - flight.pop(0))
    assert set(allowed[:64]) == {32}
    assert set(allowed[64:]) == {4}


def test_a_target_that_is_never_reached_changes_nothing():
    assert {allowed for _, allowed in settled(Flow(2, 2, 50.0), 4, 200)} == {8}
    assert {allowed for _, allowed in settled(Flow(1, 4, None), 8, 200)} == {32}


def test_the_controller_comes_back_as_it_was():
    controller = LagController(Flow(1, 4, 3.0), 8)
    while not controller.measured(1.0):
        pass
    again = LagController(Flow(1, 4, 3.0), 8)
    again.restore(controller.state())
    assert again.allowed == controller.allowed == 5


def test_settings_under_which_every_unroll_would_be_too_old_are_refused():
    """Otherwise such a run continues to its end without having learned anything."""
    config = APPOConfig(unrolls=1, in_flight=2, max_lag=20)
    assert config.flow(10).in_flight == 2
    with pytest.raises(Refused, match=r"max_lag=20 would leave out every unroll.*lag by 31 updates"):
        config.flow(16)
    assert config.model_copy(update={"target_lag": 5.0}).flow(16).target_lag == 5.0
