"""Signs of life of the workers: pulses and stacks."""

from __future__ import annotations

import mmap
import os
import signal
import time
from contextlib import suppress
from time import monotonic

from rollmill.launch.pulse import LINE_BYTES, HangTimer, Pulse
from rollmill.runtime.config import RuntimeConfig

DUMP_SECONDS = 0.5  # that a hung worker has to write down its stacks


class Vitals:
    """The pulses of all workers, in one piece of shared memory, and a file for the stacks of each."""

    def __init__(self, places: tuple[str, ...], config: RuntimeConfig) -> None:
        self._limit = config.env_seconds
        self._memory = os.memfd_create("rollmill-pulses", os.MFD_CLOEXEC)
        os.ftruncate(self._memory, max(len(places), 1) * LINE_BYTES)  # there may be no workers
        self._view = memoryview(mmap.mmap(self._memory, 0))
        self._starts = {place: number * LINE_BYTES for number, place in enumerate(places)}
        self._pulses = {place: Pulse() for place in places}
        self._patience: dict[str, HangTimer] = {}
        # Not a file of the run folder, for it must take the stacks of a worker also when the disk is full.
        self._stacks = {place: os.memfd_create(f"rollmill-stack-{place}", os.MFD_CLOEXEC) for place in places}

    @property
    def descriptors(self) -> list[int]:
        """What a worker must inherit."""
        return [self._memory, *self._stacks.values()]

    def plan(self, place: str) -> tuple[tuple[int, int], int]:
        """Where a worker's pulse and stacks go; see `WorkerPlan`."""
        return (self._memory, self._starts[place]), self._stacks[place]

    def renew(self, place: str) -> None:
        """Another worker begins here."""
        start = self._starts[place]
        self._pulses[place].attach(self._view[start : start + LINE_BYTES])
        self._patience[place] = HangTimer(self._limit)
        os.ftruncate(self._stacks[place], 0)
        os.lseek(self._stacks[place], 0, os.SEEK_SET)

    def hung(self, place: str) -> str | None:
        """What the worker hangs in and for how long, or None."""
        return self._patience[place].look(self._pulses[place])

    def dump(self, place: str, pid: int) -> str:
        """The stacks of all threads of a worker; "" if it doesn't react."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGUSR2)
        file, size = self._stacks[place], -1
        deadline = monotonic() + DUMP_SECONDS
        while monotonic() < deadline and (size <= 0 or size != os.fstat(file).st_size):
            size = os.fstat(file).st_size
            time.sleep(0.05)
        return os.pread(file, 1 << 20, 0).decode(errors="replace")
