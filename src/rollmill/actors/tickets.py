"""Taking tickets from a port."""

from __future__ import annotations

from rollmill.models.weights import WeightsLoader
from rollmill.transport.ports import CellReader, Receiver
from rollmill.types import Ticket


class Turn:
    """The next ticket of one actor, once the weights that it names are loaded.

    While a ticket waits in its port, training continues, and its version may be dropped before it is used. The learner
    knows when that happens and sends another ticket for the same unroll, and new ones for all unrolls after it; the old
    ones are skipped.
    """

    def __init__(self, tickets: Receiver, weights: CellReader, loader: WeightsLoader) -> None:
        self._tickets, self._weights, self._loader = tickets, weights, loader
        self._ticket: Ticket | None = None  # seen, not used
        self._sequence: int | None = None  # of the unroll that is next; None before the first ticket

    def ready(self) -> Ticket | None:
        """The ticket to be used, its weights loaded; the same one until it is `used`."""
        while (ticket := self._ticket or self._take()) is not None:
            self._sequence = ticket.sequence if self._sequence is None else self._sequence
            if ticket.sequence == self._sequence:
                self._ticket = ticket
                if self._loader.load(self._weights, ticket.version):
                    return ticket
                if self._weights.version < ticket.version + self._weights.depth:
                    return None  # not published yet, or overwritten: then a replacement ticket follows
            self._ticket = None
        return None

    def used(self) -> None:
        """The unroll of the ticket is made."""
        assert self._ticket is not None
        self._sequence, self._ticket = self._ticket.sequence + 1, None

    def _take(self) -> Ticket | None:
        lease = self._tickets.take()
        if lease is None:
            return None
        ticket = Ticket(*(int(n) for n in lease.arrays["ticket"]))
        self._tickets.release(lease)
        return ticket
