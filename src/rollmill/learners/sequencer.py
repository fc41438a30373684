"""The sequencer decides the order of everything: tickets, unrolls, and when an unroll counts.

Unrolls are taken in one fixed order: by ticket in synchronous training, by arrival in asynchronous training, where the
flight log records the order before anything depends on it. Env steps, scores and resume points advance when the store
commits an unroll, and at no other time. What is not committed when a run ends is made again after a resume.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rollmill.events import Progress
from rollmill.flight.log import Flight
from rollmill.learners.journal import Journal
from rollmill.learners.ledger import Ledger, TicketLedger
from rollmill.learners.scores import Ended, Scores
from rollmill.learners.stopwatch import Stopwatch
from rollmill.learners.tap import Tap
from rollmill.nested import Nested
from rollmill.stores.store import LeasedUnroll, Store
from rollmill.transport.ports import Receiver, Sender
from rollmill.types import Array, Flow, Problem, ResumePoint, Ticket


class Sequencer:
    """Takes unrolls in order, gives out tickets, and counts what is committed. It doesn't know the model."""

    def __init__(
        self,
        unrolls: Receiver,
        tickets: Sequence[Sender],
        versions_kept: int,
        store: Store,
        flow: Flow,
        problem: Problem,
        stopwatch: Stopwatch,
    ) -> None:
        self.tickets, self.store = tickets, store
        self.ledger: Ledger = TicketLedger(tickets, flow, versions_kept)
        self.flight = Flight()
        self.tap: Tap | None = None
        self.scores = Scores()
        self.env_steps = 0
        self._unrolls, self._stopwatch = unrolls, stopwatch
        self._journal = Journal(problem)
        self._troubles = 0
        self._incarnations = [0] * len(tickets)
        self._is_ordered = flow.is_ordered
        self._next = [0] * len(tickets)  # sequence number of each actor's next unroll, where they are ordered
        self._arrived: dict[tuple[int, int], LeasedUnroll] = {}  # by actor and sequence: not yet taken

    def receive(self) -> None:
        """Receive the unrolls that have arrived, and send tickets that found no room before."""
        while (lease := self._unrolls.take()) is not None:
            ticket = Ticket(*(int(n) for n in lease.arrays["ticket"]))
            unroll = LeasedUnroll(ticket, self._incarnations[ticket.actor], lease)
            self._stopwatch.collected(ticket.actor, *unroll.arrays["seconds"].tolist()[:2])
            self.ledger.arrived(ticket)
            self._arrived[ticket[:2]] = unroll
        self.ledger.send()

    def take(self) -> LeasedUnroll | None:
        """The next unroll in order, if it has arrived: by ticket, the actors in turn, or the first that arrived."""
        if not self._is_ordered:
            return self._arrived.pop(next(iter(self._arrived))) if self._arrived else None
        actor = min(range(len(self._next)), key=lambda a: (self._next[a], a))
        unroll = self._arrived.pop((actor, self._next[actor]), None)
        self._next[actor] += unroll is not None
        return unroll

    @property
    def is_between_rounds(self) -> bool:
        """Whether further tickets may be given: where unrolls are ordered, not before all in flight are consumed.

        So no ticket is out while the updates of a round are made, and a resumed run gives the same ones.
        """
        return not self._is_ordered or not self.ledger.in_flight

    def announce(self, unrolls: Sequence[LeasedUnroll], update: int) -> None:
        """Log unrolls that `update` is about to depend on."""
        if not unrolls:
            return
        self._note_lost_episodes(unrolls, update)
        self.flight.consumed(update, [(unroll.ticket, unroll.incarnation, unroll.arrays) for unroll in unrolls])
        self._troubles += sum(int(unroll.arrays["troubles"].sum()) for unroll in unrolls)

    def commit(self, unrolls: Sequence[LeasedUnroll]) -> Ended:
        """Count the steps of unrolls and the episodes that ended in them; those episodes."""
        for unroll in unrolls:
            self._journal.advance(unroll.ticket.actor, unroll.arrays)
            self.env_steps += unroll.steps
        return self.scores.add([unroll.arrays for unroll in unrolls])

    def release(self, unrolls: Sequence[LeasedUnroll], progress: Progress) -> None:
        """Give the slots of committed unrolls back to the actors, or first to the tap."""
        for unroll in unrolls:
            release = partial(self._unrolls.release, unroll.lease)
            if self.tap is None or not self.tap.offer(unroll, release, progress):
                release()
        self.ledger.consumed([unroll.ticket for unroll in unrolls])

    def resume_points(self) -> dict[int, ResumePoint]:
        """The resume point of each actor after its last unroll that has arrived; actors without one are left out."""
        ahead: dict[int, list[Mapping[str, Nested]]] = {}
        arrived = sorted(self._arrived.values(), key=lambda unroll: unroll.ticket)
        for unroll in (*self.store.waiting(), *arrived):
            ahead.setdefault(unroll.ticket.actor, []).append(unroll.arrays)
        return self._journal.resume_points(ahead)

    def reissue(self, actor: int, version: int, update: int) -> None:
        """Send the actor's tickets again after it was rebuilt: the new one never received them."""
        self._incarnations[actor] += 1
        self.flight.note("replaced", update, actor=actor, incarnation=self._incarnations[actor])
        self.ledger.reissue(actor, version)

    @property
    def failures(self) -> dict[str, int]:
        """Calls in which an environment failed, and environments that are quarantined."""
        return {"environments": self._troubles, "quarantined": self._journal.quarantined}

    def flow_metrics(self, unrolls: Sequence[LeasedUnroll], version: int, update: int) -> dict[str, float]:
        """Lag of the unrolls, and port statistics since the last call."""
        lags = [version - unroll.ticket.version for unroll in unrolls]
        age: dict[str, float] = {}
        if lags:
            age = {"lag/min": float(min(lags)), "lag/mean": sum(lags) / len(lags), "lag/max": float(max(lags))}
            if (limit := self.ledger.measured(age["lag/mean"])) is not None:
                self.flight.note("limit", update, in_flight=limit)
        taken, given = self._unrolls.counters.drain(), [port.counters.drain() for port in self.tickets]
        return {
            **age,
            "port/in_flight": float(self.ledger.in_flight + len(lags)),
            "port/unrolls_depth": float(taken.depth_peak),
            "port/unrolls_waits": float(taken.waited),
            "port/tickets_refused": float(sum(counters.refused for counters in given)),
            "port/drops": float(sum(counters.dropped for counters in (taken, *given))),
        }

    def capture(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and plain values for a checkpoint: what is committed, and nothing that is in flight."""
        return self._journal.arrays(), {
            "scores": self.scores.state(),
            "troubles": self._troubles,
            "incarnations": self._incarnations,
            "ledger": self.ledger.state(),
            "pending": [entry.values() for entry in self.flight.pending],
        }

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any], env_steps: int, updates: int) -> None:
        """Restore what `capture` returned; all actors are new incarnations."""
        self._journal.restore(arrays)
        self.scores.restore(state["scores"])
        self._troubles, self.env_steps = state["troubles"], env_steps
        # older checkpoints without a ledger are all of synchronous runs
        self._incarnations = [n + 1 for n in state.get("incarnations", self._incarnations)]
        ledger = state.get("ledger") or {"sequences": [updates] * len(self.tickets)}
        self.ledger.restore(ledger)
        self._next = list(ledger["sequences"])

    def _note_lost_episodes(self, unrolls: Sequence[LeasedUnroll], update: int) -> None:
        """Log running episodes that a new incarnation of an actor could not restore: nothing else records that."""
        ends: dict[int, Array] = {}
        for unroll in unrolls:
            actor, sequence, _ = unroll.ticket
            begins, after = unroll.arrays["reset"], int(unroll.arrays["length"])
            expected = ends.get(actor, self._journal.begins(actor))
            if expected is not None and (rows := np.flatnonzero(begins[0] & ~expected)).size:
                self.flight.note("lost", update - 1, actor=actor, sequence=sequence, rows=rows.tolist())
            ends[actor] = begins[after]
