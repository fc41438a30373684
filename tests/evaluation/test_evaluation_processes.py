"""Several processes give what one gives; kills and signals keep what was played."""

from __future__ import annotations

import json
import os
import signal
import time

import numpy as np
import psutil
import pytest

from rollmill.algorithms.policy import StochasticPolicy

ENVIRONMENT = """
import os, time
import gymnasium as gym
import numpy as np


class Slow(gym.Env):
    "Ten steps of a tenth of a second; `fatal` ends the process once, in the episode that a file is missing for."

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, seconds=0.02, fatal=None, hangs=False):
        self.seconds, self.fatal, self.hangs = seconds, fatal, hangs

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        time.sleep(self.seconds)
        self.t += 1
        if self.fatal and self.t == 5 and not os.path.exists(self.fatal):
            open(self.fatal, "w").close()
            os._exit(9)
        if self.hangs and self.t == 5:
            time.sleep(3600)
        return np.full(2, self.t, np.float32), float(self.np_random.random()), False, self.t >= 10, {}
"""


@pytest.fixture
def slow(tmp_path):
    (tmp_path / "slow.py").write_text(ENVIRONMENT)
    return "--policy", "random", "--env", "slow.py:Slow", "--no-baselines"


def without_times(file):
    return [line.rpartition(",")[0] for line in file.read_text().splitlines()]


def wait_until(condition, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_policy_always_decides_for_a_whole_group(run, evaluate, tmp_path, monkeypatch):
    """21 episodes are units of 4 (the run's group) and one of 1, in which three rows sit out."""
    rows = []
    act = StochasticPolicy.act
    monkeypatch.setattr(StochasticPolicy, "act", lambda self, *call: (rows.append(len(call[2])), act(self, *call))[1])
    code, _, err = evaluate(run, "--episodes", 21, "--no-baselines", "--out", tmp_path / "out")
    assert code == 0, err
    assert set(rows) == {4}


@pytest.mark.slow
def test_the_number_of_workers_changes_nothing_but_times(run, evaluate, tmp_path):
    for workers in (1, 2):
        words = run, "--sample", "--episodes", 21, "--dump", "--workers", workers, "--out", tmp_path / str(workers)
        code, _, err = evaluate(*words)
        assert code == 0, err
    alone = without_times(tmp_path / "1" / "episodes.csv")
    assert len(alone) == 1 + 21 + 3 * 20
    assert without_times(tmp_path / "2" / "episodes.csv") == alone
    for number in range(21):
        one, other = (np.load(tmp_path / name / "trajectories" / f"episode-{number:05}.npz") for name in ("1", "2"))
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert not list((tmp_path / "2").glob("*.log")), "nothing was printed"


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_kill_keeps_what_was_played_and_leaves_nobody(workers, slow, start):
    evaluating = start(*slow, "--episodes", 400, "--dump", "--workers", workers, "env.group_size=4")
    evaluating.wait_for_rows(8)
    family = psutil.Process(evaluating.process.pid).children(recursive=True)
    assert len(family) >= (workers if workers > 1 else 0)
    evaluating.process.kill()
    evaluating.process.wait(10)
    wait_until(lambda: not any(one.is_running() and one.status() != "zombie" for one in family))
    lines = (evaluating.out / "episodes.csv").read_text()
    assert lines.endswith("\n")
    assert all(line.count(",") == 7 for line in lines.splitlines())
    assert evaluating.record["status"] == "running"
    for row in evaluating.rows():
        dump = np.load(evaluating.out / "trajectories" / f"episode-{int(row.split(',')[1]):05}.npz")
        assert dump["reward"].sum() == pytest.approx(float(row.split(",")[3]))
        assert len(dump["action"]) == 10


@pytest.mark.parametrize(
    ("number", "code"), [pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow), (signal.SIGTERM, 143)]
)
def test_a_signal_ends_it_in_order(number, code, slow, start):
    workers = 2 if number == signal.SIGINT else 1
    evaluating = start(*slow, "--episodes", 400, "--dump", "--video", 0, "--workers", workers)
    evaluating.wait_for_rows(3)
    os.kill(evaluating.process.pid, number)
    out, err = evaluating.process.communicate(timeout=20)
    assert (evaluating.process.returncode, err) == (code, "")
    assert "interrupted" in out
    assert evaluating.record["status"] == "interrupted"
    assert evaluating.record["episodes"] == len(evaluating.rows()) >= 3
    left = [path.name for path in evaluating.out.rglob("*") if path.name.endswith((".tmp", ".log"))]
    assert not left


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_and_its_episodes_are_played(slow, evaluate, tmp_path):
    words = *slow, "--episodes", 8, "env.args.seconds=0"
    assert evaluate(*words, "--out", "whole")[0] == 0
    code, _, err = evaluate(*words, "--workers", 2, f"env.args.fatal={tmp_path / 'mark'}", "--out", "mended")
    assert code == 0, err
    assert (tmp_path / "mark").exists()
    assert without_times(tmp_path / "mended" / "episodes.csv") == without_times(tmp_path / "whole" / "episodes.csv")


@pytest.mark.slow
def test_workers_that_die_again_and_again_are_a_fault(slow, evaluate, tmp_path):
    fatal = tmp_path / "never made"
    (tmp_path / "slow.py").write_text(ENVIRONMENT.replace('open(self.fatal, "w").close()', "print('last words')"))
    code, _, err = evaluate(*slow, "--episodes", 4, "--workers", 2, f"env.args.fatal='{fatal}'", "--out", "out")
    assert code == 1
    assert "ended with code 9" in err
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["status"] == "failed"


def test_a_hanging_environment_is_ended(slow, tmp_path, evaluate):
    config = tmp_path / "hang.yaml"
    config.write_text(
        json.dumps(
            {
                "env": {"id": "slow.py:Slow", "args": {"hangs": True, "seconds": 0}},
                "algorithm": {"name": "ppo"},
                "train": {"steps": 1000},
                "runtime": {"env_seconds": 0.5},
            }
        )
    )
    code, _, err = evaluate("--policy", "random", "--env", config, "--episodes", 2, "--out", "out")
    assert code == 1
    assert "hung in step()" in err
    assert "env_seconds=0.5" in err
    assert json.loads((tmp_path / "out" / "evaluation.json").read_text())["status"] == "failed"
