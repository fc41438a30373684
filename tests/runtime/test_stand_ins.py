"""Replay and offline learning through the whole system: killed, resumed to the same hash, retraced."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("replay_parts.py")
QUIET = ("observe.console=none", "observe.baseline_episodes=0", "observe.final_episodes=0", "observe.curve=false")
RUNTIMES = {"serial": ("runtime.kind=serial",), "processes": ("runtime.kind=processes", "runtime.workers=2")}
CONFIGS = {
    "stand-in": {"train": {"steps": 4800}},  # 300 inserts of 16 steps, so 592 updates after a warm-up of 4
    "offline-stand-in": {"train": {"updates": 600}},
}


def config_file(folder, algorithm, **settings):
    tree = {
        "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
        "model": {"hidden": [8]},
        "algorithm": {"name": algorithm, **settings},
        "checkpoint": {"updates": 25},
        **CONFIGS[algorithm],
    }
    file = folder / f"{algorithm}.yaml"
    file.write_text(json.dumps(tree))  # which is YAML, too
    return file


def rollmill(*words, wait=True):
    command = [sys.executable, str(PROGRAM), *map(str, words)]
    if not wait:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    outcome = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    return outcome.stdout


def summary(run):
    return json.loads((run / "summary.json").read_text())


def what_counts(run):
    return {key: summary(run)[key] for key in ("parameters_sha256", "updates", "env_steps", "episodes")}


def killed(run, *words):
    """Train, and kill the main process after its second checkpoint."""
    process = rollmill("train", *words, "--run", run, wait=False)
    deadline = time.monotonic() + 120
    try:
        while len(list((run / "checkpoints").glob("[0-9]*"))) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert summary(run)["status"] == "running", "it was to be killed before its end"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A run of each to its end, on the serial runtime."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    for algorithm in CONFIGS:
        rollmill("train", config_file(folder, algorithm), *QUIET, "--run", folder / algorithm)
    return {algorithm: folder / algorithm for algorithm in CONFIGS}


def test_a_run_without_actors_makes_its_updates_and_no_steps(uninterrupted):
    found = summary(uninterrupted["offline-stand-in"])
    assert (found["status"], found["updates"], found["env_steps"], found["episodes"]) == ("done", 600, 0, 0)
    assert (found["target_updates"], found["target_steps"], found["resume_grade"]) == (600, 0, "exact")


def test_a_sealed_chunk_of_the_store_is_written_once(uninterrupted):
    checkpoints = uninterrupted["stand-in"] / "checkpoints"
    chunks = [file.stat() for file in checkpoints.glob("[0-9]*/store@0000.safetensors")]
    assert len(chunks) >= 2
    assert len({chunk.st_ino for chunk in chunks}) == 1


@pytest.mark.parametrize("runtime", [pytest.param("serial", marks=pytest.mark.slow), "processes"])
@pytest.mark.parametrize("algorithm", CONFIGS)
def test_a_killed_and_resumed_run_equals_one_that_was_never_killed(algorithm, runtime, uninterrupted, tmp_path):
    run = tmp_path / "run"
    killed(run, config_file(tmp_path, algorithm), *QUIET, *RUNTIMES[runtime])
    rollmill("train", run, "--resume")
    assert len(summary(run)["resumed"]) == 1
    assert what_counts(run) == what_counts(uninterrupted[algorithm])
    assert summary(run)["parameters_sha256"][:12] in rollmill("retrace", run)


def test_an_asynchronous_replay_run_is_retraced_across_a_kill(tmp_path):
    run = tmp_path / "run"
    killed(run, config_file(tmp_path, "stand-in", is_ordered=False), *QUIET, *RUNTIMES["processes"])
    rollmill("train", run, "--resume")
    assert summary(run)["parameters_sha256"][:12] in rollmill("retrace", run)


def test_steps_are_refused_where_no_environment_is_played(tmp_path):
    file = config_file(tmp_path, "offline-stand-in")
    words = [sys.executable, str(PROGRAM), "train", str(file), "train.steps=100", "train.updates=null"]
    outcome = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert outcome.returncode == 2
    assert "train.steps=100: algorithm.name=offline-stand-in plays no environment in training" in outcome.stderr
