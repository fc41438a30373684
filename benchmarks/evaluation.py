"""What evaluating during training costs it: steps/s of the same run with and without, in turn, as ratios.

python -m benchmarks.evaluation --rounds 3 --steps 150000
"""

from __future__ import annotations

import argparse
import csv
import statistics
import tempfile
from pathlib import Path

import rollmill

CONFIG = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 8},
    "algorithm": {"name": "ppo", "unroll": 64, "minibatch": 256},
    "train": {"steps": 0},
    "runtime": {"kind": "processes", "workers": 2},  # both cores of a small machine are busy
    "checkpoint": {"seconds": 1},
    "observe": {"console": "none", "tensorboard": False, "curve": False, "baseline_episodes": 0, "final_episodes": 0},
}
WITHOUT = "without"
CASES = {WITHOUT: None, "niceness 19": 19, "niceness 10": 10, "niceness 0": 0}


def measure(steps: int, niceness: int | None) -> tuple[float, int]:
    """Steps per second, and how many evaluations were finished (at least one is always running)."""
    evaluating = {} if niceness is None else {"observe.evaluate.seconds": 0.1, "observe.evaluate.niceness": niceness}
    with tempfile.TemporaryDirectory() as folder:
        run = rollmill.train(
            CONFIG,
            run=Path(folder, "run"),
            **{"train.steps": steps, "observe.evaluate.finish_seconds": 0.0},
            **evaluating,
        )
        file = run.path / "evaluations.csv"
        finished = len(list(csv.reader(file.open()))) - 1 if file.exists() else 0
        return float(run.summary["throughput"]["steps_per_second"]), finished


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150_000)
    options = parser.parse_args()
    ratios: dict[str, list[float]] = {name: [] for name in CASES}
    for number in range(options.rounds):
        found = {name: measure(options.steps, niceness) for name, niceness in CASES.items()}
        for name, (speed, finished) in found.items():
            ratios[name].append(speed / found[WITHOUT][0])
            print(f"round {number + 1}  {name:<12} {speed:8,.0f} steps/s  {finished} evaluations", flush=True)
    for name, values in ratios.items():
        spread = f"{min(values):.3f} to {max(values):.3f}"
        print(f"{name:<12} {statistics.median(values):.3f} of the speed without (median; {spread})")


if __name__ == "__main__":
    main()
