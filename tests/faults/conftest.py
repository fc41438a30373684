"""Real runs in processes of their own, which the tests kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

ENVIRONMENT = '''
import os, signal, subprocess, time
import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    """Behaves well until its n-th step, then has the fault it is told to have; `once` names a file that marks it."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, fault="none", after=300):
        self.fault, self.after, self.steps = fault, after, 0
        if fault == "child":
            self.child = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        obs = np.full(2, self.t / 10, np.float32)
        if self.steps == self.after:
            if self.fault == "raise":
                raise RuntimeError("the simulator is out of order")
            if self.fault == "exit":
                os._exit(7)
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.fault == "hang":
                time.sleep(3600)
            if self.fault == "nan":
                obs[1] = np.nan
        return obs, 1.0, False, self.t >= 20, {}

    def close(self):
        if self.fault == "child":
            self.child.kill()
            self.child.wait()
'''


class Training:
    """`rollmill train` in a process of its own."""

    def __init__(self, folder: Path, *overrides: str, run: str = "run", config: dict | None = None):
        self.run = folder / run
        values = {
            "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
            "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 1},
            "train": {"steps": 100_000_000},
            "observe": {"baseline_seconds": 0.1, "lines_interval": 0.2, "log_interval": 0.0, "final_episodes": 0},
        }
        file = folder / f"{run}.yaml"
        file.write_text(json.dumps(values | (config or {})))
        command = [sys.executable, "-m", "rollmill", "train", str(file), *overrides, "--run", str(self.run)]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )

    def wait_for_updates(self, count: int = 3, timeout: float = 90) -> None:
        """Wait until the run has logged some updates."""
        deadline = time.monotonic() + timeout
        metrics = self.run / "metrics.jsonl"
        while not metrics.exists() or len(metrics.read_text().splitlines()) < count:
            assert time.monotonic() < deadline, f"no update within {timeout} s"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.05)

    def family(self) -> list[psutil.Process]:
        """The main process, the forkserver and the workers."""
        main = psutil.Process(self.process.pid)
        return [main, *main.children(recursive=True)]

    def finish(self, timeout: float = 60) -> tuple[int, str, str]:
        """Exit code, stdout, stderr."""
        out, err = self.process.communicate(timeout=timeout)
        return self.process.returncode, out, err

    @property
    def summary(self) -> dict:
        return json.loads((self.run / "summary.json").read_text())


@pytest.fixture
def shared_memory_stays_clean():
    before = set(os.listdir("/dev/shm"))
    yield
    deadline = time.monotonic() + 5  # Doom engines of tests beside this one have named segments while they start
    while not set(os.listdir("/dev/shm")) <= before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert set(os.listdir("/dev/shm")) <= before


@pytest.fixture
def train(tmp_path, shared_memory_stays_clean):
    (tmp_path / "faulty.py").write_text(ENVIRONMENT)
    trainings = []

    def start(*overrides, **options):
        trainings.append(Training(tmp_path, *overrides, **options))
        return trainings[-1]

    yield start
    for training in trainings:
        if training.process.poll() is None:
            training.process.kill()
        with suppress(subprocess.TimeoutExpired):
            training.process.communicate(timeout=10)
