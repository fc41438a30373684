"""What is shown while an evaluation runs, and at its end."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter
from typing import IO, Any, cast

from rollmill.observe.outlet import Outlet
from rollmill.observe.phrases import amount, clock, count

LINES_SECONDS = 5.0  # between two lines where there is no terminal


class Display:
    """A bar on a terminal, lines elsewhere; shows nothing if it is told so."""

    def __init__(self, is_shown: bool) -> None:
        self._outlet = Outlet(sys.stdout)
        self._is_shown = is_shown
        self._progress: Any = None
        self._task: Any = None
        self._begun = self._said = perf_counter()

    def begin(self, title: str, unit: str, total: int) -> None:
        """A stretch of work: so many episodes or steps."""
        self._begun = self._said = perf_counter()
        self._title, self._unit, self._total = title, unit, total
        if not self._is_shown:
            return
        if not self._outlet.isatty():
            self._outlet.write(f"{title}: {count(total)} {unit}\n")
            self._outlet.flush()
            return
        if self._progress is None:
            self._progress = _bar(self._outlet)
            self._progress.start()
            self._progress.console.show_cursor(True)  # rich hides it, and a killed process could not give it back
            self._task = self._progress.add_task(title, total=total, unit=unit, mean=amount(None))
        else:
            self._progress.reset(self._task, total=total, description=title, unit=unit, mean=amount(None))

    def advance(self, done: int, mean: float | None) -> None:
        """So much of it is done."""
        if not self._is_shown:
            return
        if self._progress is not None:
            self._progress.update(self._task, completed=min(done, self._total), mean=amount(mean))
            return
        now = perf_counter()
        if now - self._said >= LINES_SECONDS:
            self._said = now
            left = clock((now - self._begun) * (self._total - done) / done) if done else clock(None)
            said = f"{count(done)}/{count(self._total)} {self._unit}, return {amount(mean)}, ETA {left}"
            self._outlet.write(f"{self._title}: {said}\n")
            self._outlet.flush()

    def finish(self) -> None:
        """Give the terminal back."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, lines: list[str]) -> None:
        """Print lines."""
        if self._is_shown:
            self._outlet.write("".join(f"{line}\n" for line in lines))
            self._outlet.flush()


def _bar(outlet: Outlet) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(None),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TextColumn("return {task.fields[mean]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=Console(file=cast(IO[str], outlet), force_terminal=True, highlight=False),
        expand=True,
        transient=True,
    )


def closing_table(record: Mapping[str, Any], folder: Path) -> list[str]:
    """The player and beneath it the baselines, best first; then what was left in the folder."""
    baselines = sorted(record["baselines"].items(), key=lambda item: -item[1]["mean"])
    rows: list[tuple[str, ...]] = [("player", "return", "95 % interval", "median", "length", "episodes")]
    rows += [_row(name, entry) for name, entry in [(record["player"], record), *baselines]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  " + "  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(pairs))
        for pairs in (list(zip(row, widths, strict=True)) for row in rows)
    ]
    return [f"{record['env']}, {record['status']} after {clock(record['seconds'])}", *lines, *_remarks(record, folder)]


def _row(name: str, entry: Mapping[str, Any]) -> tuple[str, ...]:
    has_interval = entry["low"] is not None
    interval = f"{amount(entry['low'])} … {amount(entry['high'])}" if has_interval else "-"
    numbers = amount(entry["mean"]), interval, amount(entry["median"]), amount(entry["length"])
    return name, *numbers, count(entry["episodes"])


def _remarks(record: Mapping[str, Any], folder: Path) -> list[str]:
    remarks: dict[str, str] = {}
    if record["failed"]["episodes"]:
        first = record["failed"]["messages"][0]
        remarks["failed"] = f"{count(record['failed']['episodes'])} episodes, the first: {first}"
    if record.get("left_out"):
        remarks["left out"] = f"{', '.join(record['left_out'])}: no time for them"
    for name, value in (record.get("examination") or {}).items():
        if isinstance(value, int | float | str):
            remarks[name] = amount(value) if isinstance(value, float) else str(value)
    files = [f"{number} {kind}" for kind, number in record["files"].items() if number]
    remarks["files"] = f"{folder}" + (f" ({', '.join(files)})" if files else "")
    width = max(len(name) for name in remarks)
    return [f"  {name:<{width}}  {text}" for name, text in remarks.items()]
