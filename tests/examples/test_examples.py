"""The examples run as they stand."""

from __future__ import annotations

import re
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
    said = run("watch_events.py", "30", "train.steps=20000", cwd=tmp_path)
    assert "mean return" in said
    steps = int(said.split()[0])
    assert 0 < steps <= 22_000
    folder = said.split("run ")[1].strip()
    assert run("play_policy.py", folder, "2", cwd=tmp_path).startswith("returns: [")


@pytest.mark.slow
def test_the_best_episodes_of_the_last_tenth_are_kept(tmp_path):
    import numpy as np

    # few, so that some are left out: how many end in the last tenth depends on the policy, and so on the CPU
    observer = f"{{path: {ROOT / 'examples' / 'best_episodes.py'}:BestEpisodes, args: {{keep: 3}}, overflow: block}}"
    words = ("train.steps=40000", "observe.console=none", f"observe.observers=[{observer}]")
    said = run("best_episodes.py", *words, cwd=tmp_path)
    kept, seen = (int(number) for number in re.match(r"kept (\d+) of (\d+) ", said).groups())
    assert kept == 3 < seen
    folder = tmp_path / said.split(" in ")[1].strip()
    episodes = [dict(np.load(file)) for file in sorted(folder.glob("*.npz"))]
    returns = [float(episode["raw_return"]) for episode in episodes]
    assert len(returns) == kept
    assert returns == sorted(returns, reverse=True)
    for episode, value in zip(episodes, returns, strict=True):
        steps = len(episode["action"])
        assert value == steps == len(episode["reward"]) == len(episode["version"]), "CartPole pays 1 a step"
        assert episode["obs"].shape == (steps + 1, 4)
        assert (np.abs(episode["obs"][0]) <= 0.05).all(), "where CartPole begins"
        assert (np.diff(episode["version"]) >= 0).all()
        last = episode["obs"][-1]
        assert episode["truncated"] or abs(last[0]) > 2.4 or abs(last[2]) > 0.2095, "where CartPole ends"
    # 20 updates of 2,048 steps; 0.9 × 40,000 = 36,000 is passed with the 18th: an episode ends with version 17 or later
    assert min(episode["version"][-1] for episode in episodes) >= 17


@pytest.mark.slow
def test_a_target_need_not_be_given(tmp_path):
    assert "mean return" in run("watch_events.py", "train.steps=5000", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("play_policy.py", [], "usage: python examples/play_policy.py RUN [EPISODES]"),
        ("play_policy.py", ["runs/x", "many"], "usage: "),
        ("play_policy.py", ["nowhere"], "nowhere"),
        ("watch_events.py", ["high"], "usage: python examples/watch_events.py [TARGET] [KEY=VALUE]"),
        ("watch_events.py", ["train.step=5000"], "did you mean 'steps'?"),
    ],
)
def test_wrong_words_get_one_line(script, words, said, tmp_path):
    command = [sys.executable, str(ROOT / "examples" / script), *words]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert result.returncode == 1
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_examples_are_short():
    for script in (ROOT / "examples").glob("*.py"):
        assert len(script.read_text().splitlines()) <= 60, script.name
