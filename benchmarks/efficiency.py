"""How much of what two cores can do our asynchronous training makes of them.

python benchmarks/efficiency.py [--only pong-async] [--rounds 3] [--seconds 20] [--part-seconds 4]

The bound is what both cores reach if they step environments, decide once per step and learn, one after the other and
without anything in between: 1 / (1/environments + 1/decisions + 1/updates), each part measured alone. Environments and
decisions: two processes, each pinned to its core, in groups of the config's size. Updates: one learner, as a run has
one, with two threads or one, whichever is faster. "Two learners" is the efficiency against the stricter bound of two
pinned learners with one thread each, which learn from batches of their own side by side. Parts and training alternate.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

sys.path.insert(
    0, str(Path(__file__).resolve().parents[1])
)  # so that `python benchmarks/efficiency.py` works like `-m`

from benchmarks import report
from benchmarks.machine import ROOT, describe_run
from benchmarks.runner import Runner
from benchmarks.workloads import WORKLOADS, Workload

GOAL = 0.8
ASYNCHRONOUS = [name for name in WORKLOADS if name.endswith("-async")]
PREFIX = "efficiency-"  # of the results' names
COLUMNS = ("environments", "decisions", "updates", "bound", "training", "efficiency", "two learners")
HEADER = ("workload", *COLUMNS, "goal", "others, cores")

Round = dict[str, float]


class PartsProcess:
    """A process that measures parts when it is told to."""

    def __init__(self, workload: str, batch: Path, threads: int, core: int | None) -> None:
        command = [sys.executable, "-m", "benchmarks.parts", workload, "--batch", str(batch), "--threads", str(threads)]
        command += [] if core is None else ["--core", str(core)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def answer(self) -> str:
        """Its next line."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a process that measures parts has failed; see above")
        return line.strip()

    def ask(self, part: str, seconds: float) -> None:
        """Have it measure; `answer` waits for the result."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{part} {seconds}\n")


def together(processes: Sequence[PartsProcess], part: str, seconds: float) -> float:
    """Steps per second of all of them at the same time."""
    for process in processes:
        process.ask(part, seconds)
    return sum(float(process.answer()) for process in processes)


def measure(workload: Workload, runner: Runner, rounds: int, part_seconds: float) -> list[Round]:
    """Every round: each part alone, then the training."""
    print(f"\n{workload.name}: {workload.title}", flush=True)
    found: list[Round] = []
    cores = sorted(os.sched_getaffinity(0))[:2]
    with ExitStack() as stack:
        batch = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "batch"
        free = stack.enter_context(PartsProcess(workload.name, batch, len(cores), None))
        free.answer()  # the batch is there
        pinned = [stack.enter_context(PartsProcess(workload.name, batch, 1, core)) for core in cores]
        for process in pinned:
            process.answer()
        for processes, part in (
            (pinned, "environments"),
            (pinned, "decisions"),
            (pinned, "updates"),
            ([free], "updates"),
        ):
            together(processes, part, 0.1)  # makes what is measured
        for number in range(1, rounds + 1):
            one = {part: together(pinned, part, part_seconds) for part in ("environments", "decisions")}
            one["updates, two threads"] = together([free], "updates", part_seconds)
            one["updates, one thread"] = together(pinned[:1], "updates", part_seconds)
            one["updates"] = max(one["updates, two threads"], one["updates, one thread"])
            one["updates, two learners"] = together(pinned, "updates", part_seconds)
            one["bound"] = bound(one, "updates")
            run = runner.run_ours(workload, number)
            if not run["value"]:
                raise SystemExit(f"{workload.name}: {run.get('failure')}")
            one |= {"training": run["value"], "efficiency": run["value"] / one["bound"]}
            one["two learners"] = run["value"] / bound(one, "updates, two learners")
            one |= {"other_cores": run["other_cores"], "calibration_ms": statistics.mean(run["calibration_ms"])}
            print("  " + ", ".join(f"{name} {value:.3g}" for name, value in one.items()), flush=True)
            found.append(one)
    return found


def bound(parts: Round, updates: str) -> float:
    """Steps per second if the parts follow one another."""
    return 1 / sum(1 / parts[part] for part in ("environments", "decisions", updates))


def rows(record: report.Record) -> list[tuple[str, ...]]:
    """The table's cells, below `HEADER`."""
    count, name = len(record["rounds"]), record["workload"].removeprefix(PREFIX)
    cells = (report.cell(record["summary"][column], count) for column in COLUMNS)
    return [(name, *cells, f"≥ {GOAL}", report.range_of(record["other_cores"]))]


def publish(workload: Workload, rounds: list[Round], load: float, folder: Path) -> float:
    """Prints and keeps the result; the median of the efficiencies."""
    record = {
        "workload": PREFIX + workload.name,
        "title": f"Steps per second of training divided by the bound of two cores. {workload.title}",
        **describe_run(load, {}),
        "summary": {name: report.spread(one[name] for one in rounds) for name in COLUMNS},
        "other_cores": report.spread(one["other_cores"] for one in rounds),
        "rounds": rounds,
    }
    every = [tuple(f"{value:.4g}" for value in one.values()) for one in rounds]
    lines = [f"# {record['workload']}", "", record["title"], "", *report.table(HEADER, rows(record)), ""]
    lines += [*report.facts(record), "", "## Every round", "", *report.table(list(rounds[0]), every), ""]
    report.show(HEADER, rows(record))
    report.save(record, "\n".join(lines), folder)
    return statistics.median(one["efficiency"] for one in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=ASYNCHRONOUS, action="append", help="this workload (may be repeated)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0, help="length of each training")
    parser.add_argument("--part-seconds", type=float, default=4.0, help="length of each part's measurement")
    parser.add_argument(
        "--patience", type=float, default=0.0, help="seconds to wait, and to repeat a training, while others are busy"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 3 s; kept apart in results/quick")
    options = parser.parse_args()
    if options.quick:
        options.rounds, options.seconds, options.part_seconds = 1, 3.0, 1.0
    folder = report.RESULTS / "quick" if options.quick else report.RESULTS
    missed = []
    for name in options.only or ASYNCHRONOUS:
        load = os.getloadavg()[0]
        runner = Runner(options.seconds, options.patience)
        rounds = measure(WORKLOADS[name], runner, options.rounds, options.part_seconds)
        if publish(WORKLOADS[name], rounds, load, folder) < GOAL:
            missed.append(name)
    if not options.quick:
        report.write_readme(report.EFFICIENCIES, HEADER, rows, [PREFIX + name for name in ASYNCHRONOUS])
    if missed and not options.quick:
        raise SystemExit(f"below {GOAL}: {', '.join(missed)}")


if __name__ == "__main__":
    main()
