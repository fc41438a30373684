"""Killing processes of a run at random moments, and what must hold afterwards."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

import rollmill
from rollmill.retrace import Retrace

DRIVER = Path(__file__).with_name("driver.py")
PPO = {"name": "ppo", "unroll": 16, "epochs": 2, "minibatch": 64}
APPO = {"name": "appo", "unroll": 16, "unrolls": 2, "in_flight": 2, "epochs": 2, "minibatch": 64}
CASES = {
    "cartpole": {"env": {"id": "CartPole-v1", "groups": 4, "group_size": 4}, "algorithm": PPO},
    "pong": {
        "env": {"id": "ALE/Pong-v5", "groups": 2, "group_size": 2, "time_limit": 30, "atari": {"sticky": 0.25}},
        "algorithm": {**PPO, "unroll": 8, "minibatch": 16, "epochs": 1},
    },
    "memory": {
        "env": {"id": "probe/memory-cue", "groups": 4, "group_size": 4},
        "algorithm": PPO,
        "model": {"memory": "gru", "memory_size": 16},
    },
    "vpg": {
        "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
        "algorithm": {"name": "vpg", "learning_rate": 1e-3},
    },
    "replayed": {"env": {"id": "Acrobot-v1", "groups": 2, "group_size": 2}, "algorithm": {**PPO, "minibatch": 32}},
    "appo": {"env": {"id": "CartPole-v1", "groups": 4, "group_size": 4}, "algorithm": APPO},
    "appo-memory": {
        "env": {"id": "probe/memory-cue", "groups": 4, "group_size": 4},
        "algorithm": {**APPO, "adaptive_kl": 0.01},
        "model": {"memory": "gru", "memory_size": 16},
    },
    "appo-pong": {
        "env": {"id": "ALE/Pong-v5", "groups": 2, "group_size": 2, "time_limit": 30, "atari": {"sticky": 0.25}},
        "algorithm": {**APPO, "unroll": 8, "minibatch": 32, "epochs": 1, "normalise_returns": True},
    },
    "appo-replayed": {
        "env": {"id": "Acrobot-v1", "groups": 4, "group_size": 2},
        "algorithm": {**APPO, "in_flight": 3, "target_lag": 2.0},
    },
}
OBSERVE = {"baseline_seconds": 0.1, "final_episodes": 0, "log_interval": 0.0, "curve": False, "console": "none"}
STEPS = {  # of short runs
    "cartpole": 40 * 256,
    "pong": 12 * 32,
    "memory": 30 * 256,
    "vpg": 3000,
    "replayed": 20 * 64,
    "appo": 80 * 128,
    "appo-memory": 60 * 128,
    "appo-pong": 30 * 32,
    "appo-replayed": 100 * 64,
}


@dataclass
class Outcome:
    """What became of a run that was killed and resumed until it was done."""

    sha256: str
    kills: int = 0
    resumes: int = 0
    replaced: list[str] = field(default_factory=list)


def config_of(case: str, kind: str, times: int = 1, roles: str = "fused") -> dict:
    """A short run of a case, or one that is `times` as long."""
    return {
        **CASES[case],
        "train": {"steps": times * STEPS[case]},
        "runtime": {"kind": kind, "workers": 2 if kind == "processes" else 1, "roles": roles},
        "checkpoint": {"updates": 3},
        "observe": {
            "baseline_seconds": 0.1,
            "final_episodes": 0,
            "log_interval": 0.0,
            "curve": False,
            "console": "none",
        },
    }


def undisturbed(case: str, folder: Path, times: int = 1) -> tuple[str, list[tuple[str, ...]], int]:
    """Hash, episodes and updates of a serial run that nobody disturbs."""
    run = rollmill.train(config_of(case, "serial", times), run=folder / f"{case}-undisturbed")
    return run.summary["parameters_sha256"], episodes(run.path), run.summary["updates"]


def episodes(run: Path) -> list[tuple[str, ...]]:
    """Every row of episodes.csv but for the time."""
    with (run / "episodes.csv").open() as file:
        rows = list(csv.DictReader(file))
    return [tuple(value for key, value in row.items() if key != "seconds") for row in rows]


def kill_plan(victims: list[str], updates: int, rng: random.Random, is_patient: bool = False) -> list[str]:
    """Moments for the victims, in order, all of them inside the run; who is patient kills one after the other."""
    moments, held = sorted(rng.sample(range(1, updates - 1), len(victims))), "+" if is_patient else ""
    orders = zip(moments, victims, strict=True)
    return [f"{held}{moment}:{victim}:{rng.random() * 0.02:.4f}" for moment, victim in orders]


def retraced(run: Path) -> str:
    """The hash to which the flight log of a run leads, one step after the other."""
    retrace = Retrace(run)
    assert retrace.script.damage is None
    for _ in retrace.steps():
        pass
    return retrace.sha256


def run_through(case: str, kind: str, folder: Path, plan: list[str], times: int = 1, roles: str = "fused") -> Outcome:
    """Start the run, and resume it whenever its main process was killed, until all kills are done and it ends."""
    run, config = folder / f"{case}-{kind}", folder / f"{case}-{kind}.json"
    config.write_text(json.dumps(config_of(case, kind, times, roles)))
    outcome = Outcome("")
    shared = shared_memory()
    orders = list(plan)
    while True:
        before_main = next((n for n, order in enumerate(orders) if ":main:" in order), len(orders) - 1)
        now, orders = orders[: before_main + 1], orders[before_main + 1 :]
        process = subprocess.Popen(
            [sys.executable, str(DRIVER), str(run), str(config), *now],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        family = _family(process)
        text, _ = process.communicate(timeout=120 * times)
        outcome.kills += text.count("killing ")
        outcome.replaced += [line for line in text.splitlines() if line.startswith("replaced ")]
        left = gone([*family(), *_marked(process.pid)], 2.0)
        assert not left, f"alive 2 s after the end: {left}"
        assert shared_memory() <= shared
        if process.returncode == 0:
            outcome.sha256 = text.rpartition("sha256 ")[2].strip()
            assert not orders, f"the run ended before {orders}"
            return outcome
        assert process.returncode == -9, text
        outcome.resumes += 1


def shared_memory() -> set[str]:
    """What has a name there, but for Doom engines that are starting just now: tests beside this one play it."""
    return {name for name in os.listdir("/dev/shm") if not name.startswith("ViZDoom")}


def gone(processes: list[psutil.Process], seconds: float = 2.0) -> list[psutil.Process]:
    """Those still alive after `seconds`; a zombie is dead, its parent has only not looked yet."""
    deadline = time.monotonic() + seconds
    while True:
        alive = [p for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.05)


def _family(process: subprocess.Popen[str]):
    """Everybody who was ever seen below the process; looked up now and when called."""
    known: dict[int, psutil.Process] = {}

    def look() -> list[psutil.Process]:
        try:
            for child in psutil.Process(process.pid).children(recursive=True):
                known[child.pid] = child
        except psutil.NoSuchProcess:
            pass
        return list(known.values())

    look()
    return look


def _marked(main: int) -> list[psutil.Process]:
    """Processes that carry the mark of the run that `main` led."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("ROLLMILL_RUN", "").startswith(f"{main}:"):
                found.append(process)
        except psutil.Error:
            continue
    return found
