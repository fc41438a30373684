"""Agents learn from unrolls that are twenty updates old, and a feed-forward agent still can't remember.

The lag is forced: in one process, 7 groups × 3 unrolls in flight and one consumed per update leave 20 others before
each of them. Smaller steps than the configs take, for the policy that is learned from must not run away from the one
that learns.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rollmill.errors import Refused
from rollmill.experiment import Experiment, load_config

CONFIGS = Path(__file__).parents[2] / "configs" / "appo"
QUIET = {"observe.console": "none", "observe.tensorboard": False, "observe.curve": False, "observe.final_seconds": 120}
LAG_20 = {
    "runtime.kind": "serial",
    "runtime.workers": 1,
    "env.groups": 7,
    "algorithm.in_flight": 3,
    "algorithm.unrolls": 1,
    "algorithm.max_lag": 20,
}
FEWER = {"env.group_size": 16, "algorithm.minibatch": 512, "algorithm.learning_rate": 2e-3, "train.steps": 300_000}
SWINGING = {"env.group_size": 8, "algorithm.unroll": 64, "algorithm.epochs": 4, "train.steps": 400_000}

pytestmark = pytest.mark.slow


def learned(folder, name, **changes):
    """Returns of a run, and the rows of its metrics."""
    experiment = Experiment(load_config(CONFIGS / f"{name}.yaml", QUIET | changes), folder)
    for _ in experiment.run():
        pass
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return experiment.summary["returns"], rows


def lags(rows):
    """The largest mean lag of a stretch, and the largest share of steps that were too old to be learned from."""
    return max(row["lag/mean"] for row in rows), max(row["masked_fraction"] for row in rows)


def test_the_cue_is_remembered_at_a_lag_of_20(tmp_path):
    returns, rows = learned(tmp_path / "run", "memory_cue", **LAG_20, **{"train.steps": 60_000})
    assert lags(rows) == (20.0, 0.0)
    assert returns["mean_100"] >= 0.95
    assert returns["greedy"] >= 0.95


def test_a_feed_forward_agent_does_not_remember_it_at_any_lag(tmp_path):
    changes = {"model": {"hidden": [32]}, "train.steps": 30_000}
    returns, rows = learned(tmp_path / "run", "memory_cue", **LAG_20, **changes)
    assert lags(rows)[0] == 20.0
    assert abs(returns["mean_100"]) < 0.4  # ±1 with equal chance: the mean of 100 has a deviation of 0.1


def test_what_lags_too_much_is_not_learned_from(tmp_path):
    """With max_lag below the lag nothing would ever be learned, which is refused and not found out at the end."""
    with pytest.raises(Refused, match="max_lag=10 would leave out every unroll"):
        learned(tmp_path / "run", "memory_cue", **(LAG_20 | {"algorithm.max_lag": 10}))


@pytest.mark.parametrize(
    ("seed", "corrects"),
    [(1, True), *(pytest.param(*case, marks=pytest.mark.prove) for case in [(2, True), (3, True), (1, False)])],
)
def test_cartpole_is_solved_at_a_lag_of_20(tmp_path, seed, corrects):
    changes = LAG_20 | FEWER | {"algorithm.vtrace": corrects}
    returns, rows = learned(tmp_path / "run", "cartpole", seed=seed, **changes)
    print(f"\nCartPole, lag 20, seed {seed}, vtrace {corrects}: {_told(returns)}")
    assert lags(rows) == (20.0, 0.0)
    if corrects:
        assert returns["mean_100"] >= 475
        assert returns["greedy"] >= 475


@pytest.mark.prove
@pytest.mark.parametrize("corrects", [True, False], ids=["vtrace", "uncorrected"])
def test_pendulum_is_swung_up_at_a_lag_of_20(tmp_path, corrects):
    returns, rows = learned(tmp_path / "run", "pendulum", **LAG_20, **SWINGING, **{"algorithm.vtrace": corrects})
    print(f"\nPendulum, lag 20, vtrace {corrects}: {_told(returns)}")
    assert lags(rows) == (20.0, 0.0)
    if corrects:
        assert returns["greedy"] >= -250


def _told(returns):
    return f"last 100 {returns['mean_100']:.1f}, best {returns['best_mean_100']:.1f}, greedy {returns['greedy']:.1f}"
