"""Memory of every process of a run, sampled while it trains, and by how much it grew."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

EDGE = 0.1  # the share of the samples whose median is the start, and of those whose median is the end
FEWEST = 20  # samples that tell a growth from a ripple


@dataclass(frozen=True)
class Sample:
    """One look at one process, in MB."""

    env_steps: int
    own: float  # written by this process and shared with no other, also where it is swapped out
    resident: float  # everything that is mapped and in memory, libraries and shared memory included


@dataclass(frozen=True)
class Growth:
    """From the first samples to the last."""

    start: float  # MB
    end: float

    @property
    def percent(self) -> float:
        return 100.0 * (self.end - self.start) / self.start


class ProcessTree:
    """The samples of a process and of all that descend from it, by name: main, guardian, forkserver, worker.0, …"""

    def __init__(self, main: int) -> None:
        self._main = psutil.Process(main)
        self._names = {main: "main"}
        self.samples: dict[str, list[Sample]] = {}

    def look(self, env_steps: int) -> None:
        """Sample every process that lives; one that is gone when we get there is left out."""
        for process in [self._main, *_descendants(self._main)]:
            try:
                name = self._names.get(process.pid) or self._named(process)
                sample = Sample(env_steps, *_memory(process.pid))
            except (psutil.Error, OSError):
                continue
            self.samples.setdefault(name, []).append(sample)

    def _named(self, process: psutil.Process) -> str:
        """A name for a process that is new; a replaced worker counts as another."""
        command = " ".join(process.cmdline())
        if self._names.get(process.ppid()) == "forkserver":
            kind = f"worker.{sum(name.startswith('worker') for name in self._names.values())}"
        else:
            kind = next((kind for kind in ("guardian", "forkserver") if kind in command), f"helper {process.pid}")
        return self._names.setdefault(process.pid, kind)


def growth(values: Sequence[float]) -> Growth | None:
    """Between the medians of the first and of the last tenth; None of too few values."""
    if len(values) < FEWEST:
        return None
    edge = max(1, round(len(values) * EDGE))
    return Growth(statistics.median(values[:edge]), statistics.median(values[-edge:]))


def thinned(samples: Sequence[Sample], count: int = 60) -> Iterable[Sample]:
    """At most about `count` of them, evenly spread, for a file that people read."""
    return samples[:: -(-len(samples) // count) or 1]


def _memory(pid: int) -> tuple[float, float]:
    """Own and resident MB.

    What psutil calls unique (USS) has the clean pages of libraries that nobody else uses right now: it changes when
    another program that uses them starts or ends.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kilobytes = {line.partition(":")[0]: int(line.split()[1]) for line in lines}
    return (kilobytes["Private_Dirty"] + kilobytes["Swap"]) / 1024, kilobytes["Rss"] / 1024


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
