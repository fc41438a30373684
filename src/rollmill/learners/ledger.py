"""The tickets that are out, and how many there may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rollmill.errors import Stalled
from rollmill.transport.ports import Sender
from rollmill.types import Flow, Ticket

FEWEST_MEASURED = 16  # updates whose mean lag is compared with the target


class LagController:
    """Keeps the mean lag below a target by limiting the unrolls in flight.

    An unroll waits for those that are ahead of it: with N in flight and U consumed per update, its lag is about
    N / U - 1, which gives the first allowance. After a change it waits until all that was in flight before is consumed,
    and then takes the mean over enough updates to separate a trend from chance.
    """

    def __init__(self, flow: Flow, actors: int) -> None:
        self._target, self._unrolls = flow.target_lag, flow.unrolls
        self._most = actors * flow.in_flight
        expected = self._most if flow.target_lag is None else int(flow.unrolls * (flow.target_lag + 1))
        self.allowed = min(max(expected, flow.unrolls), self._most)
        self._settling = self._turn(self.allowed)  # updates to skip: their lag is still that of the old limit
        self._sum, self._count = 0.0, 0  # of the lags since then

    @property
    def is_limiting(self) -> bool:
        """Fewer are allowed than the actors could have."""
        return self.allowed < self._most

    def measured(self, lag: float) -> bool:
        """Record the mean lag of an update; returns whether the limit changed."""
        if self._target is None:
            return False
        if self._settling:
            self._settling -= 1
            return False
        self._sum, self._count = self._sum + lag, self._count + 1
        if self._count < max(self._turn(self.allowed), FEWEST_MEASURED):
            return False
        mean, before = self._sum / self._count, self.allowed
        self._sum, self._count = 0.0, 0
        if mean > self._target:
            excess = int((mean - self._target) * self._unrolls)
            self.allowed = max(before - max(excess, 1), self._unrolls)
        elif mean + 1 / self._unrolls <= self._target:
            self.allowed = min(before + 1, self._most)
        if self.allowed != before:
            self._settling = self._turn(before)
        return self.allowed != before

    def _turn(self, in_flight: int) -> int:
        """Updates in which so many unrolls are consumed."""
        return -(-in_flight // self._unrolls)

    def state(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"allowed": self.allowed}

    def restore(self, state: Mapping[str, float]) -> None:
        """Restore what `state` returned; nothing is in flight yet, so it settles again."""
        self.allowed = min(max(int(state["allowed"]), self._unrolls), self._most)
        self._settling, self._sum, self._count = self._turn(self.allowed), 0.0, 0


class Ledger(Protocol):
    """Decides about tickets; the sequencer reports everything that happens to them.

    What a ledger need not know does nothing by default.
    """

    def give(self, version: int) -> None:
        """Weights of `version` are published: hand out tickets that name them."""

    def send(self) -> None:
        """Send tickets for which the port was full before."""

    def arrived(self, ticket: Ticket) -> None:
        """The unroll of a ticket is here."""

    def consumed(self, tickets: Sequence[Ticket]) -> None:
        """The unrolls of these tickets were learned from."""
        return

    def reissue(self, actor: int, version: int) -> None:
        """The actor was rebuilt; what was sent to the old one is lost."""
        return

    def missing(self) -> list[int]:
        """The actors whose unrolls are waited for."""

    def measured(self, lag: float) -> int | None:
        """Record the mean lag of an update; returns the new limit of unrolls in flight if it changed."""
        return None

    @property
    def is_idle(self) -> bool:
        """No ticket is out, so no further unroll will come."""

    @property
    def limit(self) -> int | None:
        """How many unrolls may be in flight where that is fewer than the actors could make."""

    @property
    def in_flight(self) -> int:
        """Unrolls from their ticket until they are consumed."""

    def state(self) -> dict[str, Any]:
        """For a checkpoint; unrolls that are not consumed are not part of it: they will be made again."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        return


class TicketLedger:
    """Gives tickets while fewer unrolls than allowed are in flight, to the actor that has the fewest of them.

    An unroll is in flight from its ticket until it is consumed. One per actor, all consumed by one update, is
    synchronous training; with more of them no actor waits, and lag is the cost.
    """

    def __init__(self, ports: Sequence[Sender], flow: Flow, versions_kept: int) -> None:
        self._ports = ports
        self._versions_kept = versions_kept
        self._next = [0] * len(ports)  # sequence number of each actor's next ticket
        self._out: list[deque[Ticket]] = [deque() for _ in ports]  # given, and their unrolls are not here
        self._here = [0] * len(ports)  # unrolls that came and are not consumed
        self._unsent: list[deque[Ticket]] = [deque() for _ in ports]  # given, but the port was full
        self.controller = LagController(flow, len(ports))

    def give(self, version: int) -> None:
        """Send as many tickets as allowed; replace those whose version is no longer kept."""
        for actor, out in enumerate(self._out):
            if out and out[0].version <= version - self._versions_kept:
                # all of them, because the others would come out of order
                self._replace(actor, version)
        in_flight = [here + len(out) for here, out in zip(self._here, self._out, strict=True)]
        while sum(in_flight) < self.controller.allowed:
            # the actor with the fewest has fewer than an actor may have: the limit is at most that times all actors
            actor = min(range(len(in_flight)), key=lambda a: (in_flight[a], self._next[a], a))
            in_flight[actor] += 1
            ticket = Ticket(actor, self._next[actor], version)
            self._next[actor] += 1
            self._out[actor].append(ticket)
            self._unsent[actor].append(ticket)
        self.send()

    def send(self) -> None:
        """Send tickets for which the port was full before."""
        for actor in range(len(self._ports)):
            self._send(actor)

    def arrived(self, ticket: Ticket) -> None:
        """The unroll of a ticket is here; of a replaced ticket either version may come, but once."""
        out = self._out[ticket.actor]
        if not out or out[0].sequence != ticket.sequence:
            raise Stalled(f"unroll {ticket} came out of order; expected {out[0] if out else 'none'}")
        out.popleft()
        self._here[ticket.actor] += 1

    def consumed(self, tickets: Sequence[Ticket]) -> None:
        """Room for further tickets."""
        for ticket in tickets:
            self._here[ticket.actor] -= 1

    def reissue(self, actor: int, version: int) -> None:
        """Send all tickets again whose unrolls are not here."""
        self._unsent[actor].clear()
        self._replace(actor, version)
        self._send(actor)

    def missing(self) -> list[int]:
        """The actors that hold tickets."""
        return [actor for actor, out in enumerate(self._out) if out]

    def measured(self, lag: float) -> int | None:
        """Record the mean lag of an update; returns the new limit of unrolls in flight if it changed."""
        return self.controller.allowed if self.controller.measured(lag) else None

    @property
    def is_idle(self) -> bool:
        """No ticket is out, so no further unroll will come."""
        return not any(self._out)

    @property
    def limit(self) -> int | None:
        """How many unrolls may be in flight where that is fewer than the actors could make."""
        return self.controller.allowed if self.controller.is_limiting else None

    @property
    def in_flight(self) -> int:
        """Unrolls from their ticket until they are consumed."""
        return sum(self._here) + sum(map(len, self._out))

    def state(self) -> dict[str, Any]:
        """For a checkpoint; unrolls that are not consumed are not part of it: they will be made again."""
        begun = [n - here - len(out) for n, here, out in zip(self._next, self._here, self._out, strict=True)]
        return {"sequences": begun, "controller": self.controller.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._next = list(state["sequences"])
        if "controller" in state:
            self.controller.restore(state["controller"])

    def _replace(self, actor: int, version: int) -> None:
        renewed = [ticket._replace(version=version) for ticket in self._out[actor]]
        self._out[actor] = deque(renewed)
        self._unsent[actor] = deque(renewed)

    def _send(self, actor: int) -> None:
        port, unsent = self._ports[actor], self._unsent[actor]
        while unsent and (lease := port.reserve()) is not None:
            lease.arrays["ticket"][:] = unsent.popleft()
            port.commit(lease)
