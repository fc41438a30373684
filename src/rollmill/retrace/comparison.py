"""Ties a retrace to its flight log: tickets follow the log, and results are compared with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rollmill.errors import RollmillError
from rollmill.fields import Fields
from rollmill.flight.log import Flight, checksums, learned_checksum
from rollmill.flight.records import CHECKSUMS, Consumed
from rollmill.learners.ledger import Ledger
from rollmill.models.weights import parameters_sha256
from rollmill.nested import Nested
from rollmill.retrace.script import Script
from rollmill.transport.ports import Sender
from rollmill.types import Array, Metrics, Ticket


class Diverged(RollmillError):
    """The retrace differs from the flight log."""

    def __init__(self, update: int, field: str, why: str, ticket: Ticket | None = None) -> None:
        unroll = "" if ticket is None else f"actor {ticket.actor}, unroll {ticket.sequence}, "
        super().__init__(f"diverged at update {update}: {unroll}field {field}: {why}")
        self.update, self.field, self.why, self.ticket = update, field, why, ticket

    @property
    def facts(self) -> dict[str, Any]:
        """The same as plain values, for JSON."""
        actor, unroll, _ = self.ticket or (None, None, None)
        return {"update": self.update, "actor": actor, "unroll": unroll, "field": self.field, "why": self.why}


class RetraceHooks:
    """Is called during a retrace, with the stack intact; this one does nothing."""

    def begun(self) -> None:
        """Everything is built; no step has been made yet."""

    def about_to_update(self, update: int) -> None:
        """The unrolls of the update are compared, and it is about to begin."""

    def diverged(self, divergence: Diverged) -> None:
        """It is about to be raised."""


class ScriptedLedger(Ledger):
    """Gives the tickets of the script one by one; the next when the unroll of the last has arrived.

    It limits nothing, no worker is replaced, and no checkpoint is made: those methods do nothing.
    """

    def __init__(
        self,
        script: Script,
        until: int,
        ports: Sequence[Sender],
        give_up: Callable[[int, list[int]], None],
        updates: Callable[[], int],
        hooks: RetraceHooks,
    ) -> None:
        self._script, self._until, self._ports, self._give_up = script, until, ports, give_up
        self._updates = updates  # that are made
        self._hooks = hooks
        self._sequences = [0] * len(ports)  # of the unroll that each actor makes next
        self._given = 0  # the update whose tickets were given last
        self._waiting: list[Consumed] = []
        self._impossible: Diverged | None = None  # what is wrong with the tickets of the update

    def give(self, version: int) -> None:
        """The first ticket of the next update; nothing if it was given before."""
        update = self._updates() + 1
        if self._given < update <= self._until:
            self._given = update
            self._waiting = list(self._script.unrolls(update))
            try:
                for unroll in self._waiting:
                    self._check(update, unroll.ticket)
            except Diverged as divergence:  # raised later: the update before is not over yet
                self._impossible = divergence
            else:
                self._next()

    def send(self) -> None:
        """Nothing is unsent here; raise if the script has an impossible ticket."""
        if self._impossible is not None:
            self._hooks.diverged(self._impossible)
            raise self._impossible

    def arrived(self, ticket: Ticket) -> None:
        """Give the next ticket."""
        self._next()

    def missing(self) -> list[int]:
        """The actors that the script still waits for."""
        return sorted({unroll.ticket.actor for unroll in self._waiting})

    is_idle = False  # a script with too few unrolls is a divergence, not missing experience
    limit = None
    in_flight = 0

    def state(self) -> dict[str, Any]:
        """Nothing: a retrace makes no checkpoints."""
        return {}

    def _check(self, update: int, ticket: Ticket) -> None:
        """Raise for tickets that no learner can have given: they would never be answered."""
        if ticket.actor >= len(self._ports):
            raise Diverged(update, "actor", f"there are only {len(self._ports)} actors", ticket)
        if ticket.sequence != self._sequences[ticket.actor]:
            raise Diverged(update, "sequence", f"its next unroll is {self._sequences[ticket.actor]}", ticket)
        if ticket.version >= update:
            why = f"made with version {ticket.version} of the weights, which is not there before the update"
            raise Diverged(update, "version", why, ticket)
        self._sequences[ticket.actor] += 1

    def _next(self) -> None:
        if not self._waiting:
            return
        ticket = self._waiting.pop(0).ticket
        if rows := self._script.lost.get(ticket[:2]):
            self._give_up(ticket.actor, rows)
        port = self._ports[ticket.actor]
        lease = port.reserve()
        assert lease is not None, "the ticket before it was used"
        lease.arrays["ticket"][:] = ticket
        port.commit(lease)


class Checker(Flight):
    """Compares what happens with the script."""

    def __init__(self, script: Script, fields: Fields, hooks: RetraceHooks) -> None:
        self._script, self._fields, self._hooks = script, fields, hooks
        self.hashes: list[int] = []  # updates after which the parameters were compared
        self._compared = 0  # unrolls of the update that comes next

    def consumed(self, update: int, unrolls: Sequence[tuple[Ticket, int, Mapping[str, Nested]]]) -> None:
        """Compare unrolls before an update learns from them."""
        logged, begin = self._script.unrolls(update), self._compared
        self._compared += len(unrolls)
        if self._compared > len(logged):
            self._miscounted(update)
        for (ticket, _, arrays), entry in zip(unrolls, logged[begin:], strict=False):
            if ticket != entry.ticket:
                why = f"unroll {entry.ticket.sequence} of actor {entry.ticket.actor} is in its place in the log"
                self._diverge(update, "order", why, ticket)
            for name, now, then in zip(CHECKSUMS, checksums(arrays, self._fields), entry.checksums, strict=True):
                if now != then:
                    why = f"another one than in the log (made with version {ticket.version} of the weights)"
                    self._diverge(update, name, why, ticket)

    def updating(self, update: int) -> None:
        """Compare the number of unrolls."""
        if self._compared != len(self._script.unrolls(update)):
            self._miscounted(update)
        self._compared = 0
        self._hooks.about_to_update(update)

    def updated(self, update: int, metrics: Metrics, weights: Callable[[], Mapping[str, Array]]) -> None:
        """Compare what the update reports, and the hash where there is one."""
        if update > len(self._script.updates):
            self._diverge(update, "attempt", "it ended the run then, and passes now")
        if learned_checksum(metrics) != self._script.updates[update - 1].learned:
            self._diverge(update, "metrics", "the same unrolls in this order led to other losses")
        if (expected := self._script.hashes.get(update)) is not None:
            if (sha256 := parameters_sha256(dict(weights()))) != expected:
                self._diverge(update, "parameters_sha256", f"{sha256}, in the log {expected}")
            self.hashes.append(update)

    def _miscounted(self, update: int) -> NoReturn:
        logged = len(self._script.unrolls(update))
        self._diverge(update, "unrolls", f"it learns from {self._compared}, in the log from {logged}")

    def _diverge(self, update: int, field: str, why: str, ticket: Ticket | None = None) -> NoReturn:
        divergence = Diverged(update, field, why, ticket)
        self._hooks.diverged(divergence)
        raise divergence
