"""The run's numbers as files: metrics.jsonl, metrics.csv, episodes.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.events import Checkpointing, EpisodesEnded, Event
from rollmill.observe.metrics import NONE_ENDED, MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.persist.writing import AppendedFile, to_json, write_atomically


class JsonlObserver:
    """Writes metrics.jsonl, one JSON object per row."""

    name = "jsonl"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> None:
        self._window = MetricsWindow(interval, past)
        self._file = AppendedFile(run / "metrics.jsonl")

    def receive(self, event: Event) -> None:
        """Write a row whenever one is complete."""
        if row := self._window.add(event):
            self._file.write(to_json(row.flat()) + "\n")
        if isinstance(event, Checkpointing):
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class CsvObserver:
    """Writes metrics.csv, the same rows as a table."""

    name = "csv"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> None:
        self._window = MetricsWindow(interval, past)
        self._table = CsvTable(run / "metrics.csv")

    def receive(self, event: Event) -> None:
        """Write a row whenever one is complete."""
        if row := self._window.add(event):
            self._table.write([row.flat()])
        if isinstance(event, Checkpointing):
            self._table.sync()

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
        elif isinstance(event, Checkpointing):
            self._table.sync()

    def close(self) -> None:
        """Close the file."""
        self._table.close()


class CsvTable:
    """A CSV file whose columns may grow: a new key rewrites the file once, with the old rows left empty there.

    A file that exists is continued under its own header.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        self._file = AppendedFile(path)
        self._columns = list(columns)
        self._has_begun = False

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows; missing keys stay empty."""
        rows = list(rows)
        is_empty = self._file.open() == 0  # also if it was removed and is begun again
        if not self._has_begun and not is_empty:
            self._columns = self._read_header()
        new = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in self._columns]
        if new and not is_empty:
            self._widen(new)
        self._columns += new
        self._has_begun = True
        self._file.write(_csv_text(self._columns, rows, is_empty))

    def sync(self) -> None:
        """Wait until what was written would survive a power cut."""
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _read_header(self) -> list[str]:
        with self._file.path.open(encoding="utf-8", newline="") as file:
            return next(csv.reader(file))

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
