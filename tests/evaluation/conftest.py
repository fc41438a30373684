"""A small trained run, and `rollmill evaluate` in this process or in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from small_run import train

from rollmill.cli import main


@pytest.fixture(scope="session")
def run(tmp_path_factory) -> Path:
    """Trained a little on CartPole; tests write their results elsewhere."""
    return train(tmp_path_factory.mktemp("runs") / "cartpole")


@pytest.fixture
def evaluate(capsys, monkeypatch, tmp_path):
    """Run the verb in this process: exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code = main(["evaluate", *map(str, words)])
        return code, *capsys.readouterr()

    return call


class Evaluating:
    """`rollmill evaluate` in a process of its own, for killing."""

    def __init__(self, folder: Path, *words):
        self.out = folder / "out"
        command = [sys.executable, "-m", "rollmill", "evaluate", *map(str, words), "--out", str(self.out)]
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )

    def wait_for_rows(self, count: int, timeout: float = 60) -> None:
        deadline = time.monotonic() + timeout
        while len(self.rows()) < count:
            assert time.monotonic() < deadline, f"no {count} episodes within {timeout} s"
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def rows(self) -> list[str]:
        file = self.out / "episodes.csv"
        return file.read_text().splitlines()[1:] if file.exists() else []

    @property
    def record(self) -> dict:
        return json.loads((self.out / "evaluation.json").read_text())


@pytest.fixture
def start(tmp_path):
    started = []

    def start_one(*words):
        started.append(Evaluating(tmp_path, *words))
        return started[-1]

    yield start_one
    for one in started:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate(timeout=10)
