"""Means and intervals over seeds."""

from __future__ import annotations

import pytest

from rollmill.report.groups import spread, t_factor


def test_three_values_have_a_t_interval():
    # mean 2, s = 1, t(2) = 4.3027: 4.3027 / √3 = 2.4842
    mean, low, high = spread([1.0, 2.0, 3.0])
    assert mean == 2.0
    assert low == pytest.approx(2 - 2.4842, abs=1e-4)
    assert high == pytest.approx(2 + 2.4842, abs=1e-4)


def test_one_or_two_values_have_a_mean_only():
    assert spread([3.0]) == (3.0, None, None)
    assert spread([3.0, 5.0]) == (4.0, None, None)
    assert spread([]) is None


@pytest.mark.parametrize(("count", "point"), [(2, 12.7062), (31, 2.0423), (32, 2.0395), (61, 2.0003), (1001, 1.9623)])
def test_the_factor_follows_students_distribution_for_any_number(count, point):
    assert t_factor(count) * count**0.5 == pytest.approx(point, abs=1e-4)  # from a table of t
