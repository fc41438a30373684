"""How long a person waits: `rollmill --help`, and `rollmill train` until its first update; medians of several runs."""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.calibration import calibrate

CONFIG = "configs/ppo/cartpole.yaml"


def seconds_of_help() -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "rollmill", "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - started


def seconds_to_first_update(*overrides: str) -> float:
    """From the start of the process until the first row of metrics is on disk."""
    with tempfile.TemporaryDirectory() as folder:
        metrics = Path(folder) / "run" / "metrics.jsonl"
        command = [sys.executable, "-m", "rollmill", "train", CONFIG, "observe.log_interval=0", *overrides]
        started = time.perf_counter()
        process = subprocess.Popen([*command, "--run", str(metrics.parent)], stdout=subprocess.DEVNULL)
        while not metrics.exists() or not metrics.read_bytes():
            time.sleep(0.01)
        seconds = time.perf_counter() - started
        process.terminate()
        process.wait()
        return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    processes = ("runtime.kind=processes", "env.groups=2", "env.group_size=32", "runtime.workers=2")
    print(f"calibration loop {calibrate():.0f} ms")
    for name, measure in {
        "rollmill --help": seconds_of_help,
        f"first update of rollmill train {CONFIG}": seconds_to_first_update,
        "the same with two worker processes": lambda: seconds_to_first_update(*processes),
    }.items():
        measured = [measure() for _ in range(rounds)]
        print(f"{name}: median {statistics.median(measured):.2f} s ({min(measured):.2f}–{max(measured):.2f})")


if __name__ == "__main__":
    main()
