"""An experiment seen from Python: events, stopping, the run folder, the loaded policy."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import rollmill
from rollmill.errors import Detected, Refused
from rollmill.events import EpisodesEnded, RunStarted, Stopped, Updated
from rollmill.models.weights import parameters_sha256
from rollmill.persist.run_folder import RunFolder

TINY = {
    "seed": 2,
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 2},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64},
    "train": {"steps": 640},
    "observe": {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 2},
}


def events_of(path, **changes):
    experiment = rollmill.Experiment(rollmill.load_config(TINY, changes), path)
    return experiment, list(experiment.run())


def test_events_come_in_order_and_count_every_step(tmp_path):
    experiment, events = events_of(tmp_path / "run")
    assert isinstance(events[0], RunStarted)
    assert isinstance(events[-1], Stopped)
    updates = [event for event in events if isinstance(event, Updated)]
    assert [event.progress.env_steps for event in updates] == [64 * n for n in range(1, 11)]
    assert [event.version for event in updates] == list(range(1, 11))
    lengths = [length for event in events if isinstance(event, EpisodesEnded) for length in event.lengths]
    assert lengths
    assert sum(lengths) <= 640
    assert experiment.summary["episodes"] == len(lengths)
    assert sum(value for key, value in updates[-1].metrics.items() if key.startswith("time/")) == pytest.approx(1)


@pytest.mark.parametrize("normalise", [False, True])
def test_the_hash_in_the_summary_is_that_of_the_saved_weights(tmp_path, normalise):
    experiment, _ = events_of(tmp_path / "run", **{"model.normalise_observations": normalise})
    assert (
        parameters_sha256(RunFolder.read_weights(tmp_path / "run" / "weights.safetensors"))
        == experiment.summary["parameters_sha256"]
    )


def test_the_hash_covers_name_shape_dtype_and_bytes():
    weights = {"a": np.arange(6, dtype=np.float32), "b": np.zeros(2)}
    base = parameters_sha256(weights)
    assert parameters_sha256(dict(reversed(weights.items()))) == base
    for changed in (
        {**weights, "a": weights["a"].reshape(2, 3)},
        {**weights, "b": np.zeros(2, np.float32)},
        {"c": weights["a"], "b": weights["b"]},
        {**weights, "b": np.array([0.0, -0.0])},
    ):
        assert parameters_sha256(changed) != base


def test_stopping_early_leaves_a_loadable_run(tmp_path):
    experiment = rollmill.Experiment(rollmill.load_config(TINY), tmp_path / "run")
    for event in experiment.run():
        if isinstance(event, Updated) and event.version == 3:
            experiment.stop()
    assert experiment.summary["status"] == "interrupted"
    assert experiment.summary["updates"] == 3
    rollmill.load(tmp_path / "run")


def test_walking_away_from_the_events_leaves_a_loadable_run(tmp_path):
    for event in rollmill.Experiment(rollmill.load_config(TINY), tmp_path / "run").run():
        if isinstance(event, Updated):
            break
    assert rollmill.load(tmp_path / "run")(np.zeros(4)) in (0, 1)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "interrupted"


def test_the_random_baseline_can_be_left_out(tmp_path):
    experiment, _ = events_of(tmp_path / "run", **{"observe.baseline_episodes": 0, "observe.final_episodes": 0})
    assert experiment.summary["random_baseline"]["return"] is None
    assert experiment.summary["status"] == "done"


def test_the_resolved_config_of_a_run_repeats_it(tmp_path):
    first, _ = events_of(tmp_path / "a", **{"algorithm.learning_rate": 0.01})
    again = rollmill.train(tmp_path / "a" / "config.yaml", run=tmp_path / "b")
    assert again.summary["parameters_sha256"] == first.summary["parameters_sha256"]


def test_a_run_folder_is_never_touched_without_being_told(tmp_path):
    events_of(tmp_path / "run")
    (tmp_path / "run" / "note.txt").write_text("mine")
    with pytest.raises(Refused, match="exists; choose another folder, or --overwrite"):
        events_of(tmp_path / "run")
    assert (tmp_path / "run" / "note.txt").exists()
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.tex").write_text("years of work")
    with pytest.raises(Refused, match="is no run folder"):
        list(rollmill.Experiment(rollmill.load_config(TINY), precious, overwrite=True).run())
    assert (precious / "thesis.tex").exists()
    list(rollmill.Experiment(rollmill.load_config(TINY), tmp_path / "run", overwrite=True).run())
    assert not (tmp_path / "run" / "note.txt").exists()
    assert (tmp_path / "run" / "weights.safetensors").exists()


def test_a_run_and_its_policy_print_as_one_short_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = rollmill.train(TINY, run="run")
    reached = run.summary["returns"]["mean_100"]
    assert repr(run) == f"Run('run', 'done', 640 steps, return {reached:.1f})"
    assert repr(run.policy()) == "LoadedPolicy('CartPole-v1')"
    assert repr(replace(run, summary={})) == "Run('run', 'done', - steps, return -)"


def test_a_loaded_policy_acts_for_one_and_for_many(tmp_path):
    run = rollmill.train(TINY, run=tmp_path / "run")
    policy = run.policy()
    rng = np.random.default_rng(0)
    batch = rng.normal(size=(5, 4)).astype(np.float32)
    many = policy(batch)
    assert many.shape == (5,)
    assert [policy(obs) for obs in batch] == many.tolist()


def test_a_loaded_recurrent_policy_remembers_until_it_is_reset(tmp_path):
    changes = {"env.id": "probe/memory-cue", "model.memory": "lstm", "model.memory_size": 8}
    run = rollmill.train(TINY, run=tmp_path / "run", **changes)
    policy = run.policy()
    obs = np.linspace(-1, 1, policy.observation_space.shape[0], dtype=np.float32)
    policy.reset()
    policy(obs)
    after_one = policy._player._state
    policy(obs)
    after_two = policy._player._state
    policy.reset()
    policy(obs)
    assert np.allclose(policy._player._state["hidden"], after_one["hidden"])
    assert not np.allclose(after_one["hidden"], after_two["hidden"])


def test_more_workers_than_groups_are_refused_with_the_remedy(tmp_path):
    with pytest.raises(
        Refused, match=r"runtime.workers=3 is more than env.groups=2.*set runtime.workers=2 or raise env.groups"
    ):
        events_of(tmp_path / "run", **{"runtime.workers": 3})
    assert not (tmp_path / "run").exists()


def test_cuda_without_cuda_is_refused(tmp_path):
    import torch

    if not torch.cuda.is_available():
        with pytest.raises(Refused, match=r"runtime.devices.learner=cuda but torch finds no CUDA device"):
            events_of(tmp_path / "run", **{"runtime.devices.learner": "cuda"})


@pytest.mark.slow
def test_a_script_without_a_main_guard_may_use_processes(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import rollmill\n"
        "processes = {'runtime.kind': 'processes', 'runtime.workers': 2}\n"
        f"run = rollmill.train({TINY!r}, run='run', **processes)\n"
        "print(run.summary['status'])\n"
    )
    result = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "done", result.stderr


NETWORK = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Dropout(0.5))

    def forward(self, obs, state, reset):
        return self.layers(obs), state
"""


def test_dropout_of_a_custom_model_draws_from_the_seed(tmp_path):
    import torch

    (tmp_path / "net.py").write_text(NETWORK)
    hashes = set()
    for number in (1, 2):
        torch.manual_seed(number)  # what the surrounding program did with torch's generator must not matter
        changes = {"model.file": str(tmp_path / "net.py"), "model.class": "Net"}
        hashes.add(events_of(tmp_path / str(number), **changes)[0].summary["parameters_sha256"])
    assert len(hashes) == 1


ENVIRONMENT = """
import gymnasium as gym
import numpy as np


class Sick(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)
    steps = 0  # over all instances of this process

    def __init__(self, symptom, after=10**9):
        self.symptom, self.after = symptom, after

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(4, np.float32), {}

    def step(self, action):
        Sick.steps += 1
        self.t += 1
        reward = 1.0
        if Sick.steps > self.after:
            if self.symptom == "raise":
                raise RuntimeError("out of order")
            reward = float("inf") if self.symptom == "infinite" else 1e38 if Sick.steps % 2 else -1e38
        return np.zeros(4, np.float32), reward, False, self.t >= 10, {}

    def close(self):
        if self.symptom == "close":
            raise RuntimeError("won't close")
"""


def sick(tmp_path, symptom, after=10**9):
    (tmp_path / "sick.py").write_text(ENVIRONMENT + f"# {symptom} {after}: a module of its own\n")
    return {"env.id": f"{tmp_path / 'sick.py'}:Sick", "env.args": {"symptom": symptom, "after": after}}


def test_an_environment_that_will_not_close_costs_nothing(tmp_path):
    experiment, _ = events_of(tmp_path / "run", **sick(tmp_path, "close"))
    assert experiment.summary["status"] == "done"
    rollmill.load(tmp_path / "run")


@pytest.mark.parametrize("after", [60, 300], ids=["in the baseline", "in training"])
def test_a_failure_at_any_moment_leaves_a_summary_and_weights(tmp_path, after):
    # 40 steps of the start-up check, then up to 200 of the baseline, then training
    with pytest.raises(Exception, match="out of order"):
        events_of(tmp_path / "run", **sick(tmp_path, "raise", after))
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "failed"
    assert RunFolder.read_weights(tmp_path / "run" / "weights.safetensors")


def test_after_a_broken_update_the_last_good_weights_are_kept(tmp_path):
    with pytest.raises(Detected, match=r"update \d+: "):
        events_of(tmp_path / "run", **sick(tmp_path, "huge", 400))
    weights = RunFolder.read_weights(tmp_path / "run" / "weights.safetensors")
    assert all(np.isfinite(array).all() for array in weights.values())
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["status"] == "detected"
    assert summary["parameters_sha256"] == parameters_sha256(weights)


def test_an_infinite_reward_is_detected_behind_a_clip(tmp_path):
    with pytest.raises(Detected, match="return of environment"):
        events_of(tmp_path / "run", **sick(tmp_path, "infinite", 400), **{"env.reward_clip": 1.0})


def test_a_living_run_is_not_overwritten(tmp_path):
    events_of(tmp_path / "run")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        facts = json.loads((tmp_path / "run" / "run.json").read_text())
        (tmp_path / "run" / "run.json").write_text(json.dumps(facts | {"pid": sleeper.pid}))
        (tmp_path / "run" / "summary.json").write_text(json.dumps({"status": "running"}))
        with pytest.raises(Refused, match=f"is being written by process {sleeper.pid}; stop it"):
            list(rollmill.Experiment(rollmill.load_config(TINY), tmp_path / "run", overwrite=True).run())
    finally:
        sleeper.kill()
        sleeper.wait()
    list(rollmill.Experiment(rollmill.load_config(TINY), tmp_path / "run", overwrite=True).run())
