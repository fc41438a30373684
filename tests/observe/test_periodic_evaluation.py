"""Evaluation during training: what it finds is kept, the best checkpoint too, and the training doesn't notice."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

import rollmill
from rollmill.console.standard import default_observers
from rollmill.events import Checkpointed, Progress, RunStarted, Stopped
from rollmill.launch.helper import start_helper
from rollmill.observe.config import EvaluateConfig, ObserveConfig
from rollmill.observe.periodic_evaluation import EvaluationObserver
from rollmill.persist.best import EvaluatedCheckpoints
from rollmill.persist.checkpoints import CheckpointConfig, Checkpoints
from rollmill.persist.rewind import trim

TINY = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 1},
    "train": {"steps": 512},
    "checkpoint": {"updates": 1, "keep": 1},
    "observe": {"console": "none", "tensorboard": False, "curve": False, "baseline_episodes": 0, "final_episodes": 0},
}
EVALUATING = {"observe.evaluate.seconds": 0.01, "observe.evaluate.niceness": 0, "observe.evaluate.finish_seconds": 20.0}
HEADER = "env_steps,updates,episodes,mean,low,high,seconds\n"


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def eventually(condition, seconds: float = 10.0):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
    return found


# --- the tether

FAMILY = """
import os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, os.nice(0), open("/proc/self/autogroup").read().split()[-1], flush=True)
time.sleep(600)
"""


def numbers_in(file: Path) -> list[str]:
    return eventually(lambda: file.exists() and file.read_text().endswith("\n") and file.read_text().split())


def test_a_command_on_a_tether_hands_on_its_output_and_exit_code(tmp_path):
    script = "import sys; print(sys.stdin.read() == ''); sys.exit('sorry')"
    process = start_helper([sys.executable, "-c", script], 3, tmp_path / "out", tmp_path / "err")
    assert process.wait(20)
    assert process.exit_code == 1
    assert ((tmp_path / "out").read_text(), (tmp_path / "err").read_text()) == ("True\n", "sorry\n")
    process.end()
    process = start_helper(
        [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"], 3, tmp_path / "o", tmp_path / "e"
    )
    assert process.wait(20)
    assert process.exit_code == -9
    process.end()


def test_ending_it_ends_all_that_it_started_and_it_was_polite(tmp_path):
    process = start_helper([sys.executable, "-c", FAMILY], 7, tmp_path / "out", tmp_path / "err")
    command, child, niceness, group_niceness = numbers_in(tmp_path / "out")
    assert int(niceness) == int(group_niceness) == os.nice(0) + 7
    process.end()
    assert not is_alive(int(command))
    eventually(lambda: not is_alive(int(child)))


@pytest.mark.parametrize("victim", ["main", "tether"])
def test_it_outlives_neither_the_process_that_started_it_nor_its_tether(tmp_path, victim):
    script = (
        "import sys, time; from pathlib import Path; from rollmill.launch.helper import start_helper\n"
        "t = start_helper([sys.executable, '-c', sys.argv[2]], 0, Path(sys.argv[1], 'out'), Path(sys.argv[1], 'err'))\n"
        "Path(sys.argv[1], 'tether').write_text(f'{t.pid}\\n'); time.sleep(600)"
    )
    main = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), FAMILY])
    command, child, *_ = numbers_in(tmp_path / "out")
    (tether,) = numbers_in(tmp_path / "tether")
    os.kill(main.pid if victim == "main" else int(tether), signal.SIGKILL)
    eventually(lambda: not is_alive(int(command)), 5)
    if victim == "main":
        eventually(lambda: not is_alive(int(child)), 5)
    else:  # only the kernel is left to see it, and it knows of the command alone
        os.kill(int(child), signal.SIGKILL)
        main.kill()
    main.wait()


# --- the checkpoints that it keeps


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run with checkpoints of updates 0 to 4."""
    config = {**TINY, "checkpoint": {"updates": 1, "keep": 10}}
    return rollmill.train(config, run=tmp_path_factory.mktemp("evaluated") / "run").path


@pytest.fixture
def run(finished, tmp_path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run", symlinks=True))


def test_what_is_held_survives_the_checkpoint_and_costs_no_room(run):
    kept = EvaluatedCheckpoints(run / "checkpoints")
    source = run / "checkpoints" / "000000002"
    held = kept.hold(source)
    assert (held / "weights.safetensors").samefile(source / "weights.safetensors")
    shutil.rmtree(source)
    assert Checkpoints.read(held).update == 2
    with pytest.raises(FileNotFoundError):
        kept.hold(run / "checkpoints" / "000000009")
    kept.keep(held, 2)
    assert Checkpoints.read(run / "checkpoints" / "evaluated").update == 2
    kept.keep(kept.hold(run / "checkpoints" / "000000003"), 3)
    assert os.readlink(run / "checkpoints" / "evaluated") == "evaluated-000000003"
    kept.hold(run / "checkpoints" / "000000004")
    kept.sweep(10**6)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {f"00000000{n}" for n in (0, 1, 3, 4)} | {"latest", "best", "evaluated", "evaluated-000000003"}


def test_a_best_one_of_a_future_that_a_resume_took_back_is_forgotten(run):
    kept = EvaluatedCheckpoints(run / "checkpoints")
    kept.keep(kept.hold(run / "checkpoints" / "000000003"), 3)
    kept.sweep(3)
    assert (run / "checkpoints" / "evaluated").exists()
    kept.sweep(2)
    assert not [path.name for path in (run / "checkpoints").iterdir() if path.name.startswith("evaluated")]


def test_nothing_that_it_keeps_disturbs_the_others(run):
    kept = EvaluatedCheckpoints(run / "checkpoints")
    kept.keep(kept.hold(run / "checkpoints" / "000000001"), 1)
    kept.hold(run / "checkpoints" / "000000002")
    checkpoints = Checkpoints(run / "checkpoints", CheckpointConfig(keep=1, best="evaluation"))
    found = checkpoints.newest()
    assert found is not None
    assert (found.content.update, found.complaints) == (4, [])
    checkpoints.write(found.content)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"000000004-1", "latest", "best", "evaluated", "evaluated-000000001", ".held-000000002"}
    assert Checkpoints.read(run / "checkpoints" / "best").update == 1
    assert rollmill.load(run / "checkpoints" / "best")([0.0, 0.0, 0.0, 0.0]) in (0, 1)


# --- the observer


def observer(run: Path, told: list[str], **settings) -> EvaluationObserver:
    return EvaluationObserver(run, EvaluateConfig(**{"seconds": 1e-6, "niceness": 0, **settings}), told.append)


def started(env_steps: int) -> RunStarted:
    return RunStarted(Progress(env_steps=env_steps, updates=env_steps // 128), "ppo on CartPole-v1", (), None, 0)


def saved(run: Path, update: int) -> Checkpointed:
    return Checkpointed(Progress(env_steps=128 * update, updates=update), f"{run}/checkpoints/{update:09d}", 0.0)


def test_a_resumed_run_goes_on_with_the_rows_up_to_its_checkpoint(run):
    rows = ["128,1,10,20.0,18.0,22.0,1.0\n", "256,2,10,30.0,,,1.0\n", "512,4,10,40.0,38.0,42.0,1.0\n", "640,5,1"]
    (run / "evaluations.csv").write_text(HEADER + "".join(rows))
    (run / "checkpoints" / ".held-000000005").mkdir()
    trim(run, 300)
    evaluation = observer(run, [])
    evaluation.receive(started(300))
    evaluation.close()
    assert (run / "evaluations.csv").read_text() == HEADER + "".join(rows[:2])
    assert not (run / "checkpoints" / ".held-000000005").exists()
    best = json.loads((run / "summary.json").read_text())["evaluations"]["best"]
    assert (best["mean"], best["env_steps"]) == (30.0, 256)


@pytest.mark.parametrize("status", ["interrupted", "failed"])
def test_a_run_that_is_cut_short_waits_for_nothing_and_leaves_nothing(run, status):
    told: list[str] = []
    evaluation = observer(run, told, finish_seconds=20.0)
    evaluation.receive(started(0))
    evaluation.receive(saved(run, 2))
    assert (run / "checkpoints" / ".held-000000002").is_dir()
    process = evaluation._running.process
    evaluation.receive(saved(run, 3))  # one at a time
    assert evaluation._running.process is process
    evaluation.receive(Stopped(Progress(), status, ""))
    begun = time.monotonic()
    evaluation.close()
    assert time.monotonic() - begun < 15.0  # ending a process may take 3; finishing it was allowed 20
    assert process.exit_code is not None
    assert not (run / "checkpoints" / ".held-000000002").exists()
    assert list((run / "evaluations").iterdir()) == []
    assert not (run / "evaluations.csv").exists()
    assert told == []


@pytest.mark.slow
def test_a_failed_evaluation_is_told_and_the_next_one_is_tried(run):
    told: list[str] = []
    evaluation = observer(run, told)
    evaluation.receive(started(0))
    (run / "checkpoints" / "000000002" / "weights.safetensors").write_bytes(b"no weights")
    evaluation.receive(saved(run, 2))
    evaluation._running.process.wait(60)
    evaluation.receive(saved(run, 0))  # which has learned nothing, so it is not played
    assert told == [
        f"warning: evaluate: the evaluation at 256 steps ended with code 2; see {run / 'logs' / 'evaluate.log'}"
    ]
    assert "weights.safetensors" in (run / "logs" / "evaluate.log").read_text()
    assert evaluation._running is None
    evaluation.close()


@pytest.mark.slow
def test_the_checkpoint_evaluated_best_stays_and_a_worse_one_goes(run):
    told: list[str] = []
    (run / "evaluations.csv").write_text(HEADER + "128,1,10,2.5,2.0,3.0,1.0\n")  # no pole falls that fast
    evaluation = observer(run, told, episodes=3)
    evaluation.receive(started(128))
    evaluation.receive(saved(run, 2))
    shutil.rmtree(run / "checkpoints" / "000000002")  # training goes on
    evaluation._running.process.wait(60)
    evaluation.receive(saved(run, 0))
    assert told[0].startswith("evaluation at 256 steps: ")
    assert told[0].endswith(", 3 episodes, the best so far")
    assert Checkpoints.read(run / "checkpoints" / "evaluated").update == 2
    evaluation._rows[0] = type(evaluation._rows[0])(128, 1, 10, 501.0, None, None, 1.0)  # better than can be
    evaluation.receive(saved(run, 4))
    evaluation.receive(Stopped(Progress(), "done", ""))
    evaluation.close()
    assert "the best so far" not in told[1]
    assert Checkpoints.read(run / "checkpoints" / "evaluated").update == 2
    assert not list((run / "checkpoints").glob(".held-*"))
    with (run / "evaluations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["env_steps"], row["episodes"]) for row in rows] == [("128", "10"), ("256", "3"), ("512", "3")]
    record = json.loads((run / "evaluations" / "step-000000000512" / "evaluation.json").read_text())
    assert float(rows[2]["mean"]) == record["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_the_training_does_not_notice(tmp_path, kind):
    runtime = {"runtime.kind": kind, "runtime.workers": 2} if kind == "processes" else {}
    plain = rollmill.train(TINY, run=tmp_path / "plain", **runtime)
    best = {"checkpoint.best": "evaluation"}
    evaluated = rollmill.train(TINY, run=tmp_path / "evaluated", **runtime, **EVALUATING, **best)
    assert evaluated.summary["parameters_sha256"] == plain.summary["parameters_sha256"]
    assert (tmp_path / "evaluated" / "logs" / "evaluate.log").stat().st_size > 0  # it was at work
    summary = json.loads((tmp_path / "evaluated" / "summary.json").read_text())
    if "evaluations" not in summary:
        pytest.skip("equal; but this machine is too busy to evaluate within 20 s")
    assert summary["evaluations"]["last"]["env_steps"] == 512  # the last checkpoint always is, if there is time
    assert (
        Checkpoints.read(tmp_path / "evaluated" / "checkpoints" / "best").update
        == (summary["evaluations"]["best"]["updates"])
    )
    assert summary["checkpoints"]["best"] == str(
        tmp_path / "evaluated" / "checkpoints" / (tmp_path / "evaluated" / "checkpoints" / "best").resolve().name
    )


# --- settings


def test_it_is_off_unless_asked_for(tmp_path):
    off, on = (
        [
            one.name
            for one in default_observers(tmp_path, ObserveConfig(console="none", evaluate=EvaluateConfig(**part)))
        ]
        for part in ({}, {"seconds": 60.0})
    )
    assert "evaluate" not in off
    assert on[on.index("summary") + 1 :][-1] == "evaluate"  # behind the summary, which it completes


@pytest.mark.parametrize("wrong", [{"seconds": 0.0}, {"episodes": 0}, {"niceness": 20}, {"finish_seconds": 25.0}])
def test_wrong_settings_are_refused(wrong):
    with pytest.raises(ValidationError):
        EvaluateConfig(**wrong)


def test_it_finds_the_modules_that_the_training_finds(tmp_path, monkeypatch):
    """A script's own folder is on the path of the training, and on that of its workers."""
    (tmp_path / "env_of_the_script.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    process = start_helper([sys.executable, "-c", "import env_of_the_script"], 3, tmp_path / "out", tmp_path / "err")
    assert process.wait(20)
    assert process.exit_code == 0, (tmp_path / "err").read_text()
    process.end()
