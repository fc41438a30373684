"""The run's numbers as files: metrics.jsonl, metrics.csv, episodes.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.observe.events import EpisodesEnded, Event
from rollmill.observe.metrics import MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.observe.writing import AppendedFile, to_json, write_atomically


class JsonlObserver:
    """Writes metrics.jsonl, one JSON object per row."""

    name = "jsonl"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float) -> None:
        self._window = MetricsWindow(interval)
        self._file = AppendedFile(run / "metrics.jsonl")

    def receive(self, event: Event) -> None:
        """Write a row whenever one is complete."""
        if row := self._window.add(event):
            self._file.write(to_json(row.flat()) + "\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvObserver:
    """Writes metrics.csv, the same rows as a table."""

    name = "csv"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float) -> None:
        self._window = MetricsWindow(interval)
        self._table = CsvTable(run / "metrics.csv")

    def receive(self, event: Event) -> None:
        """Write a row whenever one is complete."""
        if row := self._window.add(event):
            self._table.write([row.flat()])

    def close(self) -> None:
        """Close the file."""
        self._table.close()


class EpisodesObserver:
    """Writes episodes.csv, one line per episode, numbered by the env steps of the update it ended in."""

    name = "episodes"
    overflow: Overflow = "block"
    columns = ("env_steps", "seconds", "return", "length", "truncated")

    def __init__(self, run: Path) -> None:
        self._table = CsvTable(run / "episodes.csv", self.columns)

    def receive(self, event: Event) -> None:
        """Write the episodes of one update."""
        if isinstance(event, EpisodesEnded):
            where = (event.progress.env_steps, round(event.progress.seconds, 6))
            ended = zip(event.returns, event.lengths, event.truncated, strict=True)
            self._table.write(
                dict(zip(self.columns, (*where, value, length, int(truncated)), strict=True))
                for value, length, truncated in ended
            )

    def close(self) -> None:
        """Close the file."""
        self._table.close()


class CsvTable:
    """A CSV file whose columns may grow: a new key rewrites the file once, with the old rows left empty there."""

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        self._file = AppendedFile(path)
        self._columns = list(columns)
        self._has_header = False

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; missing keys stay empty."""
        rows = list(rows)
        new = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in self._columns]
        if self._has_header and new:
            self._widen(new)
        self._columns += new
        self._file.open()
        needs_header, self._has_header = not self._has_header, True
        self._file.write(_csv_text(self._columns, rows, needs_header))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _widen(self, new: Sequence[str]) -> None:
        self._file.close()
        with self._file.path.open(encoding="utf-8", newline="") as file:
            old_rows = list(csv.DictReader(file))
        write_atomically(self._file.path, _csv_text([*self._columns, *new], old_rows, needs_header=True))


def _csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], needs_header: bool) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if needs_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
