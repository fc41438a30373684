"""Links between processes: anonymous shared memory holds the messages, pipes carry slot numbers.

The memory is a `memfd` that never has a name, so nothing is left when every process that maps it is gone. A slot
number is four bytes in a pipe; such writes are atomic, so several producers may share a consumer's pipe, and no pipe
can fill up because it never holds more numbers than there are slots. All descriptors are made by the parent and
inherited; a plan is a small record of their numbers.

When a process dies, the parent resets its ends (`empty_ready`, `empty_free`, `start_over`), and the
process that replaces it attaches to the same descriptors; a slot that a living consumer still reads stays in use.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.transport.ports import Attached, Lease, PortCounters

_TOKEN = struct.Struct("=I")
ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


def _anonymous_memory(name: str, size: int) -> int:
    """A descriptor of fresh zeroed memory, never empty; pages are taken only when they are first touched."""
    descriptor = os.memfd_create(f"rollmill-{name}", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, max(size, 1))  # an empty file can't be mapped
    return descriptor


def aligned(size: int) -> int:
    """`size` rounded up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


class Layout:
    """Offsets of every leaf of a nested spec, each aligned to 64 bytes."""

    def __init__(self, spec: Nested) -> None:
        self.spec = spec
        self.nbytes = 0
        self.offsets = self._place(spec)
        self.nbytes = max(self.nbytes, ALIGNMENT)

    def _place(self, spec: Nested) -> Nested:
        """Offsets in the shape of the spec (and not by path: keys may contain whatever joins a path)."""
        if isinstance(spec, dict):
            return {key: self._place(spec[key]) for key in sorted(spec)}
        offset = self.nbytes
        self.nbytes += aligned(spec.nbytes)
        return offset

    def views(self, memory: Any, start: int = 0) -> Nested:
        """Nested arrays over `memory` (anything with the buffer protocol), beginning at `start`."""
        return nested.map_leaves(
            lambda spec, offset: np.ndarray(spec.shape, spec.dtype, buffer=memory, offset=start + offset),
            self.spec,
            self.offsets,
        )


@dataclass(frozen=True)
class ChannelPlan:
    """A stream or broadcast as descriptor numbers; every process attaches to it for itself."""

    spec: Nested
    depth: int  # slots per producer
    memory: int
    free: tuple[tuple[int, int], ...]  # (read, write) ends of one pipe per producer: slots it may use
    ready: tuple[tuple[int, int], ...]  # one pipe per consumer: slots it may read

    @property
    def descriptors(self) -> list[int]:
        """Every descriptor that a process needs to inherit."""
        return [self.memory, *(end for pipe in (*self.free, *self.ready) for end in pipe)]

    def sender(self, producer: int, busy: tuple[int, ...] = ()) -> SharedSender:
        """Attach as producer number `producer`; the slots `busy` of a former one are still to be given back."""
        return SharedSender(self, producer, busy)

    def receiver(self, consumer: int) -> SharedReceiver:
        """Attach as consumer number `consumer`."""
        return SharedReceiver(self, consumer)

    def empty_free(self, producer: int) -> None:
        """Discard the slots that were given back to a dead producer."""
        _Tokens(self.free[producer][0]).drain()

    def empty_ready(self, consumer: int) -> None:
        """Discard the messages for a dead consumer."""
        _Tokens(self.ready[consumer][0]).drain()


def create_channel(name: str, spec: Nested, producers: int, consumers: int, depth: int) -> ChannelPlan:
    """Memory and pipes for a stream or broadcast; all slots start out free."""
    memory = _anonymous_memory(name, Layout(spec).nbytes * producers * depth)
    free, ready = [_pipe() for _ in range(producers)], [_pipe() for _ in range(consumers)]
    return ChannelPlan(spec, depth, memory, tuple(free), tuple(ready))


def _pipe() -> tuple[int, int]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    return read, write


class _Tokens:
    """Slot numbers that have arrived through a pipe and are not yet used."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.arrived: deque[int] = deque()

    def drain(self) -> None:
        """Take over whatever the pipe holds now; never waits."""
        try:
            data = os.read(self.descriptor, 65536)
        except BlockingIOError:
            return
        self.arrived.extend(number for (number,) in _TOKEN.iter_unpack(data))


class SharedSender:
    """See `ports.Sender`."""

    def __init__(self, plan: ChannelPlan, producer: int, busy: tuple[int, ...] = ()) -> None:
        self._first = producer * plan.depth
        self._range = range(self._first, self._first + plan.depth)
        self._slots = _slot_views(plan, self._range)
        self._free = deque(slot for slot in self._range if slot not in busy)
        self._readers_left = [busy.count(slot) for slot in self._range]
        self._returned = _Tokens(plan.free[producer][0])
        self._ready = [write for _, write in plan.ready]
        self.counters = PortCounters()

    def fileno(self) -> int:
        """Readable when a slot was given back."""
        return self._returned.descriptor

    def drain(self) -> None:
        """Take over the slots that consumers gave back."""
        self._returned.drain()
        while self._returned.arrived:
            slot = self._returned.arrived.popleft()
            self._readers_left[slot - self._first] -= 1
            if self._readers_left[slot - self._first] == 0:
                self._free.append(slot)

    def start_over(self) -> None:
        """Every slot is free again: their readers are dead."""
        self._returned.drain()
        self._returned.arrived.clear()
        self._free = deque(self._range)
        self._readers_left = [0] * len(self._range)

    def reserve(self) -> Lease | None:
        """Room for one message, or None."""
        if not self._free:
            self.drain()
            if not self._free:
                self.counters.refused += 1
                return None
        slot = self._free.popleft()
        return Lease(self._slots[slot - self._first], slot)

    def commit(self, lease: Lease) -> None:
        """Hand the message over; the write to the pipe orders the memory before it."""
        self._readers_left[lease.key - self._first] = len(self._ready)
        token = _TOKEN.pack(lease.key)
        for descriptor in self._ready:
            os.write(descriptor, token)
        self.counters.passed += 1


class SharedReceiver:
    """See `ports.Receiver`."""

    def __init__(self, plan: ChannelPlan, consumer: int) -> None:
        self._depth = plan.depth
        self._slots = _slot_views(plan, range(plan.depth * len(plan.free)))
        self._tokens = _Tokens(plan.ready[consumer][0])
        self._free = [write for _, write in plan.free]
        self._leased: set[int] = set()
        self.taken = [0] * len(plan.free)  # messages so far, by producer
        self.counters = PortCounters()

    def fileno(self) -> int:
        """Readable when a message has come."""
        return self._tokens.descriptor

    def drain(self) -> None:
        """Take over the messages that have come."""
        self._tokens.drain()

    def take(self) -> Lease | None:
        """The next message, or None."""
        arrived = self._tokens.arrived
        if not arrived:
            self._tokens.drain()
            if not arrived:
                self.counters.waited += 1
                return None
        self.counters.depth_peak = max(self.counters.depth_peak, len(arrived))
        self.counters.passed += 1
        slot = arrived.popleft()
        self._leased.add(slot)
        self.taken[slot // self._depth] += 1
        return Lease(self._slots[slot], slot)

    def in_use(self, producer: int) -> tuple[int, ...]:
        """The slots of a producer that have come and are not given back."""
        return tuple(slot for slot in (*self._leased, *self._tokens.arrived) if slot // self._depth == producer)

    def release(self, lease: Lease) -> None:
        """Give the slot back to the producer that owns it."""
        self._leased.discard(lease.key)
        os.write(self._free[lease.key // self._depth], _TOKEN.pack(lease.key))


def _slot_views(plan: ChannelPlan, slots: range) -> list[Nested]:
    layout = Layout(plan.spec)
    memory = mmap.mmap(plan.memory, 0)  # all of it
    return [layout.views(memory, slot * layout.nbytes) for slot in slots]


@dataclass(frozen=True)
class CellPlan:
    """A cell as a descriptor number."""

    spec: Nested
    depth: int  # versions kept
    memory: int

    @property
    def descriptors(self) -> list[int]:
        """Every descriptor that a process needs to inherit."""
        return [self.memory]

    def attach(self) -> SharedCell:
        """The cell in this process; the writer is the caller of write()."""
        return SharedCell(self)


def create_cell(name: str, spec: Nested, depth: int) -> CellPlan:
    """Memory for a cell that keeps the newest `depth` versions."""
    layout = Layout(spec)
    return CellPlan(spec, depth, _anonymous_memory(name, _header_bytes(depth) + depth * layout.nbytes))


def _header_bytes(depth: int) -> int:
    return aligned((1 + 2 * depth) * 8)


class SharedCell:
    """A few versions side by side, each under a sequence lock: odd while being written.

    Versions are stored plus one, so that fresh zeroed memory reads as "nothing yet". A reader that meets a half-written
    version sees the lock change and refuses it; the writer never waits. The stores are ordered on x86; elsewhere the
    ticket that announces a version travels through a pipe, and that system call is the barrier.
    """

    def __init__(self, plan: CellPlan) -> None:
        layout = Layout(plan.spec)
        header = _header_bytes(plan.depth)
        memory = mmap.mmap(plan.memory, header + plan.depth * layout.nbytes)
        words = np.ndarray((1 + 2 * plan.depth,), np.int64, buffer=memory)
        self._newest, self._versions, self._locks = words[:1], words[1 : 1 + plan.depth], words[1 + plan.depth :]
        self._kept = [layout.views(memory, header + place * layout.nbytes) for place in range(plan.depth)]
        self.depth = plan.depth
        self.counters = PortCounters()

    @property
    def version(self) -> int:
        """The newest version, -1 before the first."""
        return int(self._newest[0]) - 1

    def write(self, version: int, values: Nested) -> None:
        """Publish `values` as `version`."""
        place = version % len(self._kept)
        self._locks[place] += 1
        self._versions[place] = version + 1
        nested.copy_into(self._kept[place], values)
        self._locks[place] += 1
        self._newest[0] = version + 1
        self.counters.passed += 1

    def read_into(self, version: int, target: Nested) -> bool:
        """Copy exactly `version` into `target`; False if it isn't kept, or was overwritten meanwhile."""
        place = version % len(self._kept)
        before = int(self._locks[place])
        if before % 2 == 0 and self._versions[place] == version + 1:
            nested.copy_into(target, self._kept[place])
            if self._locks[place] == before and self._versions[place] == version + 1:
                return True
        self.counters.waited += 1
        return False


SharedPorts = Attached[SharedSender, SharedReceiver, SharedCell]
