"""What several seeds have reached, as a table of plain text."""

from __future__ import annotations

from pathlib import Path

from rollmill.console.text_table import text_table
from rollmill.observe.phrases import amount, clock, count
from rollmill.report.groups import LEAST, expand, spread
from rollmill.report.run_record import Record, read_run

COLUMNS = (("final", "mean_100"), ("best", "best_mean_100"), ("greedy", "greedy"))


def seeds_lines(folder: Path) -> list[str]:
    """One line per run of the folder, and below them the means with their interval."""
    runs = [read_run(path) for path in expand([folder])]
    head = ["seed", "status", *(name for name, _ in COLUMNS), "steps", "steps/s", "time", "parameters"]
    lines = text_table([head, *(_row(run) for run in runs)], left=(1,))
    for name, key in COLUMNS:
        found = spread([value for run in runs if (value := run.number("returns", key)) is not None])
        if found is not None and len(runs) > 1:
            interval = f"  [{amount(found.low)}, {amount(found.high)}]" if found.low is not None else ""
            lines.append(f"{name:<7} mean {amount(found.mean)}{interval}")
    note = "95 % t-interval over seeds" if len(runs) >= LEAST else ""
    return [f"  {line}" for line in [*lines, note, f"rollmill report {folder}"] if line]


def _row(run: Record) -> list[str]:
    digest = str(run.summary.get("parameters_sha256") or "-")
    return [
        str(run.seed),
        run.status,
        *(amount(run.number("returns", key)) for _, key in COLUMNS),
        count(run.number("env_steps")),
        count(run.number("throughput", "steps_per_second")),
        clock(run.number("throughput", "seconds")),
        digest[:12],
    ]
