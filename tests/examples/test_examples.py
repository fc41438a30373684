"""The examples run as they stand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(script, *arguments, cwd):
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_the_examples_train_and_play(tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    said = run("watch_events.py", "30", "train.steps=20000", cwd=tmp_path)
    assert "mean return" in said
    steps = int(said.split()[0])
    assert 0 < steps <= 22_000
    folder = said.split("run ")[1].strip()
    assert run("play_policy.py", folder, "2", cwd=tmp_path).startswith("returns: [")


def test_examples_are_short():
    for script in (ROOT / "examples").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 60, script.name
