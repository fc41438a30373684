"""What a component sees of its connections: leases, never slots, queues or processes.

Three kinds of link exist: a *stream* (bounded, every message is consumed once, in order per producer), a *broadcast*
(every consumer sees every message) and a *cell* (versioned values, the newest few are kept). A full stream
never blocks: `reserve` returns None, and only the runtime waits.

    lease = unrolls.reserve()          # producer             lease = unrolls.take()        # consumer
    if lease is not None:                                     if lease is not None:
        lease.arrays["reward"][:] = …                             use(lease.arrays)
        unrolls.commit(lease)                                     unrolls.release(lease)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Generic, NamedTuple, Protocol, TypeVar

from rollmill.nested import Nested


class Kind(StrEnum):
    """What a link does with a message."""

    STREAM = "stream"
    BROADCAST = "broadcast"
    CELL = "cell"


class Lease(NamedTuple):
    """The right to write or read one message; `key` belongs to the transport."""

    arrays: Nested
    key: int


@dataclass
class PortCounters:
    """Counts of one end of a port, for the depth, wait and drop metrics."""

    passed: int = 0  # messages committed, taken or written
    refused: int = 0  # times reserve() found no room: back-pressure
    waited: int = 0  # times take() or read() found nothing
    dropped: int = 0  # messages given up because there was no room for them
    depth_peak: int = 0  # most messages waiting at once, seen by the consumer

    def drain(self) -> PortCounters:
        """The counts since the last call; they restart at zero."""
        counted = replace(self)
        self.passed = self.refused = self.waited = self.dropped = self.depth_peak = 0
        return counted


class Sender(Protocol):
    """The producing end of a stream or broadcast."""

    counters: PortCounters

    def reserve(self) -> Lease | None:
        """A lease for one message, or None while every slot is in use."""

    def commit(self, lease: Lease) -> None:
        """Hand the written message to the consumers."""


class Receiver(Protocol):
    """The consuming end of a stream or broadcast."""

    counters: PortCounters

    def take(self) -> Lease | None:
        """The next message, or None when there is none now."""

    def release(self, lease: Lease) -> None:
        """Give the message's room back; its arrays must not be used afterwards."""


class CellReader(Protocol):
    """A reading end of a cell."""

    counters: PortCounters
    depth: int  # versions kept

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""

    def read_into(self, version: int, target: Nested) -> bool:
        """Copy exactly `version` into `target`; False while it isn't there, or when it is no longer kept."""


class Cell(CellReader, Protocol):
    """The writing end of a cell, which can read too."""

    def write(self, version: int, values: Nested) -> None:
        """Publish `values` as `version`; readers are never waited for."""


S = TypeVar("S", bound=Sender, covariant=True)
R = TypeVar("R", bound=Receiver, covariant=True)
C = TypeVar("C", bound=Cell, covariant=True)


@dataclass
class Attached(Generic[S, R, C]):
    """The ports of one component by name; a graph is checked when it is made, so what a component names exists."""

    senders: dict[str, S] = field(default_factory=dict)
    receivers: dict[str, R] = field(default_factory=dict)
    writers: dict[str, C] = field(default_factory=dict)
    readers: dict[str, C] = field(default_factory=dict)


Ports = Attached[Sender, Receiver, Cell]  # of any transport
