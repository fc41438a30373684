"""Whoever is killed, no engine, no shared segment and no folder of a Doom run stays."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from chaos import gone

pytest.importorskip("vizdoom")

PROCESSES = ("runtime.kind=processes", "runtime.workers=2")
CONFIG = {
    "env": {"id": "doom/basic", "groups": 2, "group_size": 2, "args": {"width": 40, "height": 36}},
    "algorithm": {"name": "ppo", "unroll": 8, "minibatch": 32, "epochs": 1},
    "model": {"features": 16},
}

pytestmark = pytest.mark.slow


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, which must be empty in the end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


def engines(processes):
    return [process for process in processes if process.name() == "vizdoom"]


def left_in(folder, seconds=3.0):
    """Folders of engines that aren't removed in time; others have temporary files too."""
    deadline = time.monotonic() + seconds
    while (found := [name for name in os.listdir(folder) if "doom" in name]) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


@pytest.mark.parametrize(
    ("runtime", "victim"),
    [((), "main"), (PROCESSES, "main"), (PROCESSES, "forkserver")],
    ids=["serial", "processes", "forkserver too"],
)
def test_a_killed_run_leaves_nothing(train, temporary, runtime, victim):
    training = train(*runtime, config=CONFIG)
    training.wait_for_updates(2)
    family = training.family()
    assert len(engines(family)) == 4, "one for each environment"
    if victim == "forkserver":
        next(process for process in family if "forkserver" in " ".join(process.cmdline())).kill()
    family[0].kill()
    training.finish()
    assert not gone(family)
    assert left_in(temporary) == []
    assert not (training.run.parent / "_vizdoom").exists()
    # the fixture of `train` looks at shared memory


@pytest.mark.parametrize("delay", [0.0, 0.08])
def test_a_run_that_is_killed_while_an_engine_starts_leaves_nothing(train, temporary, delay):
    training = train(config=CONFIG)
    main = psutil.Process(training.process.pid)
    while not (starting := [p for p in main.children(recursive=True) if "launcher" in " ".join(p.cmdline())]):
        assert training.process.poll() is None
        time.sleep(0.002)
    time.sleep(delay)
    family = [*starting, *training.family()]
    main.kill()
    training.finish()
    assert not gone(family)
    assert left_in(temporary) == []


def test_an_interrupted_run_ends_in_order(train, temporary):
    training = train(*PROCESSES, config=CONFIG)
    training.wait_for_updates(2)
    family = training.family()
    os.killpg(training.process.pid, 2)  # as a terminal does: everybody in the group gets it
    code, _, err = training.finish()
    assert code == 130, err
    assert not gone(family)
    assert training.summary["failures"]["environments"] == 0
    assert left_in(temporary) == []


def test_a_killed_evaluation_leaves_nothing(tmp_path, temporary, shared_memory_stays_clean):
    command = [
        "evaluate",
        "--policy",
        "random",
        "--env",
        "doom/basic",
        "--episodes",
        "1000",
        "--out",
        str(tmp_path / "out"),
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill", *command], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    main = psutil.Process(process.pid)
    deadline = time.monotonic() + 60
    while not engines(family := main.children(recursive=True)):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(1.0)
    family = [main, *main.children(recursive=True)]
    main.kill()
    process.communicate()
    assert not gone(family)
    assert left_in(temporary) == []
    assert not (tmp_path / "_vizdoom").exists()
