"""CPU seconds of a process and of all that it has started, read from /proc."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Usage:
    """One process at one moment."""

    pid: int
    parent: int
    name: str
    seconds: float  # of CPU, user and system, all threads


def family_usage(root: int) -> dict[int, Usage]:
    """The process and its descendants."""
    everybody = {usage.pid: usage for usage in map(_read, _numbers()) if usage is not None}
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


def _numbers() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _read(pid: int) -> Usage | None:
    with suppress(OSError):  # it has ended meanwhile
        # the name in parentheses may hold spaces; behind it stand state, parent and, 10 fields further, the times
        head, _, tail = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
        fields = tail.split()
        ticks = int(fields[11]) + int(fields[12])
        return Usage(pid, int(fields[1]), head.partition("(")[2], ticks / os.sysconf("SC_CLK_TCK"))
    return None
