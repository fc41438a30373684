"""`rollmill evaluate` among environments, machines and users that mean no good."""

from __future__ import annotations

import csv
import json
import math
import os

import pytest

from rollmill.play.evaluation_folder import EvaluationFolder

HOSTILE = """
import gymnasium as gym
import numpy as np


class Base(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps, self.seed = 0, seed or 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), float(action), self.steps == 4, False, self.tell()

    def tell(self):
        return {}


class Talker(Base):
    def tell(self):
        return {"nan": float("nan"), ("a", 1): {2}, 3: np.float32(0.5), "deep": [{"inf": np.array([np.inf, 1.0])}]}


class Poisoner(Base):
    def step(self, action):
        obs, reward, *rest = super().step(action)
        return obs, float("nan") if self.steps == 3 and self.seed % 4 == 0 else reward, *rest


class Hater(Base):
    def step(self, action):
        if self.steps == 2 and action == 0:
            raise ValueError("no zeros here")
        return super().step(action)
"""


@pytest.fixture
def hostile(tmp_path):
    (tmp_path / "hostile.py").write_text(HOSTILE)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--env", "Pendulum-v1", "--policy", "constant:nan"], "--policy constant:nan is outside of the actions"),
        (["--env", "CartPole-v1", "--policy", "random", "--workers", "100000"], "--workers 100000 is more than"),
    ],
)
def test_what_would_play_nonsense_or_take_the_machine_is_refused(words, line, evaluate, tmp_path):
    code, _, err = evaluate(*words)
    assert (code, err.count("\n")) == (2, 1)
    assert line in err
    assert not list(tmp_path.iterdir())


def test_a_constant_action_is_one_player_however_it_is_written(evaluate):
    _, out, _ = evaluate("--env", "CartPole-v1", "--policy", "constant:01", "--episodes", 1, "--json")
    told = json.loads(out)
    assert told["player"] == "constant:1"
    assert set(told["baselines"]) == {"random", "constant:0"}


def test_an_episode_without_a_finite_return_spoils_no_mean(hostile, evaluate):
    words = "--env", "hostile.py:Poisoner", "--policy", "constant:1", "--episodes", 12, "--no-baselines"
    code, _, err = evaluate(*words, "--out", "out")
    assert code == 0, err
    told = json.loads((hostile / "out" / "evaluation.json").read_text())
    with (hostile / "out" / "episodes.csv").open() as file:
        returns = [float(row["return"]) for row in csv.DictReader(file)]
    assert all(map(math.isfinite, returns))
    assert 0 < told["episodes"] == len(returns) < 12
    assert told["episodes"] + told["failed"]["episodes"] == 12
    assert told["mean"] == 4.0
    assert "its rewards add up to nan" in told["failed"]["messages"][0]


def test_a_baseline_that_fails_again_and_again_costs_the_player_nothing(hostile, evaluate):
    words = "--env", "hostile.py:Hater", "--policy", "constant:1", "--episodes", 20
    code, _, err = evaluate(*words, "--out", "out")
    assert code == 0, err
    told = json.loads((hostile / "out" / "evaluation.json").read_text())
    assert (told["status"], told["episodes"], told["mean"]) == ("done", 20, 4.0)
    assert "constant:0" not in told["baselines"]
    assert told["failed"]["messages"][0].startswith("random, episode ")


def test_whatever_an_environment_says_becomes_strict_json(hostile, evaluate):
    words = "--env", "hostile.py:Talker", "--policy", "random", "--episodes", 1, "--no-baselines", "--dump", "--info"
    assert evaluate(*words, "--out", "out")[0] == 0
    lines = (hostile / "out" / "trajectories" / "episode-00000.info.jsonl").read_text().splitlines()
    assert len(lines) == 5
    said = json.loads(lines[-1], parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert said == {"nan": None, "('a', 1)": "{2}", "3": 0.5, "deep": [{"inf": [None, 1.0]}]}


def test_a_full_disk_is_told_in_one_line(evaluate, monkeypatch):
    def refuse(self, player, played):
        raise OSError(28, os.strerror(28), "out/episodes.csv")

    monkeypatch.setattr(EvaluationFolder, "add", refuse)
    words = "--env", "CartPole-v1", "--policy", "random", "--episodes", 1, "--no-baselines"
    code, _, err = evaluate(*words, "--out", "out")
    assert (code, err.count("\n")) == (1, 1), err
    assert "out/episodes.csv can't be written: No space left on device; make room" in err
