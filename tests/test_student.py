"""Student's t and the interval of a difference."""

from __future__ import annotations

import pytest
from scipy import stats

from rollmill.intervals import deviation, t_point, welch_half_width


@pytest.mark.parametrize("freedom", [1, 2, 30, 31, 60, 1000])
def test_the_points_are_those_of_students_distribution(freedom: int) -> None:
    assert t_point(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-4)


def test_a_deviation_needs_two_values() -> None:
    assert deviation([1.0, 3.0]) == pytest.approx(2**0.5)  # ((1-2)² + (3-2)²) / 1 = 2
    assert deviation([1.0]) is None


def test_two_equal_samples_have_the_interval_of_one_with_their_freedom_added() -> None:
    # a = b = 2²/16 = 0.25: f = 0.25 / (2 × 0.0625 / 15) = 30, t(30) = 2.0423, √0.5 = 0.70711
    assert welch_half_width((2.0, 2.0), (16, 16)) == pytest.approx(2.0423 * 0.70711, abs=1e-4)
    assert welch_half_width((0.0, 0.0), (16, 16)) == 0.0


def test_the_interval_is_that_of_scipy() -> None:
    first, second = [1.0, 2.0, 4.0, 8.0, 16.0, 3.0], [5.0, 6.0, 5.5, 7.0]
    found = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    half = welch_half_width((deviation(first) or 0.0, deviation(second) or 0.0), (len(first), len(second)))
    # ours takes the next lower whole degree of freedom (5 of 5.2), so it is a little wider
    assert (found.high - found.low) / 2 <= half <= 1.03 * (found.high - found.low) / 2


def test_an_infinite_return_leaves_everything_open() -> None:
    assert deviation([1.0, float("inf")]) != deviation([1.0, float("inf")])  # no number
    assert welch_half_width((float("nan"), 1.0), (5, 5)) == float("inf")
