"""Whether a run learned: claimed only as far as the episodes support it."""

from __future__ import annotations

from typing import Any

import pytest

from rollmill.console.closing import verdict


def told(reached, random, spreads=(1.0, 1.0), episodes=300, played=20) -> str:
    summary: dict[str, Any] = {
        "episodes": episodes,
        "returns": {"mean_100": reached, "std_100": spreads[0]},
        "random_baseline": {"return": random, "std": spreads[1], "episodes": played},
    }
    return verdict(summary)


@pytest.mark.parametrize(
    ("reached", "random", "episodes", "beginning"),
    [
        (487.3, 21.9, 300, "learned: return 487.3, random policy 21.9 (20 episodes)"),
        (23.0, 21.9, 300, "not learned, about as good as chance: return 23.0, random policy 21.9"),  # sure but small
        (9.4, 21.9, 300, "not learned, worse than chance"),
        (-150.0, -1200.0, 300, "learned"),  # returns may be negative
        (-20.0, -20.7, 300, "not learned, about as good"),
        (487.3, 21.9, 3, "too early to tell after 3 episodes"),
        (487.3, 21.9, 1, "too early to tell after 1 episode:"),
        (487.3, None, 300, "unknown: return 487.3, the random policy was not measured"),
        (None, 21.9, 0, "unknown: no episode has ended"),
    ],
)
def test_the_verdict_claims_no_more_than_the_numbers(reached, random, episodes, beginning) -> None:
    assert told(reached, random, episodes=episodes).startswith(beginning)


def test_a_difference_within_the_noise_of_both_samples_is_none() -> None:
    # a = 10²/100 = 1, b = 20²/20 = 20: f = 21² / (1²/99 + 20²/19) = 20.9, t(20) = 2.0860, 2.0860 √21 = 9.56
    words = told(23.2, 28.4, (10.0, 20.0))
    assert words == (
        "no difference from chance can be told: return 23.2, random policy 28.4 (20 episodes), difference -5.20 ± 9.56"
    )


@pytest.mark.parametrize(
    ("reached", "beginning"), [(39.5, "no difference"), (39.6, "learned"), (20.5, "no"), (20.4, "not learned, worse")]
)
def test_the_interval_decides_where_the_margin_is_exceeded(reached: float, beginning: str) -> None:
    # as above: 30 ± 9.56
    assert told(reached, 30.0, (10.0, 20.0)).startswith(beginning)


def test_the_first_episodes_count_as_many_as_they_are() -> None:
    # 10 episodes of s = 10 beside 20 that don't vary: f = 9, t = 2.2622, 2.2622 × 10 / √10 = 7.15; of 100 it were 1.98
    assert told(37.1, 30.0, (10.0, 0.0), episodes=10).startswith("no difference")
    assert told(37.2, 30.0, (10.0, 0.0), episodes=10).startswith("learned")


def test_returns_that_never_vary_leave_no_doubt() -> None:
    assert told(1.0, -1.0, (0.0, 0.0)).startswith("learned")
    assert told(-1.0, -1.0, (0.0, 0.0)).startswith("no difference")


@pytest.mark.parametrize("spreads", [(None, 1.0), (1.0, None)])
def test_without_a_spread_nothing_is_claimed(spreads) -> None:
    assert told(487.3, 21.9, spreads) == (
        "unknown: return 487.3, random policy 21.9 (20 episodes), how far single episodes differ is not known"
    )
