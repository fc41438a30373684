"""`rollmill profile`: sampled stacks, the table made of them, and the flame graph."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from rollmill.cli import main
from rollmill.profiling.flame import draw, grow
from rollmill.profiling.stacks import Sampled, Stack, folded, read_samples
from rollmill.profiling.table import lines_of, processes_of, rows_of
from rollmill.profiling.usage import family_usage, spent
from rollmill.sampling import BEGUN, Sampler, Waits
from rollmill.transport.ports import PortCounters

UPDATE = ("rollmill.learners.learner:Learner.work", "rollmill.algorithms.ppo:PPOUpdate.__call__")
STEP = ("rollmill.learners.optimizer:FlatOptimizer.step",)
BACKWARD = ("torch._tensor:Tensor.backward", "torch.autograd:backward", "torch.autograd.graph:_engine_run_backward")
CONV2D = "rollmill.models.conv2d:_Convolution"
RECORD = {
    "title": "t",
    "seconds": 10.0,
    "wanted_seconds": 10.0,
    "is_interrupted": False,
    "cores": 2,
    "steps_per_second": 9.0,
    "overhead": 0.01,
    "clocks": {},
    "activities": [],
    "processes": [],
}
SVG = "{http://www.w3.org/2000/svg}"


def seen(*frames: str, seconds: float = 1.0, thread: str = "MainThread", place: str = "main") -> Stack:
    return Stack(place, thread, frames, seconds)


@pytest.mark.parametrize(
    ("frames", "component", "activity"),
    [
        ((*UPDATE, "rollmill.models.network:Network.forward"), "learner", "forward"),
        ((*UPDATE, *STEP, "torch._tensor:Tensor.backward", "torch.autograd:backward"), "learner", "backward"),
        (
            (*UPDATE, *STEP, *BACKWARD, "torch.autograd.function:BackwardCFunction.apply", f"{CONV2D}.backward"),
            "learner",
            "backward",
        ),
        (  # a function with a backward pass of its own, on its way forward
            (*UPDATE, "rollmill.models.cnn:CNN.forward", "torch.autograd.function:Function.apply", f"{CONV2D}.forward"),
            "learner",
            "forward",
        ),
        ((*UPDATE, *STEP, "rollmill.learners.optimizer:_Adam.step"), "learner", "optimiser"),
        ((*UPDATE, "rollmill.algorithms.returns:gae"), "learner", "returns, loss"),
        ((UPDATE[0], "rollmill.stores.rollout:RolloutStore.sample"), "learner", "batch assembly"),
        ((UPDATE[0], "rollmill.learners.trainer:Trainer.publish", "x:y"), "learner", "publishing"),
        ((UPDATE[0], "rollmill.learners.flight:FlightLog.write"), "learner", "flight log"),
        (
            ("rollmill.actors.actor:Actor.work", "rollmill.actors.episodes:Episodes.step", "gymnasium.core:Env.step"),
            "actor",
            "env stepping",
        ),
        (
            (
                "rollmill.actors.actor:Actor.work",
                "rollmill.algorithms.policy:StochasticPolicy.act",
                "rollmill.models.network:Network.forward",
            ),
            "actor",
            "inference",
        ),
        (
            ("rollmill.actors.roles:Collector.work", "rollmill.actors.assemble:UnrollAssembler.decided"),
            "collector",
            "assembling, copying",
        ),
        (("rollmill.runtime.supervise:Supervisor.wait",), "learner", "waiting for unrolls"),
    ],
)
def test_a_stack_tells_component_and_activity(frames, component, activity):
    stack = seen(*frames)
    assert (stack.component, stack.activity) == (component, activity)


def test_an_import_is_one_frame_and_no_running_cost(tmp_path):
    """Seen by the sampler itself, so that the frames are those of this Python's import system."""
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(0.5)\n")
    (tmp_path / BEGUN).touch()
    sampler = Sampler("main", tmp_path)
    sampler.start()
    sys.path.insert(0, str(tmp_path))
    try:
        importlib.import_module("slow_to_import")
    finally:
        sys.path.remove(str(tmp_path))
        sampler.stop()
    (sampled,) = read_samples(tmp_path)
    importing = [stack for stack in sampled.stacks if stack.activity == "imports, once"]
    assert sum(stack.seconds for stack in importing) >= 0.3
    assert {stack.frames[-1] for stack in importing} == {"import"}
    assert not any("slow_to_import" in frame for stack in sampled.stacks for frame in stack.frames)
    beside = seen("rollmill.observe.tensorboard:TensorBoard.open", "import", thread="observe-tensorboard")
    assert (beside.component, beside.activity) == ("threads", "imports, once")


def test_a_worker_that_sleeps_waits_for_the_port_at_which_it_looked_in_vain():
    tickets, unrolls = SimpleNamespace(counters=PortCounters()), SimpleNamespace(counters=PortCounters(), reserve=None)
    waits = Waits({"actor.0:tickets": tickets, "actor.0:unrolls": unrolls})
    assert waits.reason() == "waiting for work"
    tickets.counters.waited += 3
    assert waits.reason() == "waiting for tickets"
    assert waits.reason() == "waiting for tickets"  # nothing new: it still does
    unrolls.counters.refused += 1
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
    assert not [row for row in rows_of([sampled]) if "bystander" in row["activity"]]  # it only waited


def test_rows_add_up_and_are_largest_first():
    stacks = (
        seen(*UPDATE, "rollmill.models.network:Network.forward", seconds=2.0),
        seen(*UPDATE, "rollmill.models.heads:Head.forward", seconds=1.0),
        seen("rollmill.runtime.supervise:Supervisor.wait", seconds=6.99),
        seen(UPDATE[0], "rollmill.stores.rollout:RolloutStore.sample", seconds=0.01),
        seen("threading:Condition.wait", seconds=10.0, thread="observe-csv"),
    )
    sampled = Sampled("main", os.getpid(), 10.0, 0.1, stacks)
    rows = rows_of([sampled])
    shares = [(row["activity"], pytest.approx(row["share"])) for row in rows]
    assert shares == [("waiting for unrolls", 0.699), ("forward", 0.3), ("all else", 0.001)]
    (process,) = processes_of([sampled], {os.getpid(): ("python", 5.0)}, 10.0)
    assert process == {"process": "main", "pid": os.getpid(), "cpu_seconds": 5.0, "waiting": pytest.approx(0.699)}
    text = "\n".join(lines_of({**RECORD, "activities": rows, "processes": [process]}))
    assert "2 cores idle 75%" in text  # 5 of 20 seconds


def test_processes_of_one_name_are_one_line():
    games = [{"process": "vizdoom", "pid": n, "cpu_seconds": 0.25, "waiting": None} for n in range(16)]
    worker = {"process": "worker.0", "pid": 99, "cpu_seconds": 6.0, "waiting": 0.4}
    lines = lines_of({**RECORD, "processes": [worker, *games]})
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


def test_the_flame_graph_is_a_picture_of_the_stacks():
    stacks = [seen("a:<b>", "c:d", seconds=3.0), seen("a:<b>", seconds=1.0), seen("e:f", seconds=4.0, place="worker.0")]
    tree = ElementTree.fromstring(draw(grow(stacks), "a & b"))
    shares = {group.get("data-n"): float(group.get("data-w")) for group in tree.iter(f"{SVG}g") if group.get("data-n")}
    assert shares == {"all processes": 1.0, "main": 0.5, "a:<b>": 0.5, "c:d": 0.375, "worker.0": 0.5, "e:f": 0.5}
    # it takes the width of its window and keeps its proportions: 74 + 18 × 4 rows + 10 pixels on 1200
    assert (tree.get("viewBox"), tree.get("width"), tree.get("height")) == ("0 0 1200 156", "100%", None)
    assert "http" not in draw(grow(stacks), "x").replace("http://www.w3.org/2000/svg", "")  # nothing is fetched
    assert folded(stacks).splitlines()[1] == "main;MainThread;a:<b>;c:d 3000"


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = {
        "env": {"id": "CartPole-v1", "groups": 2, "group_size": 4},
        "algorithm": {"name": "ppo", "unroll": 32, "minibatch": 64},
        "train": {"steps": 1000},
    }
    Path("a.yaml").write_text(yaml.safe_dump(values))
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
    for file in ("profile.txt", "flame.svg"):
        assert f"interrupted after {record['seconds']:.1f} s of 60 s" in Path("out", file).read_text()
    assert [row["process"] for row in record["processes"]][:3] == ["main", "worker.0", "worker.1"]
    for row in record["activities"]:  # seconds and shares are of the time in the heading, the shutdown isn't in it
        assert row["seconds"] == pytest.approx(row["share"] * record["seconds"], abs=0.2)
        assert "observe-summary" not in row["activity"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["serial", "processes"])
def test_a_training_is_profiled(config, kind, capsys):
    words = ["profile", config, f"runtime.kind={kind}", "runtime.workers=2", "--seconds", "2", "--out", "out"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "steps/s" in text
    record = json.loads(Path("out/profile.json").read_text())
    shares: dict[str, dict[str, float]] = {}
    for row in record["activities"]:
        activities = shares.setdefault(row["process"], {})
        activities[row["activity"]] = activities.get(row["activity"], 0.0) + row["share"]
    places = {"main"} if kind == "serial" else {"main", "worker.0", "worker.1"}
    assert set(shares) == places
    assert {"forward", "backward", "optimiser"} <= shares["main"].keys()
    plays = "main" if kind == "serial" else "worker.1"
    assert shares[plays]["env stepping"] > 0
    if kind == "processes":
        assert shares["worker.0"]["waiting for tickets"] > 0.2
    threads = sum(row["share"] for row in record["activities"] if row["component"] == "threads")
    assert sum(shares["main"].values()) - threads == pytest.approx(1.0, abs=0.05)
    assert {row["process"] for row in record["processes"]} >= places
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "flame.svg",
        "profile.json",
        "profile.txt",
        "stacks.txt",
    ]
    ElementTree.parse("out/flame.svg")
    assert not Path("runs").exists()
    assert "ROLLMILL_PROFILE" not in os.environ


def test_what_py_spy_recorded_is_read_as_our_own_stacks():
    from rollmill.profiling.native import _read

    main_frames = "main (rollmill/cli/__init__.py:23);_watch (rollmill/profiling/profile.py:9)"
    text = (
        f'process {os.getpid()}:"python -m rollmill";{main_frames};Learner.work (rollmill/learners/learner.py:110);'
        "backward (torch/autograd/__init__.py:395);at::mm (libtorch.so) 25\n"
        f'process {os.getpid()}:"python";process 7:"python -c";Actor.work (rollmill/actors/actor.py:5) 50\n'
        f'process {os.getpid()}:"python";f (a.py:1);_find_and_load (<frozen importlib._bootstrap>:1360);g (b.py:2) 5\n'
    )
    first, second, third = _read(text)
    assert first.frames == ("rollmill.learners.learner:Learner.work", "torch.autograd:backward", "at::mm (libtorch.so)")
    assert (first.place, first.activity, first.seconds) == ("main", "backward", 0.5)
    assert (second.place, second.component, second.seconds) == ("process 7", "actor", 1.0)
    assert (third.frames, third.activity) == (("a:f", "import"), "imports, once")
