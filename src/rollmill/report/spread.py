"""Mean and interval over a few seeds."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from rollmill.intervals import t_point

LEAST = 3  # values for an interval; for two it is nine standard deviations to either side: useless


class Spread(NamedTuple):
    """The mean of some values and its 95 % interval; there is none for fewer than three."""

    mean: float
    low: float | None
    high: float | None
    size: int  # how many values


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and t-interval, mean ± t(n-1) s/√n; None without values.

    Three seeds are too few for a bootstrap, whose interval would be about half as wide as it should be.
    """
    if not values:
        return None
    mean, count = statistics.fmean(values), len(values)
    if count < LEAST:
        return Spread(mean, None, None, count)
    half = t_factor(count) * statistics.stdev(values)
    return Spread(mean, mean - half, mean + half, count)


def t_factor(count: int) -> float:
    """What the standard deviation of `count` values (at least two) is multiplied with: t(n-1) / √n."""
    return t_point(count - 1) / float(count**0.5)
