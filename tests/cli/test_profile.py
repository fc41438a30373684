"""`rollmill profile`: sampled stacks, the table made of them, and the flame graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rollmill.cli import main
from rollmill.config.yaml_text import written
from rollmill.launch.stack_sampler import BEGUN, Sampler
from rollmill.profiling.profile_table import lines_of, processes_of, rows_of
from rollmill.profiling.span import family_usage, spent
from rollmill.profiling.stacks import Sampled, Stack, read_samples, speedscope
from rollmill.runtime.worker import Waits
from rollmill.transport.ports import PortCounters

UPDATE = ("rollmill.learners.learner:Learner.work", "rollmill.algorithms.ppo:PPOUpdate.__call__")
RECORD = {
    "title": "t",
    "seconds": 10.0,
    "wanted_seconds": 10.0,
    "is_interrupted": False,
    "cores": 2,
    "steps_per_second": 9.0,
    "overhead": 0.01,
    "clocks": {},
    "functions": [],
    "processes": [],
}


def seen(*frames: str, seconds: float = 1.0, thread: str = "MainThread") -> Stack:
    return Stack(thread, frames, seconds)


@pytest.mark.parametrize(
    ("frames", "function"),
    [
        ((*UPDATE, "rollmill.models.network:Network.forward", "torch.nn:Linear"), "models.network:Network.forward"),
        ((*UPDATE, "torch._tensor:Tensor.backward"), "algorithms.ppo:PPOUpdate.__call__"),
        (("runpy:run_module", "rollmill.runtime.worker:run_worker", "waiting for tickets"), "waiting for tickets"),
        (("mine:main", "json:loads"), "json:loads"),
    ],
)
def test_time_belongs_to_the_innermost_of_our_functions(frames, function):
    assert seen(*frames).function == function
    assert seen(*frames, thread="observer").function == f"{function} (thread observer)"


def test_a_worker_that_sleeps_waits_for_the_port_at_which_it_looked_in_vain():
    tickets, unrolls = PortCounters(), PortCounters()
    waits = Waits({"actor.0:tickets": tickets, "actor.0:unrolls": unrolls})
    assert waits.reason() == "waiting for work"
    tickets.waited += 3
    assert waits.reason() == "waiting for tickets"
    assert waits.reason() == "waiting for tickets"  # nothing new: it still does
    unrolls.refused += 1
    assert waits.reason() == "waiting for slots for unrolls"


def test_the_sampler_sees_where_the_time_goes(tmp_path):
    def burn_long(until: float) -> None:
        while time.perf_counter() < until:
            sum(range(50))

    def burn_short(until: float) -> None:
        while time.perf_counter() < until:
            sum(range(50))

    other = threading.Event()
    threading.Thread(target=other.wait, name="bystander", daemon=True).start()
    (tmp_path / BEGUN).touch()
    sampler = Sampler("main", tmp_path)
    begun = time.perf_counter()
    sampler.start()
    burn_long(begun + 0.75)
    burn_short(begun + 1.0)
    sampler.stop()
    other.set()
    (sampled,) = read_samples(tmp_path)
    long, short = (
        sum(stack.seconds for stack in sampled.stacks if any(name in frame for frame in stack.frames))
        for name in ("burn_long", "burn_short")
    )
    assert sampled.seconds >= 0.9
    assert long > 1.5 * short > 0  # three times as long, on a machine that does nothing else
    assert {stack.thread for stack in sampled.stacks} >= {"MainThread", "bystander"}
    assert not [row for row in rows_of([sampled]) if "bystander" in row["function"]]  # it only waited


def test_rows_add_up_and_are_largest_first():
    stacks = (
        seen(*UPDATE, "rollmill.models.network:Network.forward", seconds=2.0),
        seen(*UPDATE, "rollmill.models.network:Network.forward", "torch:matmul", seconds=1.0),
        seen("rollmill.runtime.worker:run_worker", "waiting for tickets", seconds=6.9),
        *(seen(f"rollmill.a:f{number}", seconds=0.01) for number in range(11)),
        seen("threading:Condition.wait", seconds=10.0, thread="observe-csv"),
    )
    sampled = Sampled("main", os.getpid(), 10.0, 0.1, stacks)
    rows = rows_of([sampled])
    assert [row["function"] for row in rows[:2]] == ["waiting for tickets", "models.network:Network.forward"]
    assert [row["share"] for row in rows[:2]] == pytest.approx([0.69, 0.3])
    assert (len(rows), rows[-1]["function"], rows[-1]["seconds"]) == (13, "all else", pytest.approx(0.01))
    (process,) = processes_of([sampled], {os.getpid(): ("python", 5.0)})
    assert process == {"process": "main", "cpu_seconds": 5.0, "waiting": pytest.approx(0.69)}
    text = "\n".join(lines_of({**RECORD, "functions": rows, "processes": [process]}))
    assert "2 cores idle 75%" in text  # 5 of 20 seconds


def test_processes_that_are_not_sampled_are_one_line_per_name():
    used = {99: ("python", 6.0), **dict.fromkeys(range(16), ("vizdoom", 0.25))}
    rows = processes_of([Sampled("worker.0", 99, 10.0, 0.0, (seen("waiting for tickets", seconds=4.0),))], used)
    lines = lines_of({**RECORD, "processes": rows})
    assert [line.split() for line in lines if "vizdoom" in line] == [["vizdoom", "×", "16", "4.00", "40%", "-"]]
    assert any(line.split() == ["worker.0", "6.00", "60%", "40%"] for line in lines)
    assert any(line.split()[:3] == ["all", "10.00", "100%"] for line in lines)


def test_cpu_seconds_are_of_the_whole_family():
    before = family_usage(os.getpid())
    code = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        child.stdout.readline()
        used = spent(before, family_usage(os.getpid()))
        assert 0.4 <= used[child.pid][1] <= 5.0
        assert os.getpid() in used
        assert os.getppid() not in used
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


def test_the_speedscope_file_has_every_stack_with_its_time():
    stacks = (seen("a:b", "c:d", seconds=3.0), seen("a:b", seconds=1.0), seen("e:f", seconds=2.0, thread="x"))
    waiting = seen("threading:Event.wait", thread="y")
    worker = Sampled("worker.0", 2, 4.0, 0.0, (seen("c:d", seconds=4.0),))
    written = speedscope([Sampled("main", 1, 4.0, 0.0, (*stacks, waiting)), worker], "t")
    names = [frame["name"] for frame in written["shared"]["frames"]]
    found = {
        profile["name"]: {
            tuple(names[number] for number in sample): weight
            for sample, weight in zip(profile["samples"], profile["weights"], strict=True)
        }
        for profile in written["profiles"]
    }
    assert found == {
        "main": {("a:b", "c:d"): 3.0, ("a:b",): 1.0},
        "main, thread x": {("e:f",): 2.0},
        "worker.0": {("c:d",): 4.0},
    }
    assert [profile["endValue"] for profile in written["profiles"]] == [4.0, 2.0, 4.0]
    assert {profile["type"] for profile in written["profiles"]} == {"sampled"}


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {
        "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
        "algorithm": {"name": "ppo", "unroll": 32, "minibatch": 64},
        "train": {"steps": 1000},
    }
    Path("a.yaml").write_text(written(values))
    return "a.yaml"


def test_a_folder_that_holds_something_is_kept(config, capsys):
    Path("out").mkdir()
    Path("out/mine").touch()
    assert main(["profile", config, "--out", "out"]) == 2
    assert "--out out exists" in capsys.readouterr().err
    assert main(["profile", config, "--seconds", "0"]) == 2
    assert "--seconds 0" in capsys.readouterr().err
    assert not Path("profiles").exists()


def test_interrupted_before_there_is_anything_to_see_it_ends_with_130(config, capsys):
    """By the environment itself, in its first unroll, so that it is sure to come before the first update."""
    Path("pressing.py").write_text(
        "import os, signal\n"
        "import gymnasium as gym\n"
        "import numpy as np\n\n\n"
        "class Env(gym.Env):\n"
        "    observation_space, action_space = gym.spaces.Box(-1, 1, (2,), np.float32), gym.spaces.Discrete(2)\n\n"
        "    def reset(self, *, seed=None, options=None):\n"
        "        super().reset(seed=seed)\n"
        "        self.t = 0\n"
        "        return np.zeros(2, np.float32), {}\n\n"
        "    def step(self, action):\n"
        "        self.t += 1\n"
        "        if self.t == 250:\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "        return np.zeros(2, np.float32), 0.0, False, False, {}\n"
    )
    words = ["env.id=pressing.py:Env", "env.time_limit=1000", "algorithm.unroll=300", "algorithm.minibatch=2400"]
    assert main(["profile", config, *words, "--out", "out"]) == 130
    assert not Path("out").exists()


@pytest.mark.slow
def test_an_interrupted_profile_says_so_and_has_seen_training_only(config, tmp_path, monkeypatch, capsys):
    """The signal comes 1.5 s after the first update, while the workers live and nothing has been shut down."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def press() -> None:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(f"rollmill-profile-*/stacks/{BEGUN}")) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(1.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=press, daemon=True).start()
    words = ["runtime.kind=processes", "runtime.workers=2", "--seconds", "60", "--out", "out"]
    assert main(["profile", config, *words]) == 130
    record = json.loads(Path("out/profile.json").read_text())
    assert 1.3 <= record["seconds"] <= 5.0
    assert f"interrupted after {record['seconds']:.1f} s of 60 s" in Path("out/profile.txt").read_text()
    assert [row["process"] for row in record["processes"]][:3] == ["main", "worker.0", "worker.1"]
    for row in record["functions"]:  # seconds and shares are of the time in the heading, the shutdown isn't in it
        assert row["seconds"] == pytest.approx(row["share"] * record["seconds"], abs=0.2)
        assert "observe-summary" not in row["function"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_a_training_is_profiled(config, kind, capsys):
    words = ["profile", config, f"runtime.kind={kind}", "runtime.workers=2", "--seconds", "2", "--out", "out"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "steps/s" in text
    record = json.loads(Path("out/profile.json").read_text())
    shares: dict[str, dict[str, float]] = {}
    for row in record["functions"]:
        shares.setdefault(row["process"], {})[row["function"]] = row["share"]
    places = {"main"} if kind == "serial" else {"main", "worker.0", "worker.1"}
    assert set(shares) == places
    assert shares["main"]["learners.optimizer:FlatOptimizer.accumulate"] > 0.05, "backward"
    if kind == "processes":
        assert shares["worker.0"]["waiting for tickets"] > 0.2
    threads = sum(share for name, share in shares["main"].items() if "(thread " in name)
    assert sum(shares["main"].values()) - threads == pytest.approx(1.0, abs=0.1)
    assert {row["process"] for row in record["processes"]} >= places
    files = sorted(path.name for path in Path("out").iterdir())
    assert files == ["profile.json", "profile.speedscope.json", "profile.txt"]
    written = json.loads(Path("out/profile.speedscope.json").read_text())
    assert places <= {profile["name"] for profile in written["profiles"]}
    assert not Path("runs").exists()
    assert "ROLLMILL_PROFILE" not in os.environ
