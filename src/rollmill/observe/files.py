"""The run's numbers as files: metrics.jsonl, metrics.csv, episodes.csv."""

from __future__ import annotations

import csv
import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from rollmill.events import Checkpointing, EpisodesEnded, Event
from rollmill.observe.metrics import NONE_ENDED, MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.persist.writing import AppendedFile, to_json, write_atomically


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
        self._file.write(csv_text(self._columns, rows, is_empty))

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
        write_atomically(self._file.path, csv_text([*self._columns, *new], old_rows))


F = TypeVar("F", AppendedFile, CsvTable)


class FileObserver(ABC, Generic[F]):
    """Base of the observers that write one file: what was written before a checkpoint survives a power cut after it."""

    overflow: Overflow = "block"

    def __init__(self, file: F) -> None:
        self._file: F = file

    def receive(self, event: Event) -> None:
        """Write what the event completes."""
        self._take(event)
        if isinstance(event, Checkpointing):
            self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @abstractmethod
    def _take(self, event: Event) -> None:
        """Write the lines that an event is worth."""


class JsonlObserver(FileObserver[AppendedFile]):
    """Writes metrics.jsonl, one JSON object per row."""

    name = "jsonl"

    def __init__(self, run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> None:
        super().__init__(AppendedFile(run / "metrics.jsonl"))
        self._window = MetricsWindow(interval, past)

    def _take(self, event: Event) -> None:
        if row := self._window.add(event):
            self._file.write(to_json(row.flat()) + "\n")


class CsvObserver(FileObserver[CsvTable]):
    """Writes metrics.csv, the same rows as a table."""

    name = "csv"

    def __init__(self, run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> None:
        super().__init__(CsvTable(run / "metrics.csv"))
        self._window = MetricsWindow(interval, past)

    def _take(self, event: Event) -> None:
        if row := self._window.add(event):
            self._file.write([row.flat()])


class EpisodesObserver(FileObserver[CsvTable]):
    """Writes episodes.csv, one line per episode, numbered by the env steps of the update it ended in."""

    name = "episodes"
    columns = ("env_steps", "seconds", "return", "length", "truncated")

    def __init__(self, run: Path) -> None:
        super().__init__(CsvTable(run / "episodes.csv", self.columns))

    def _take(self, event: Event) -> None:
        if isinstance(event, EpisodesEnded):
            where = (event.progress.env_steps, round(event.progress.seconds, 6))
            ended = zip(event.returns, event.lengths, map(int, event.truncated), strict=True)
            self._file.write([dict(zip(self.columns, (*where, *episode), strict=True)) for episode in ended])


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, Any]], needs_header: bool = True) -> str:
    """The rows as lines of CSV; missing keys stay empty."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    if needs_header:
        writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
