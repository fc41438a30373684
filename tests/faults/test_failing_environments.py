"""Environments that raise while a run goes on: mended, sat out, quarantined, and counted either way."""

from __future__ import annotations

import json

import numpy as np
import pytest

import rollmill
from rollmill.algorithms.appo import APPOUpdate
from rollmill.algorithms.ppo import PPOUpdate
from rollmill.errors import WorkerFailed
from rollmill.events import Said
from rollmill.experiment import Experiment, load_config
from rollmill.seeding import episode_seed

ENVIRONMENT = '''
import os
import gymnasium as gym
import numpy as np


class Raising(gym.Env):
    """Walks at random. In episodes with one of the `bad_seeds` it raises from step `after` on, as soon as there is a
    file `fuse`; with `once` (a file that marks it) only a single time."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, bad_seeds, after, fuse, once=None):
        self.bad_seeds, self.after, self.fuse, self.once = set(bad_seeds), after, fuse, once

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.is_bad = 0, seed in self.bad_seeds
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        if self.is_bad and self.t >= self.after and os.path.exists(self.fuse):
            if self.once is None or not os.path.exists(self.once):
                if self.once is not None:
                    open(self.once, "w").close()
                raise RuntimeError("the simulator is out of order")
        shown = self.np_random.uniform(-1, 1, 2)
        return shown.astype(np.float32), float(action * shown[0]), False, self.t >= 20, {}
'''

APPO = {"name": "appo", "unroll": 16, "minibatch": 64, "unrolls": 1, "in_flight": 3}


@pytest.fixture
def run(tmp_path):
    (tmp_path / "raising.py").write_text(ENVIRONMENT)

    def start(name, algorithm=None, is_broken=True, steps=64 * 12, rows=(), groups=1, runtime=None, **args):
        """`rows` of the last group fail."""
        fuse = tmp_path / f"{name}.fuse"
        bad_seeds = [episode_seed(1, groups - 1, row, episode) for row in rows for episode in range(200)]
        config = {
            "env": {
                "id": f"{tmp_path}/raising.py:Raising",
                "args": {"fuse": str(fuse), "bad_seeds": bad_seeds, **args},
                "groups": groups,
                "group_size": 4,
            },
            "runtime": runtime or {},
            "algorithm": algorithm or {"name": "ppo", "unroll": 16, "minibatch": 32, "epochs": 1},
            "train": {"steps": steps},
            "observe": {
                "baseline_episodes": 0,
                "final_episodes": 0,
                "console": "none",
                "curve": False,
                "log_interval": 0,
            },
        }
        experiment = Experiment(load_config(config), tmp_path / name)
        said = []
        for event in experiment.run():
            if is_broken and event.progress.updates >= 2:
                fuse.touch()
            if isinstance(event, Said) and event.level == "warning":
                said.append(event)
        return experiment.summary, said

    return start


@pytest.mark.parametrize("algorithm", [None, APPO], ids=["ppo", "appo"])
def test_a_passing_failure_is_rebuilt_and_changes_no_bit(run, tmp_path, algorithm):
    sound, _ = run("sound", algorithm, is_broken=False, rows=[1], after=5)
    mended, said = run("mended", algorithm, rows=[1], after=5, once=str(tmp_path / "once"))
    assert mended["parameters_sha256"] == sound["parameters_sha256"]
    assert mended["failures"] == {"workers": [], "environments": 1, "quarantined": 0}
    (event,) = said
    assert "environment 1 raised in step(): RuntimeError: the simulator is out of order" in event.text
    assert event.text.endswith("; rebuilt and played again up to there")
    assert 'raise RuntimeError("the simulator' in event.traceback


@pytest.mark.parametrize("algorithm", [None, {"name": "vpg", "episode_steps": 20}, APPO], ids=["ppo", "vpg", "appo"])
def test_an_environment_that_goes_on_failing_is_quarantined_and_the_others_go_on(run, algorithm):
    summary, said = run("quarantine", algorithm, rows=[2], after=5)
    assert summary["status"] == "done"
    assert summary["env_steps"] >= 64 * 12
    assert summary["failures"]["quarantined"] == 1
    assert summary["failures"]["environments"] >= 3
    assert [event.text for event in said if "quarantined" in event.text] == [
        "environment 2 is quarantined: it failed in 3 unrolls in a row"
    ]


@pytest.mark.parametrize("runtime", [{}, {"kind": "processes", "workers": 2}], ids=["serial", "processes"])
def test_a_group_that_fails_as_a_whole_leaves_an_asynchronous_training_to_the_others(run, runtime):
    summary, said = run("group", APPO, rows=[0, 1, 2, 3], groups=2, after=5, steps=64 * 150, runtime=runtime)
    assert summary["status"] == "done"
    assert summary["failures"] == {"workers": [], "environments": 12, "quarantined": 4}
    assert sum("quarantined" in event.text for event in said) == 4
    assert summary["env_steps"] >= 64 * 150


@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_a_single_step_that_is_left_of_a_minibatch_is_no_nan(run, name):
    """Three of four environments fail and an unroll has one step: there is nothing to normalise it by."""
    one_step = {"name": name, "unroll": 1, "minibatch": 4, "epochs": 1}
    summary, _ = run("single", one_step, rows=[0, 1, 2], after=1, steps=4 * 30)
    assert summary["status"] == "done"
    assert summary["failures"]["quarantined"] == 3


def test_an_environment_that_fails_while_others_finish_stays_out(run):
    """Episodes have 20 steps: in the last one row 2 fails and the others end."""
    summary, _ = run("together", {"name": "vpg", "episode_steps": 20}, rows=[2], after=20)
    assert summary["status"] == "done"
    assert summary["failures"]["quarantined"] == 1


def test_the_batch_goes_without_the_column_of_a_broken_environment(run, tmp_path):
    run("columns", rows=[0, 3], after=1)
    rows = [json.loads(line) for line in (tmp_path / "columns" / "metrics.jsonl").read_text().splitlines()]
    steps = np.diff([0, *(row["env_steps"] for row in rows)])
    assert list(steps[:2]) == [64, 64]
    assert set(steps[3:]) == {32}, "two of four environments × 16 steps"


@pytest.mark.parametrize(("algorithm", "rule"), [(None, PPOUpdate), (APPO, APPOUpdate)], ids=["ppo", "appo"])
def test_no_step_that_an_environment_sat_out_reaches_an_update(run, monkeypatch, algorithm, rule):
    """Updates don't look for such steps: an environment that fails within an unroll is left out with all of it."""
    seen, update = [], rule.__call__
    monkeypatch.setattr(rule, "__call__", lambda *given: seen.append(given[1]["valid"].clone()) or update(*given))
    run("sat out", algorithm, rows=[1], after=5)
    assert {valid.shape[1] for valid in seen} == {3, 4}, "some without the one that fails"
    assert all(valid.all() for valid in seen)


def test_when_every_environment_fails_the_run_ends_with_the_first_traceback(run, tmp_path):
    with pytest.raises(WorkerFailed) as caught:
        run("all", rows=[0, 1, 2, 3], after=5)
    assert "every environment failed" in str(caught.value)
    assert "environment 0 raised in step(): RuntimeError: the simulator is out of order" in str(caught.value)
    assert 'raise RuntimeError("the simulator' in caught.value.child_traceback
    summary = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert summary["status"] == "failed"


LIAR = """
import gymnasium as gym
import numpy as np


class Liar(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.uniform(-1, 1)), 0
        return self.shown(), {}

    def shown(self):
        return np.array([np.sin(self.x)], np.float32)

    def step(self, action):
        self.t += 1
        self.x += 0.1 * (1 if action else -1)
        return self.shown(), float(self.shown()[0]), False, self.t >= 200, {}

    def snapshot(self):
        return np.array([self.x, self.t], np.float64).tobytes()

    def restore(self, data):
        self.x, t = np.frombuffer(data, np.float64).tolist()
        self.t = int(t)
        if self.t >= 60:  # later than the trial at start-up looks
            self.x += 0.5
"""


def test_a_snapshot_that_lies_is_found_out_and_the_episode_replayed(tmp_path):
    (tmp_path / "liar.py").write_text(LIAR)
    config = {
        "env": {"id": f"{tmp_path}/liar.py:Liar", "groups": 1, "group_size": 2},
        "algorithm": {"name": "ppo", "unroll": 32, "minibatch": 32, "epochs": 1},
        "train": {"steps": 64 * 6},
        "observe": {"baseline_episodes": 0, "final_episodes": 0, "console": "none", "curve": False},
    }
    whole = rollmill.train(config, run=tmp_path / "whole")
    part = rollmill.train(config, run=tmp_path / "part", **{"train.steps": 64 * 4})
    resumed = rollmill.resume(part.path, **{"train.steps": 64 * 6})
    assert resumed.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    assert resumed.summary["resume_grade"] == "exact"


def test_an_environment_that_calls_exit_is_a_failing_environment(tmp_path, run):
    (tmp_path / "raising.py").write_text(
        ENVIRONMENT.replace('raise RuntimeError("the simulator is out of order")', "raise SystemExit(0)")
    )
    summary, said = run("exits", rows=[2], after=5)
    assert summary["failures"]["quarantined"] == 1
    assert "raised in step(): SystemExit: 0" in said[0].text


def test_quarantine_survives_a_resume(run, tmp_path):
    whole, _ = run("whole", rows=[2], after=5, steps=64 * 14)
    run("part", rows=[2], after=5, steps=64 * 9)
    resumed = rollmill.resume(tmp_path / "part", **{"train.steps": 64 * 14})
    assert resumed.summary["failures"]["quarantined"] == 1
    assert resumed.summary["parameters_sha256"] == whole["parameters_sha256"]
