"""How far means of a few values can be trusted: Student's t and Welch's interval of a difference."""

from __future__ import annotations

import math
from collections.abc import Sequence

# 97.5 % points of Student's t for 1 to 30 degrees of freedom
_T = (
    *(12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)
_Z = 1.959964


def t_point(freedom: int) -> float:
    """The 97.5 % point of Student's t for at least one degree of freedom."""
    if freedom <= len(_T):
        return _T[freedom - 1]
    # expansion around the normal distribution; right to four digits from here on
    cubic, quintic = _Z**3, _Z**5
    return _Z + (cubic + _Z) / (4 * freedom) + (5 * quintic + 16 * cubic + 3 * _Z) / (96 * freedom**2)


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample, s with n - 1; None for fewer than two values."""
    if len(values) < 2:
        return None
    mean = sum(values) / len(values)
    # not `statistics.stdev`, which raises on an infinite return
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))


def welch_half_width(deviations: tuple[float, float], counts: tuple[int, int]) -> float:
    """Half of the 95 % interval of a difference of two means: t(f) √(a + b), with a = s₁²/n₁ and b = s₂²/n₂.

    f = (a + b)² / (a²/(n₁-1) + b²/(n₂-1)), rounded down. Both samples have at least two values.
    """
    parts = [s * s / n for s, n in zip(deviations, counts, strict=True)]
    whole = sum(parts)
    if whole == 0.0:  # neither varies, so any difference is one
        return 0.0
    if not math.isfinite(whole):
        return math.inf
    freedom = 1 / sum((part / whole) ** 2 / (n - 1) for part, n in zip(parts, counts, strict=True))
    return t_point(max(1, int(freedom))) * math.sqrt(whole)
