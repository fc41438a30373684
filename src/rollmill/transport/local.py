"""Links inside one process: the reference that every other transport must agree with."""

from __future__ import annotations

from collections import deque

from rollmill import nested
from rollmill.nested import Nested
from rollmill.transport.ports import Attached, Lease, PortCounters


class LocalChannel:
    """A stream or broadcast between components of one process: `depth` slots per producer."""

    def __init__(self, spec: Nested, producers: int, consumers: int, depth: int) -> None:
        self.slots = [nested.map_leaves(lambda leaf: leaf.zeros(), spec) for _ in range(producers * depth)]
        self.free = [deque(range(p * depth, (p + 1) * depth)) for p in range(producers)]
        self.ready: list[deque[int]] = [deque() for _ in range(consumers)]
        self.readers_left = [0] * len(self.slots)
        self.depth = depth

    def sender(self, producer: int) -> LocalSender:
        """The producing end number `producer`."""
        return LocalSender(self, producer)

    def receiver(self, consumer: int) -> LocalReceiver:
        """The consuming end number `consumer`."""
        return LocalReceiver(self, consumer)


class LocalSender:
    """See `ports.Sender`."""

    def __init__(self, channel: LocalChannel, producer: int) -> None:
        self._channel = channel
        self._free = channel.free[producer]
        self.counters = PortCounters()

    def reserve(self) -> Lease | None:
        """Room for one message, or None."""
        if not self._free:
            self.counters.refused += 1
            return None
        slot = self._free.popleft()
        return Lease(self._channel.slots[slot], slot)

    def commit(self, lease: Lease) -> None:
        """Hand the message over."""
        self._channel.readers_left[lease.key] = len(self._channel.ready)
        for queue in self._channel.ready:
            queue.append(lease.key)
        self.counters.passed += 1


class LocalReceiver:
    """See `ports.Receiver`."""

    def __init__(self, channel: LocalChannel, consumer: int) -> None:
        self._channel = channel
        self._ready = channel.ready[consumer]
        self.counters = PortCounters()

    def take(self) -> Lease | None:
        """The next message, or None."""
        if not self._ready:
            self.counters.waited += 1
            return None
        self.counters.depth_peak = max(self.counters.depth_peak, len(self._ready))
        self.counters.passed += 1
        slot = self._ready.popleft()
        return Lease(self._channel.slots[slot], slot)

    def release(self, lease: Lease) -> None:
        """Give the room back once every consumer has."""
        channel = self._channel
        channel.readers_left[lease.key] -= 1
        if channel.readers_left[lease.key] == 0:
            channel.free[lease.key // channel.depth].append(lease.key)


class LocalCell:
    """A versioned cell inside one process; writer and reader in one."""

    def __init__(self, spec: Nested, depth: int) -> None:
        self._kept = [nested.map_leaves(lambda leaf: leaf.zeros(), spec) for _ in range(depth)]
        self._versions = [-1] * depth
        self.version, self.depth = -1, depth
        self.counters = PortCounters()

    def write(self, version: int, values: Nested) -> None:
        """Publish `values` as `version`."""
        place = version % len(self._kept)
        nested.copy_into(self._kept[place], values)
        self._versions[place] = self.version = version
        self.counters.passed += 1

    def read_into(self, version: int, target: Nested) -> bool:
        """Copy exactly `version` into `target`; False if it isn't kept."""
        place = version % len(self._kept)
        if self._versions[place] != version:
            self.counters.waited += 1
            return False
        nested.copy_into(target, self._kept[place])
        return True


LocalPorts = Attached[LocalSender, LocalReceiver, LocalCell]
