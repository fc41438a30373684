"""Measures ours and the peers in turn, A-B-A-B, and prints medians, spread and ratios: `make bench`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python benchmarks/run.py` works like `-m`

from benchmarks import report
from benchmarks.machine import describe_run
from benchmarks.report import show
from benchmarks.runner import Runner
from benchmarks.venvs import SetUpFailed, set_up
from benchmarks.workloads import PEERS, WORKLOADS, Workload

QUICK = {"rounds": 1, "seconds": 3.0}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=WORKLOADS, action="append", help="this workload (may be repeated)")
    parser.add_argument("--peers", default=",".join(PEERS), help=f"comma-separated, of {', '.join(PEERS)}")
    parser.add_argument("--rounds", type=int, default=3, help="pairs of runs per peer; the round is the seed")
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each throughput measurement")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait, and to repeat a run, while others use the machine"
    )
    parser.add_argument(
        "--resume", action="store_true", help="keep the rounds in results/ and make those that are missing"
    )
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
        for record in measure(WORKLOADS[name], pythons, skipped, arguments):  # saved after every round
            folder = report.RESULTS / "quick" if arguments.quick else report.RESULTS
            report.save(record, report.markdown(record), folder)
        show(report.HEADER, report.rows(record))
        print("\n".join(report.returns_lines(record)), flush=True)
    if not arguments.quick:
        report.refresh_readme()


def set_up_peers(names: list[str]) -> tuple[dict[str, Path], dict[str, str]]:
    """The Python of each peer that can be installed, and why the others can't."""
    pythons: dict[str, Path] = {}
    skipped: dict[str, str] = {}
    for name in names:
        folder = PEERS[name].folder
        if folder is None:
            pythons[name] = Path(sys.executable)
            continue
        try:
            pythons[name] = set_up(folder)
        except SetUpFailed as failure:
            skipped[name] = str(failure)
            print(f"{name} skipped: {failure}", flush=True)
    return pythons, skipped


def measure(
    workload: Workload, pythons: dict[str, Path], skipped: dict[str, str], arguments: argparse.Namespace
) -> Iterator[report.Record]:
    """The rounds of one workload so far, after each of them: ours, peer, ours, next peer, …"""
    print(f"\n{workload.name}: {workload.title}", flush=True)
    runner = Runner(arguments.seconds, arguments.patience)
    peers = [PEERS[name] for name in pythons if name in workload.goals]
    load = os.getloadavg()[0]
    pairs = report.saved_pairs(workload.name) if arguments.resume else []
    for round_number in range(1 + max((pair["round"] for pair in pairs), default=0), arguments.rounds + 1):
        for peer in peers:
            pair: dict[str, Any] = {"round": round_number, "peer": peer.name, "seed": round_number}
            pair["ours"] = runner.run_ours(workload, round_number)
            pair["theirs"] = runner.run_peer(workload, peer, pythons[peer.name], round_number)
            pairs.append(pair)
        yield {
            "workload": workload.name,
            "title": workload.title,
            "unit": workload.unit,
            **describe_run(load, {peer.folder: pythons[peer.name] for peer in peers if peer.folder}),
            "skipped": {name: reason for name, reason in skipped.items() if name in workload.goals},
            "summary": report.summarise(workload, pairs),
            "pairs": pairs,
        }


if __name__ == "__main__":
    main()
