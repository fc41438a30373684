"""A fixed piece of pure Python whose milliseconds tell the fast and the slow state of a machine apart."""

from __future__ import annotations

import statistics
import time

REPETITIONS = 3
ITERATIONS = 1_000_000


def calibrate() -> float:
    """Milliseconds of the loop, the median of a few."""
    return statistics.median(_loop() for _ in range(REPETITIONS))


def _loop() -> float:
    start = time.perf_counter()
    total = 0
    for i in range(ITERATIONS):
        total += i * i % 7
    return (time.perf_counter() - start) * 1e3
