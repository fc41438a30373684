"""A measured part of a training, the same for `rollmill profile` and `rollmill tune`, and the CPU seconds in it."""

from __future__ import annotations

import os

from rollmill.events import Progress, Updated
from rollmill.launch.proc import ancestry, pids, read_stat

Usage = dict[int, tuple[str, float]]  # name and CPU seconds (user and system, all threads) by process


class Span:
    """From one update to a later one: steps, seconds, and the share of them that each activity took."""

    def __init__(self, first: Progress) -> None:
        self._first = self._last = first
        self._spent: dict[str, float] = {}  # seconds by the components' own clocks

    def extend(self, event: Updated) -> None:
        """Let it reach up to this update."""
        passed = event.progress.seconds - self._last.seconds
        for name, share in event.metrics.items():
            if name.startswith("time/"):
                name = name.removeprefix("time/")
                self._spent[name] = self._spent.get(name, 0.0) + share * passed
        self._last = event.progress

    @property
    def steps(self) -> int:
        """Environment steps."""
        return self._last.env_steps - self._first.env_steps

    @property
    def updates(self) -> int:
        """Updates after the first."""
        return self._last.updates - self._first.updates

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self._last.seconds - self._first.seconds

    @property
    def shares(self) -> dict[str, float]:
        """Share of the seconds by activity: env, inference, learn, wait."""
        return {name: spent / max(self.seconds, 1e-9) for name, spent in self._spent.items()}


def family_usage(root: int) -> Usage:
    """What a process and its descendants have used so far."""
    stats = {pid: read_stat(pid) for pid in pids() if root in ancestry(pid)}
    ticks = os.sysconf("SC_CLK_TCK")  # per second
    return {pid: (stat.name, stat.cpu_ticks / ticks) for pid, stat in stats.items() if stat is not None}


def spent(before: Usage, after: Usage) -> Usage:
    """What the processes of the second look have used since the first."""
    return {pid: (name, seconds - before.get(pid, (name, 0.0))[1]) for pid, (name, seconds) in after.items()}
