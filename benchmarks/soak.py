"""What a long run costs: does the memory of its processes stay as it is, and how long do checkpoints hold it up?"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that `python benchmarks/soak.py` works like `-m`

from benchmarks import report
from benchmarks.bystanders import Bystanders
from benchmarks.machine import ROOT, describe_run
from benchmarks.memory import EDGE, Growth, ProcessTree, Sample, growth, thinned
from rollmill.events import Checkpointed, Checkpointing, Updated
from rollmill.experiment import Experiment, load_config

CARTPOLE, PONG = "configs/ppo/cartpole.yaml", "configs/ppo/pong.yaml"
RUNTIMES = {
    "processes": ("runtime.kind=processes", "runtime.workers=2", "env.groups=2", "env.group_size=32"),
    "serial": ("runtime.kind=serial",),
}
SAMPLE_SECONDS = 1.0
WARM_UP = 0.25  # of the steps
MOST_GROWTH = 1.0  # percent, of a process's own memory and of all that is resident
MOST_SHARE = 0.02  # of wall time in checkpoints

MEMORY_HEADER = ("process", "samples", "own MB", "growth", "resident MB", "growth", f"≤ {MOST_GROWTH:g} %")
CHECKPOINT_HEADER = (
    "wall s",
    "checkpoints",
    "made at s",
    "s each",
    "s in all",
    "share",
    "goal",
    "summary's share",
    "MB each",
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("memory", "checkpoints"), help="one of the two measurements")
    parser.add_argument("--steps", type=int, default=2_000_000, help="of CartPole, for the memory")
    parser.add_argument("--runtime", choices=RUNTIMES, default="processes", help="of the run whose memory is watched")
    parser.add_argument("--seconds", type=float, default=130.0, help="of Pong, for the checkpoints: over two intervals")
    parser.add_argument("--results", type=Path, default=report.RESULTS, help="folder of the results")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that what we started ends too
    passed = []
    if arguments.only != "checkpoints":
        passed.append(soak_memory(arguments.steps, arguments.runtime, arguments.results))
    if arguments.only != "memory":
        passed.append(time_checkpoints(arguments.seconds, arguments.results))
    raise SystemExit(0 if all(passed) else 1)


def soak_memory(steps: int, runtime: str, results: Path) -> bool:
    """Whether no process of a long run on CartPole grows."""
    title = f"Memory of `rollmill train {CARTPOLE}` with the {runtime} runtime over {steps / 1e6:g} million steps"
    print(title, flush=True)
    load, bystanders = os.getloadavg()[0], Bystanders()
    with tempfile.TemporaryDirectory() as folder:
        samples, summary = watch_training(steps, runtime, Path(folder) / "run")
    warm = {name: [one for one in every if one.env_steps >= WARM_UP * steps] for name, every in samples.items()}
    warm = {name: every for name, every in warm.items() if every}  # without helpers that only began it
    verdicts = {name: is_flat(every) for name, every in warm.items()}
    record = {
        "workload": f"soak-memory-{runtime}",
        "title": f"{title}: medians of the first and the last {EDGE:.0%} of the samples, one per second, after the "
        f"first {WARM_UP:.0%} of the steps. A process's own memory is what it has written and shares with no other; "
        "resident memory has libraries and shared memory too.",
        **describe_run(load, {}),
        "other_cores": bystanders.cores(),
        "throughput": summary["throughput"],
        "env_steps": summary["env_steps"],
        "flat": verdicts,
        "samples": {name: [asdict(one) for one in thinned(every)] for name, every in samples.items()},
    }
    body = [memory_row(name, every) for name, every in warm.items()]
    publish(record, MEMORY_HEADER, body, results)
    return all(verdict is True for verdict in verdicts.values())


def watch_training(steps: int, runtime: str, run: Path) -> tuple[dict[str, list[Sample]], dict[str, Any]]:
    """The memory of a real run's processes while it trains, and its summary."""
    overrides = (f"train.steps={steps}", "observe.console=none", *RUNTIMES[runtime])
    command = [sys.executable, "-m", "rollmill", "train", CARTPOLE, *overrides, "--run", str(run)]
    process = subprocess.Popen(command, cwd=ROOT)
    try:
        tree = ProcessTree(process.pid)
        while process.poll() is None:
            time.sleep(SAMPLE_SECONDS)
            env_steps = newest_env_steps(run / "metrics.jsonl")
            if env_steps is not None and env_steps < steps:  # what follows plays the policy and draws the curve
                tree.look(env_steps)
    finally:
        process.terminate()  # if it still runs
        process.wait()
    if process.returncode:
        raise SystemExit(f"rollmill train ended with {process.returncode}")
    return tree.samples, json.loads((run / "summary.json").read_text())


def newest_env_steps(metrics: Path) -> int | None:
    """How far a run has come; None before its first row of metrics."""
    if not metrics.exists():
        return None
    with metrics.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 8192))
        lines = file.read().split(b"\n")[:-1]  # the last one is empty or half written
    return json.loads(lines[-1])["env_steps"] if lines else None


def is_flat(samples: Sequence[Sample]) -> bool | None:
    """Whether neither own nor resident memory grew; None if there is too little to tell."""
    changes = growth([one.own for one in samples]), growth([one.resident for one in samples])
    return None if None in changes else all(change.percent <= MOST_GROWTH for change in changes if change)


def memory_row(name: str, samples: Sequence[Sample]) -> tuple[str, ...]:
    own, resident = growth([one.own for one in samples]), growth([one.resident for one in samples])
    verdict = {True: "yes", False: "NO", None: "too few samples"}[is_flat(samples)]
    return name, str(len(samples)), span(own), percent(own), span(resident), percent(resident), verdict


def span(change: Growth | None) -> str:
    return f"{change.start:.1f} → {change.end:.1f}" if change else "–"


def percent(change: Growth | None) -> str:
    return f"{change.percent:+.2f} %" if change else "–"


def time_checkpoints(seconds: float, results: Path) -> bool:
    """Whether checkpoints at the default interval take a small enough part of a run on Pong."""
    print(f"Checkpoints of {PONG} for {seconds:.0f} s", flush=True)
    load, bystanders = os.getloadavg()[0], Bystanders()
    with tempfile.TemporaryDirectory() as folder:
        experiment = Experiment(load_config(str(ROOT / PONG), ["observe.console=none"]), run=Path(folder) / "run")
        at, spent, sizes = train_on_pong(experiment, seconds)
    account, wall = experiment.summary["checkpoints"], experiment.summary["throughput"]["seconds"]
    interval = experiment.config.checkpoint.seconds
    share = sum(spent) / wall
    record = {
        "workload": "soak-checkpoints",
        "title": f"Checkpoints of `{PONG}`, one every {interval:g} s (the default), one before the first update and "
        "one at the end: seconds from the decision to make one until training goes on, flushing the files beside it "
        "included, divided by wall time. The summary's own share leaves the flushing out.",
        **describe_run(load, {}),
        "other_cores": bystanders.cores(),
        "wall_seconds": wall,
        "made_at_seconds": at,
        "checkpoint_seconds": spent,
        "share": share,
        "bytes": sizes,
        "checkpoints": {key: account[key] for key in ("written", "failed", "seconds", "share")},
    }
    row = (
        f"{wall:.1f}",
        str(account["written"]),
        "; ".join(f"{one:.1f}" for one in at),
        "; ".join(f"{one:.3f}" for one in spent),
        f"{sum(spent):.3f}",
        f"{share:.2%}",
        f"≤ {MOST_SHARE:.0%}",
        f"{account['share']:.2%}",
        "; ".join(f"{size / 2**20:.1f}" for size in sizes),
    )
    publish(record, CHECKPOINT_HEADER, [row], results)
    return bool(share <= MOST_SHARE and account["failed"] == 0)


def train_on_pong(experiment: Experiment, seconds: float) -> tuple[list[float], list[float], list[int]]:
    """When each checkpoint was made, the seconds that it held the training up, and the bytes that it takes on disk."""
    at, spent, sizes = [], [], []
    begun = 0.0
    for event in experiment.run():
        if isinstance(event, Checkpointing):
            begun = time.perf_counter()
            at.append(event.progress.seconds)
        elif isinstance(event, Checkpointed):
            spent.append(time.perf_counter() - begun)
            sizes.append(sum(file.stat().st_size for file in Path(event.path).rglob("*") if file.is_file()))
        elif isinstance(event, Updated) and event.progress.seconds >= seconds:
            experiment.stop()
    return at, spent, sizes


def publish(record: report.Record, header: Sequence[str], body: list[tuple[str, ...]], results: Path) -> None:
    """Prints the table, and writes JSON and Markdown."""
    report.show(header, body)
    disturbed = f"- others took {record['other_cores']:.2f} cores during the run"
    lines = [f"# {record['workload']}", "", record["title"], "", *report.table(header, body), ""]
    report.save(record, "\n".join([*lines, *report.facts(record), disturbed, ""]), results)


if __name__ == "__main__":
    main()
