"""How far a few seeds lie apart."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple

# 97.5 % points of Student's t for 1 to 30 degrees of freedom
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_Z = 1.959964
LEAST = 3  # values for an interval; that of two is nine standard deviations to either side and tells nothing


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
    freedom = count - 1
    if freedom <= len(_T):
        point = _T[freedom - 1]
    else:  # expansion around the normal distribution; right to four digits from here on
        cubic, quintic = _Z**3, _Z**5
        point = _Z + (cubic + _Z) / (4 * freedom) + (5 * quintic + 16 * cubic + 3 * _Z) / (96 * freedom**2)
    return float(point / count**0.5)
