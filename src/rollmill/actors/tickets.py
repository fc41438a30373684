"""Taking tickets from a port."""

from __future__ import annotations

from rollmill.models.weights import WeightsLoader
from rollmill.transport.ports import CellReader, Receiver
from rollmill.types import Ticket


class Turn:
    """Whose turn it is: the next ticket of one actor, once the weights that it names are loaded.

    A ticket waits in line while training continues, so that its version may be gone when its turn comes. The learner
    knows that by the same arithmetic and sends another one for the same unroll; those in between are out of order then
    and come again, too.
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
                    return None  # not there yet, or being overwritten: then its replacement is on the way
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
