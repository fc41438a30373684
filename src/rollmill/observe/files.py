"""The run's numbers as files: metrics.jsonl, metrics.csv, episodes.csv."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.events import Checkpointing, EpisodesEnded, Event
from rollmill.observe.metrics import NONE_ENDED, MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.persist.writing import AppendedFile, to_json, write_atomically


class CsvTable(AppendedFile):
    """A CSV file whose columns may grow: a new key rewrites the file once, with the old rows left empty there.

    A file that exists is continued under its own header.
    """

    def __init__(self, path: Path, columns: Sequence[str] = ()) -> None:
        super().__init__(path)
        self._columns = list(columns)
        self._has_begun = False

    def write_rows(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows; missing keys stay empty."""
        is_empty = self.open() == 0  # also if it was removed and is begun again
        if not self._has_begun and not is_empty:
            with self.path.open(encoding="utf-8", newline="") as file:
                self._columns = next(csv.reader(file))
        new = [key for key in dict.fromkeys(key for row in rows for key in row) if key not in self._columns]
        if new and not is_empty:
            self.close()
            with self.path.open(encoding="utf-8", newline="") as file:
                old_rows = list(csv.DictReader(file))
            write_atomically(self.path, _csv_text([*self._columns, *new], old_rows))
        self._columns += new
        self._has_begun = True
        self.write(_csv_text(self._columns, rows, is_empty))


class FileObserver:
    """Writes one file by `take`; what was written before a checkpoint survives a power cut after it."""

    overflow: Overflow = "block"

    def __init__(self, name: str, file: AppendedFile, take: Callable[[Event], None]) -> None:
        self.name, self._file, self._take = name, file, take

    def receive(self, event: Event) -> None:
        """Write what the event completes."""
        self._take(event)
        if isinstance(event, Checkpointing):
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def jsonl_observer(run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> FileObserver:
    """Writes metrics.jsonl, one JSON object per row."""
    file, window = AppendedFile(run / "metrics.jsonl"), MetricsWindow(interval, past)

    def take(event: Event) -> None:
        if row := window.add(event):
            file.write(to_json(row.flat()) + "\n")

    return FileObserver("jsonl", file, take)


def csv_observer(run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> FileObserver:
    """Writes metrics.csv, the same rows as a table."""
    table, window = CsvTable(run / "metrics.csv"), MetricsWindow(interval, past)

    def take(event: Event) -> None:
        if row := window.add(event):
            table.write_rows([row.flat()])

    return FileObserver("csv", table, take)


def episodes_observer(run: Path) -> FileObserver:
    """Writes episodes.csv, one line per episode, numbered by the env steps of the update it ended in."""
    columns = ("env_steps", "seconds", "return", "length", "truncated")
    table = CsvTable(run / "episodes.csv", columns)

    def take(event: Event) -> None:
        if isinstance(event, EpisodesEnded):
            where = (event.progress.env_steps, round(event.progress.seconds, 6))
            ended = zip(event.returns, event.lengths, map(int, event.truncated), strict=True)
            table.write_rows([dict(zip(columns, (*where, *episode), strict=True)) for episode in ended])

    return FileObserver("episodes", table, take)


def _csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], needs_header: bool = True) -> str:
    """The rows as lines of CSV; missing keys stay empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if needs_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
