"""Whether a run's policy does better than chance, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rollmill.intervals import welch_half_width
from rollmill.observe.phrases import amount, some

# A difference below a tenth of the random mean is none worth the word, however sure it is.
MARGIN = 0.1
FEW_EPISODES = 10
WINDOW = 100  # episodes of which the summary keeps mean and deviation


def verdict(summary: Mapping[str, Any]) -> str:
    """What the last episodes say against those of the random policy, with both numbers.

    A difference is claimed where it exceeds the margin and Welch's 95 % interval leaves zero out. So a policy that
    never changed is taken for another in about one of twenty runs.
    """
    returns, baseline = summary.get("returns") or {}, summary.get("random_baseline") or {}
    reached, random = returns.get("mean_100", returns.get("ema")), baseline.get("return")
    episodes = summary.get("episodes") or 0
    if reached is None:
        return "unknown: no episode has ended"
    if random is None:
        return f"unknown: return {amount(reached)}, the random policy was not measured"
    played = baseline.get("episodes") or 0
    numbers = f"return {amount(reached)}, random policy {amount(random)} ({some(played, 'episode')})"
    if episodes < FEW_EPISODES:
        return f"too early to tell after {some(episodes, 'episode')}: {numbers}"
    spread, random_spread = returns.get("std_100"), baseline.get("std")
    if spread is None or random_spread is None:
        return f"unknown: {numbers}, how far single episodes differ is not known"
    gain, doubt = reached - random, welch_half_width((spread, random_spread), (min(episodes, WINDOW), played))
    if not abs(gain) > doubt:  # nor where either is no number
        return f"no difference from chance can be told: {numbers}, difference {amount(gain)} ± {amount(doubt)}"
    if abs(gain) <= MARGIN * abs(random):
        return f"not learned, about as good as chance: {numbers}"
    return f"learned: {numbers}" if gain > 0 else f"not learned, worse than chance: {numbers}"
