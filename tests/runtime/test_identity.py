"""Synchronous training gives the same parameters, bit for bit, on every runtime and for any number of workers."""

from __future__ import annotations

import pytest

from rollmill.experiment import Experiment, load_config

BASE = {
    "seed": 7,
    "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 2},
    "train": {"steps": 512},
    "observe": {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0, "baseline_seconds": 0.1},
}

CASES = {
    "cartpole": {},
    "pong": {
        "env.id": "ALE/Pong-v5",
        "env.group_size": 1,
        "env.reward_clip": 1.0,
        "algorithm.unroll": 8,
        "algorithm.minibatch": 16,
        "train.steps": 64,
        "runtime.threads.learner": 2,
    },
    "dict": {"env.id": "probe/dict"},
    "normalised": {"env.id": "Pendulum-v1", "model.normalise_observations": True, "algorithm.normalise_rewards": True},
    "memory": {"env.id": "probe/memory-cue", "model.memory": "gru", "model.memory_size": 16, "env.group_size": 3,
               "algorithm.minibatch": 48, "train.steps": 768},
    "frozen-lake": {"env.id": "FrozenLake-v1", "train.steps": 1024},
    "vpg": {"algorithm": {"name": "vpg", "episode_steps": 60}, "env.group_size": 3},
}  # fmt: skip


def train(tmp_path, changes, **runtime):
    """The hash of a run, and how many updates it took."""
    values = {**BASE, **({"algorithm": changes["algorithm"]} if "algorithm" in changes else {})}
    overrides = {key: value for key, value in changes.items() if key != "algorithm"}
    overrides |= {f"runtime.{key}": value for key, value in runtime.items()}
    name = "-".join(str(value) for value in runtime.values())
    experiment = Experiment(load_config(values, overrides), tmp_path / name)
    for _ in experiment.run():
        pass
    summary = experiment.summary
    assert summary["status"] == "done"
    assert summary["updates"] >= 2
    return summary["parameters_sha256"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_runtime_and_number_of_workers_gives_the_same_parameters(case, tmp_path):
    expected = train(tmp_path, CASES[case], kind="serial")
    for workers in (1, 2, 4):
        assert train(tmp_path, CASES[case], kind="processes", workers=workers) == expected, f"{workers} workers"
    for roles in ("central", "split"):
        assert train(tmp_path, CASES[case], kind="serial", roles=roles) == expected, roles
        assert train(tmp_path, CASES[case], kind="processes", workers=2, roles=roles) == expected, roles


def test_two_runtimes_agree_quickly(tmp_path):
    """The fast form of the above for `make check`."""
    expected = train(tmp_path, {}, kind="serial")
    assert train(tmp_path, {}, kind="processes", workers=2) == expected


def test_equal_seeds_are_equal_and_another_seed_differs(tmp_path):
    first = train(tmp_path / "a", {}, kind="serial")
    assert train(tmp_path / "b", {}, kind="serial") == first
    assert train(tmp_path / "c", {"seed": 8}, kind="serial") != first
