"""Numbers about returns, checked by hand or against a slow form."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from rollmill.play import evaluation_folder
from rollmill.play.evaluation_folder import bootstrap_interval, summarise
from rollmill.play.playing import Episode, Played


def episodes(*returns):
    return [Played(Episode(n, n), value, 10 * (n + 1), True, False, 0.0) for n, value in enumerate(returns)]


def test_a_summary_by_hand():
    summary = summarise(episodes(1.0, 2.0, 6.0), seed=0)
    assert (summary["episodes"], summary["steps"], summary["length"]) == (3, 60, 20.0)
    assert (summary["mean"], summary["median"], summary["min"], summary["max"]) == (3.0, 2.0, 1.0, 6.0)
    assert summary["std"] == pytest.approx(7**0.5)  # (4 + 1 + 9) / (3 − 1)


def test_one_episode_has_no_interval_and_none_has_nothing():
    assert [summarise(episodes(5.0), 0)[key] for key in ("mean", "std", "low", "high")] == [5.0, None, None, None]
    assert summarise([], 0)["mean"] is None


def test_the_interval_is_that_of_all_resamples_where_they_can_be_counted():
    values = np.array([0.0, 1.0, 5.0, 20.0])
    means = np.sort([np.mean(chosen) for chosen in product(values, repeat=4)])  # all 256 resamples, equally likely
    low, high = bootstrap_interval(values, seed=3)
    assert low == pytest.approx(np.quantile(means, 0.025), abs=0.5)
    assert high == pytest.approx(np.quantile(means, 0.975), abs=0.8)


def test_for_many_values_it_is_the_normal_interval():
    values = np.random.Generator(np.random.PCG64(1)).normal(10.0, 3.0, 400)
    low, high = bootstrap_interval(values, seed=0)
    half = 1.96 * values.std() / 20  # √400
    assert low == pytest.approx(values.mean() - half, abs=0.03)
    assert high == pytest.approx(values.mean() + half, abs=0.03)


def test_it_depends_on_the_seed_alone_and_not_on_how_it_is_cut_up(monkeypatch):
    values = np.sqrt(np.arange(50.0))
    whole = bootstrap_interval(values, 4)
    assert whole == bootstrap_interval(values, 4) != bootstrap_interval(values, 5)
    monkeypatch.setattr(evaluation_folder, "_CHUNK", 5000)
    assert bootstrap_interval(values, 4) == whole
