"""Measures ours and the peers in turn, A-B-A-B, and prints medians, spread and ratios: `make bench`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python benchmarks/run.py` works like `-m`

from rich.console import Console
from rich.table import Table

from benchmarks import report
from benchmarks.bystanders import Bystanders
from benchmarks.calibration import calibrate
from benchmarks.machine import ROOT, describe_commit, describe_machine, package_versions
from benchmarks.venvs import SetUpFailed, set_up
from benchmarks.workloads import PEERS, WORKLOADS, Peer, Workload

START_UP = 600.0  # seconds that a run may take beyond its measurement, or to solve its task
QUICK = {"rounds": 1, "seconds": 3.0}
CONTROLLED = ("OMP_", "MKL_", "OPENBLAS_", "GOMP_", "KMP_", "MALLOC_", "PYTHONPATH", "PYTHONWARNINGS")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKLOADS, action="append", help="this workload (may be repeated)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs per peer; the round is the seed")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each throughput measurement")
    parser.add_argument("--quick", action="store_true", help="one round of 3 s; kept apart in results/quick")
    arguments = parser.parse_args()
    arguments.peers = arguments.peers.split(",")
    if unknown := [name for name in arguments.peers if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]!r}: choose from {', '.join(PEERS)}")
    if arguments.quick:
        vars(arguments).update(QUICK)
    return arguments


def main() -> None:
    arguments = parse_arguments()
    pythons, skipped = set_up_peers(arguments.peers)
    for name in arguments.only or WORKLOADS:
        record = measure(WORKLOADS[name], pythons, skipped, arguments)
        report.save(record, report.RESULTS / "quick" if arguments.quick else report.RESULTS)
        show(record)
    if not arguments.quick:
        report.refresh_readme()


def set_up_peers(names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """The Python of each peer that can be installed, and why the others can't."""
    pythons: dict[str, Path] = {}
    skipped: dict[str, str] = {}
    for name in names:
        try:
            pythons[name] = set_up(PEERS[name].folder)
        except SetUpFailed as failure:
            skipped[name] = str(failure)
            print(f"{name} skipped: {failure}", flush=True)
    return pythons, skipped


def measure(
    workload: Workload, pythons: dict[str, Path], skipped: dict[str, str], arguments: argparse.Namespace
) -> report.Record:
    """All rounds of one workload: ours, peer, ours, next peer, …"""
    print(f"\n{workload.name}: {workload.title}", flush=True)
    peers = [PEERS[name] for name in pythons if name in workload.goals]
    load, pairs = os.getloadavg()[0], []
    for round_number in range(1, arguments.rounds + 1):
        for peer in peers:
            pair: dict[str, Any] = {"round": round_number, "peer": peer.name, "seed": round_number}
            pair["ours"] = run_ours(workload, arguments.seconds, round_number)
            pair["theirs"] = run_peer(workload, peer, pythons[peer.name], arguments.seconds, round_number)
            pairs.append(pair)
    return {
        "workload": workload.name,
        "title": workload.title,
        "unit": workload.unit,
        "command": shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": describe_commit(),
        "machine": describe_machine(),
        "load": load,
        "versions": {"ours": package_versions(Path(sys.executable))}
        | {peer.folder: package_versions(pythons[peer.name]) for peer in peers},
        "skipped": {name: reason for name, reason in skipped.items() if name in workload.goals},
        "summary": report.summarise(workload, pairs),
        "pairs": pairs,
    }


def run_ours(workload: Workload, seconds: float, seed: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.ours", workload.name]
    return run_side("ours", workload, command, {}, seconds, seed)


def run_peer(workload: Workload, peer: Peer, python: Path, seconds: float, seed: int) -> dict[str, Any]:
    command = [str(python), "-m", f"benchmarks.peers.{peer.folder}.{workload.module}"]
    return run_side(peer.name, workload, command, peer.environment, seconds, seed)


def run_side(
    name: str, workload: Workload, command: list[str], environment: dict[str, str], seconds: float, seed: int
) -> dict[str, Any]:
    """One run between two calibrations; a run that fails has no value and its reason is printed."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(CONTROLLED)}
    before, bystanders, start = calibrate(), Bystanders(), time.perf_counter()
    try:
        process = subprocess.run(
            [*command, "--seconds", str(seconds), "--seed", str(seed)],
            cwd=ROOT,
            env={**inherited, **environment},
            capture_output=True,
            text=True,
            timeout=seconds + START_UP,
            check=False,
        )
        output = process.stdout
        failure = (process.stderr or "no output") if process.returncode or not output else None
    except subprocess.TimeoutExpired:
        output, failure = "", f"no result within {seconds + START_UP:.0f} s"
    wall, others = time.perf_counter() - start, bystanders.cores()
    result = json.loads(output.splitlines()[-1]) if failure is None else {}
    value, after = result.get(workload.metric), calibrate()
    figure = f"{value:10.1f} {workload.unit}" if value else "no value"
    conditions = f"calibration {before:.0f} → {after:.0f} ms, others took {others:.2f} cores"
    print(f"  seed {seed}  {name:12} {figure:20} {conditions}", flush=True)
    if failure:
        print("    " + "\n    ".join(failure.strip().splitlines()[-5:]), flush=True)
    return {
        "value": value,
        "calibration_ms": [round(before, 1), round(after, 1)],
        "other_cores": round(others, 3),
        "wall_seconds": round(wall, 2),
        **result,
    }


def show(record: report.Record) -> None:
    """The table on the terminal."""
    table = Table(*report.HEADER)
    for row in report.rows(record):
        table.add_row(*row)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


if __name__ == "__main__":
    main()
