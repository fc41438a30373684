"""Families of environments are added by entry points: ours, and those of any installed package."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

FAMILY = """
import gymnasium as gym
import numpy as np

from rollmill.envs.gym_group import GymGroup

PATHS = ()
SCRIPTS = {}


class Line(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(2, np.float32), float(action), self.t == 5, False, {}


def names():
    return ["mine/line"]


def make_group(config, size, pictures=False):
    return GymGroup(config.id, Line, size)
"""


@pytest.fixture
def rollmill(tmp_path):
    """The command line where a package with a family is installed; its arguments → exit code and output."""

    def install(name, points, **files):
        about = tmp_path / f"{name}-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[rollmill.envs]\n{points}\n")
        for module, text in files.items():
            (tmp_path / f"{module}.py").write_text(text)

    def run(*words):
        command = [sys.executable, "-m", "rollmill", *words]
        done = subprocess.run(
            command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
        )
        return done.returncode, done.stdout + done.stderr

    install("line-envs", "mine = line_envs", line_envs=FAMILY)
    run.install = install
    return run


@pytest.mark.slow
def test_a_package_adds_environments_by_an_entry_point(rollmill, tmp_path):
    (tmp_path / "line.yaml").write_text(
        "env: {id: mine/line, groups: 2, group_size: 4}\nalgorithm: {name: ppo, unroll: 16, minibatch: 128}\n"
        "train: {steps: 512}\nruntime: {kind: processes, workers: 2}\n"
    )
    code, output = rollmill("train", "line.yaml", "--run", "run")
    assert code == 0, output
    code, output = rollmill("list", "envs")
    assert code == 0
    assert "mine/line" in output.split()
    assert "doom/basic" in output.split(), "ours are registered in the same way"
    code, output = rollmill("train", "line.yaml", "env.id=mine/lime", "--run", "other")
    assert code == 2
    assert "env.id=mine/lime: no such environment; did you mean 'mine/line'?" in output


@pytest.mark.slow
def test_a_family_that_can_not_be_used_is_refused_in_one_line(rollmill):
    rollmill.install("broken-envs", "broken = broken_envs", broken_envs="import no_such_module")
    code, output = rollmill("check", "--help")
    assert code == 0
    code, output = rollmill("list", "envs")
    assert code == 2
    assert "environments broken/ of broken-envs can't be imported: ModuleNotFoundError: " in output
    assert "Traceback" not in output
    rollmill.install("twin-envs", "mine = twin_envs", twin_envs=FAMILY)
    code, output = rollmill("list", "envs")
    assert code == 2
    assert "environments mine/ are registered twice, by " in output
