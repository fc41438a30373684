"""How fast the oscillator is: stepping alone, beside plain numpy, and end to end in training beside the seed's 170/s.

python -m benchmarks.oscillator [--steps 500000] [KEY=VALUE …]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.calibration import calibrate
from benchmarks.machine import describe_commit, describe_machine

CONFIG = "configs/oscillator/ppo.yaml"
SEED_SYSTEM = 170  # env steps/s that seed 000's system made; the goal is 80 times as many
GOAL = 80
NEURONS, SIZE = 1000, 16


def stepping(seconds: float) -> float:
    """Env steps/s of a group on one core, without learning."""
    from rollmill.envs.config import EnvConfig
    from rollmill.envs.make import make_group

    group = make_group(EnvConfig(id="oscillator/bvp", time_limit=10**9), SIZE)
    everyone = np.ones(SIZE, bool)
    group.reset(everyone, np.arange(SIZE))
    action = np.zeros((SIZE, 1), np.float32)
    group.step(action, everyone)  # compiles
    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(100):
            group.step(action, everyone)
        steps += 100 * SIZE
    return steps / elapsed


def plain_numpy(seconds: float) -> float:
    """Steps/s of one ensemble with array operations."""
    draw = np.random.default_rng(0)
    current, state = draw.normal(0.6, 0.1, NEURONS), draw.uniform(-1, 1, (2, NEURONS))

    def slopes(state: np.ndarray) -> np.ndarray:
        x, y = state
        return np.stack([x - x * x * x / 3 - y + current + 0.03 * x.mean(), 0.1 * (x - 0.8 * y + 0.7)])

    steps, started = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - started) < seconds:
        for _ in range(100):
            first = slopes(state)
            second = slopes(state + 0.1 * first)
            third = slopes(state + 0.1 * second)
            fourth = slopes(state + 0.2 * third)
            state = state + 0.2 / 6 * (first + 2 * second + 2 * third + fourth)
        steps += 100
    return steps / elapsed


def training(steps: int, overrides: list[str]) -> float:
    """Env steps/s of a whole run, from its own summary: environments, decisions and learning."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "rollmill", "train", CONFIG, f"train.steps={steps}", *overrides]
        subprocess.run([*command, "--run", str(run)], stdout=subprocess.DEVNULL, check=True)
        summary = json.loads((run / "summary.json").read_text())
        return float(summary["throughput"]["steps_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=500_000, help="of each training run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the training config")
    arguments = parser.parse_args()
    machine = ", ".join(map(str, describe_machine().values()))
    print(f"{machine}; commit {describe_commit()}; calibration loop {calibrate():.0f} ms")
    alone, plain, trained = [], [], []
    for _ in range(arguments.rounds):  # in turn, so that a busy moment hits all
        alone.append(stepping(2.0))
        plain.append(plain_numpy(2.0))
        trained.append(training(arguments.steps, arguments.overrides))
    ratio = statistics.median(a / b for a, b in zip(alone, plain, strict=True))
    print(f"stepping alone, one core: {_spread(alone)} env steps/s; plain numpy {_spread(plain)}; {ratio:.1f} ×")
    times = statistics.median(trained) / SEED_SYSTEM
    print(f"training, {CONFIG}: {_spread(trained)} env steps/s; {times:.0f} × the seed's {SEED_SYSTEM} (goal {GOAL} ×)")


def _spread(values: list[float]) -> str:
    return f"{statistics.median(values):,.0f} ({min(values):,.0f}–{max(values):,.0f})"


if __name__ == "__main__":
    main()
