"""CPU seconds of a process and of all that it has started."""

from __future__ import annotations

import os
from dataclasses import dataclass

from rollmill.launch.proc import pids, read_stat


@dataclass(frozen=True)
class Usage:
    """One process at one moment."""

    pid: int
    parent: int
    name: str
    seconds: float  # of CPU, user and system, all threads


def family_usage(root: int) -> dict[int, Usage]:
    """The process and its descendants."""
    everybody = {usage.pid: usage for usage in map(_read, pids()) if usage is not None}
    family: dict[int, Usage] = {}
    for pid, usage in everybody.items():
        line, current = [pid], usage
        while current.pid != root and current.parent in everybody and current.parent not in line:
            current = everybody[current.parent]
            line.append(current.pid)
        if current.pid == root:
            family[pid] = usage
    return family


def spent(before: dict[int, Usage], after: dict[int, Usage]) -> dict[int, tuple[str, float]]:
    """Name and CPU seconds of every process of the second look, since the first."""
    return {
        pid: (usage.name, usage.seconds - (before[pid].seconds if pid in before else 0.0))
        for pid, usage in after.items()
    }


def _read(pid: int) -> Usage | None:
    stat = read_stat(pid)  # None if it has ended meanwhile
    return stat and Usage(pid, stat.parent, stat.name, stat.cpu_ticks / os.sysconf("SC_CLK_TCK"))
