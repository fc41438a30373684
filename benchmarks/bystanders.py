"""How much of the machine others took during a run, which the loop before and after it can't see."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

BUSY = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat: user, nice, system, irq, softirq, steal; not idle and waiting

QUIET_CORES = 0.1  # more than this, and a run counts as disturbed
GLANCE = 3.0  # seconds of watching that tell a quiet machine


class Bystanders:
    """Cores kept busy, on average, by anybody but this process and the children it has waited for."""

    def __init__(self) -> None:
        self._start = self._now()

    def cores(self) -> float:
        """Since construction; 0 on a quiet machine."""
        wall, everybody, own = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return max(0.0, (everybody - own) / wall)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = Path("/proc/stat").read_text().splitlines()[0].split()[1:]
        everybody = sum(int(ticks[column]) for column in BUSY) / os.sysconf("SC_CLK_TCK")
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), everybody, sum(usage.ru_utime + usage.ru_stime for usage in usages)


def wait_for_quiet(deadline: float) -> None:
    """Returns when nobody else uses the machine, at the latest at `deadline` (of `perf_counter`)."""
    while time.perf_counter() < deadline:
        bystanders = Bystanders()
        time.sleep(GLANCE)
        if bystanders.cores() < QUIET_CORES:
            return
