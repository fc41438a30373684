"""Taking tickets from a port."""

from __future__ import annotations

from rollmill.transport.ports import Receiver
from rollmill.types import Ticket


def take_ticket(port: Receiver) -> Ticket | None:
    """The next ticket, or None when the learner has given none."""
    lease = port.take()
    if lease is None:
        return None
    ticket = Ticket(*(int(n) for n in lease.arrays["ticket"]))
    port.release(lease)
    return ticket
