"""Splits the wall time of updates into activities, as seen by the learner."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

FADING = 0.9  # per update, of what is smoothed


class Stopwatch:
    """Splits wall time into learning, stepping environments, deciding (inference) and waiting.

    Actors report the seconds they spent. With `workers` in parallel, the mean per worker is the time that
    collecting took; the rest of the time between two updates is waiting. Where actors don't wait for the learner
    (`overlaps`), their shares cover the same time as the learner's, and the sum may exceed one. Where a separate
    process decides for all workers (`decides_apart`), deciding is not part of the workers' time.
    """

    def __init__(self, workers: int = 1, overlaps: bool = False, decides_apart: bool = False) -> None:
        self._workers, self._overlaps, self._decides_apart = workers, overlaps, decides_apart
        places = [f"worker.{number}" for number in range(workers)] + ["inference"] * decides_apart
        self._busy = dict.fromkeys(places, 0.0)  # seconds of each process, fading with the updates
        self._span = 0.0  # of wall time, fading in the same way
        self._total = dict.fromkeys(("env", "inference", "learn", "wait"), 0.0)
        self.restart()

    def restart(self) -> None:
        """Begin a new update now."""
        self._begun = perf_counter()
        self._learning_since = self._begun
        self._stepping = self._deciding = 0.0

    def collected(self, actor: int, stepping: float, deciding: float) -> None:
        """Count an unroll, with the seconds that its actor reports."""
        worker = f"worker.{actor % self._workers}"
        self._busy[worker] += stepping
        self._busy["inference" if self._decides_apart else worker] += deciding
        self._stepping += stepping
        self._deciding += deciding

    def learning(self) -> None:
        """The batch is complete; learning begins."""
        self._learning_since = perf_counter()

    def updated(self, steps: int) -> dict[str, float]:
        """Shares of the wall time of the update that ends now, and its speed; the next one begins."""
        now = perf_counter()
        wall, learn = now - self._begun, now - self._learning_since
        collect = wall - learn
        # separate roles overlap too, so that the means may add up to more than the wall time
        busy, room = (self._stepping + self._deciding) / self._workers, wall if self._overlaps else collect
        scale = min(1.0, room / busy) / self._workers if busy else 0.0
        spent = {"env": self._stepping * scale, "inference": self._deciding * scale, "learn": learn}
        spent["wait"] = collect if self._overlaps else max(wall - sum(spent.values()), 0.0)
        for name, seconds in spent.items():
            self._total[name] += seconds
        self.restart()
        shares = {f"time/{name}": seconds / wall for name, seconds in spent.items()}
        return {**shares, **self._idle(wall, learn), "steps_per_second": steps / wall}

    def _idle(self, wall: float, learn: float) -> dict[str, float]:
        """Share of the time in which each process had nothing to do; an unroll spans several updates, so smoothed."""
        self._span = FADING * self._span + wall
        idle = {}
        for place, busy in self._busy.items():
            idle[f"idle/{place}"] = min(max(1.0 - busy / self._span, 0.0), 1.0)
            self._busy[place] = FADING * busy
        return {"idle/learner": 1.0 - learn / wall, **idle}

    def state(self) -> dict[str, float]:
        """Seconds spent so far, for a checkpoint."""
        return dict(self._total)

    def restore(self, spent: Mapping[str, float]) -> None:
        """Restore what `state` returned."""
        self._total |= spent

    def total_shares(self) -> dict[str, float]:
        """Shares of the wall time of all updates so far."""
        own = ("learn", "wait") if self._overlaps else tuple(self._total)
        total = sum(self._total[name] for name in own)
        return {name: seconds / total if total else 0.0 for name, seconds in self._total.items()}
