"""What a list of returns says: mean and spread, and how far the mean can be trusted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.play.playing import Played
from rollmill.seeding import generator

RESAMPLES = 10_000
CONFIDENCE = 0.95
_CHUNK = 4_000_000  # numbers drawn at once


def summarise(played: Sequence[Played], seed: int, has_interval: bool = True) -> dict[str, Any]:
    """The record of one player: episodes, their return with its interval, their length; None where none was played."""
    returns = np.array([one.total for one in played])
    lengths = np.array([one.length for one in played])
    if not played:
        nothing = dict.fromkeys(("mean", "std", "median", "min", "max", "low", "high", "length"))
        return {"episodes": 0, "steps": 0, **nothing}
    low, high = bootstrap_interval(returns, seed) if has_interval else (None, None)
    return {
        "episodes": len(played),
        "steps": int(lengths.sum()),
        "mean": float(returns.mean()),
        "std": float(returns.std(ddof=1)) if len(played) > 1 else None,
        "median": float(np.median(returns)),
        "min": float(returns.min()),
        "max": float(returns.max()),
        "low": low,
        "high": high,
        "length": float(lengths.mean()),
    }


def bootstrap_interval(values: NDArray[np.float64], seed: int) -> tuple[float | None, float | None]:
    """The percentile bootstrap of the mean: its 95 % interval over 10 000 resamples; None for fewer than two values."""
    count = len(values)
    if count < 2:
        return None, None
    rng = generator(seed, "bootstrap")
    means = np.empty(RESAMPLES)
    step = max(1, _CHUNK // count)
    for start in range(0, RESAMPLES, step):
        part = means[start : start + step]
        part[:] = values[rng.integers(count, size=(len(part), count))].mean(axis=1)
    low, high = np.quantile(means, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)
