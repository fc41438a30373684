"""The part of a training that is looked at: from its first update until it is told to end."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from rollmill.observe.events import Progress, Updated
from rollmill.profiling.native import NativeSampler
from rollmill.profiling.usage import Usage, family_usage, spent
from rollmill.sampling import BEGUN, OVER, Sampler


class Window:
    """Opened and closed once; stacks, CPU seconds and `seconds` are of the same stretch of time."""

    def __init__(self, stacks: Path, native: NativeSampler | None) -> None:
        stacks.mkdir()
        self._stacks, self._native = stacks, native
        self._sampler = Sampler("main", stacks)
        self._is_open = self._is_closed = False
        self._opened = self._closed = 0.0
        self._before: dict[int, Usage] = {}
        self._after: dict[int, Usage] = {}
        self._first = self._last = Progress(0, 0, 0, 0)
        self._clocks: dict[str, float] = {}  # seconds by the components' own account

    def see(self, event: Updated) -> None:
        """Begin with the first update; count the others until it is closed."""
        if self._is_closed:
            return
        if not self._is_open:
            self._first = self._last = event.progress
            self._open()
            return
        passed = event.progress.seconds - self._last.seconds
        for name, share in event.metrics.items():
            if name.startswith("time/"):
                name = name.removeprefix("time/")
                self._clocks[name] = self._clocks.get(name, 0.0) + share * passed
        self._last = event.progress

    def close(self) -> None:
        """Look no more. A signal's handler may call it, so nothing here waits for another thread."""
        if not self._is_open or self._is_closed:
            return
        self._is_closed = True
        self._closed = perf_counter()
        self._sampler.end()
        with suppress(OSError):  # a full disk: workers end by themselves soon
            (self._stacks / OVER).touch()
        self._after = family_usage(os.getpid())  # while the workers live
        if self._native is not None:
            self._native.stop()

    def finish(self) -> None:
        """Wait until what was seen is written."""
        self.close()
        if self._is_open:
            self._sampler.stop()

    @property
    def seconds(self) -> float:
        """That have passed in it, or did."""
        if not self._is_open:
            return 0.0
        return (self._closed if self._is_closed else perf_counter()) - self._opened

    @property
    def updates(self) -> int:
        """Between the first and the last that were seen."""
        return self._last.updates - self._first.updates

    @property
    def steps_per_second(self) -> float:
        """Between these two."""
        return (self._last.env_steps - self._first.env_steps) / self._trained

    @property
    def clocks(self) -> dict[str, float]:
        """Shares of the time between these two, by the components' own account."""
        return {name: seconds / self._trained for name, seconds in self._clocks.items()}

    @property
    def used(self) -> dict[int, tuple[str, float]]:
        """Name and CPU seconds of every process that there was at the end."""
        return spent(self._before, self._after)

    @property
    def _trained(self) -> float:
        return max(self._last.seconds - self._first.seconds, 1e-9)

    def _open(self) -> None:
        self._before = family_usage(os.getpid())
        self._opened = perf_counter()
        (self._stacks / BEGUN).touch()
        self._sampler.start()
        if self._native is not None:
            self._native.start()
        self._is_open = True  # last: a signal in between finds nothing to close yet
