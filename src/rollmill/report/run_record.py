"""One run as a report needs it: everything that can still be read.

Files are also read while they are being written, or after they were cut short.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollmill.config.base import Origin
from rollmill.config.load import flattened
from rollmill.config.yaml_text import parse
from rollmill.errors import Refused
from rollmill.persist.writing import read_record
from rollmill.report.runs import is_run, read_summary

OTHERS = ("random", "constant:", "scripted:")  # players that are not trained policies

Column = NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationResult:
    """The mean return of some episodes, with its interval where it is known."""

    label: str
    mean: float
    low: float | None
    high: float | None
    env_steps: int | None = None  # of the checkpoint that played


@dataclass(frozen=True)
class Record:
    """A run: its summary, its config by dotted key, its tables, and what is wrong with its files."""

    path: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    episodes: Mapping[str, Column]  # env_steps, seconds, return
    metrics: Mapping[str, Column]  # env_steps, seconds, return_mean_100, steps_per_second
    periodic: tuple[EvaluationResult, ...]  # evaluations during training, by env steps
    players: tuple[EvaluationResult, ...]  # the policy and the baselines of the newest evaluation that was asked for
    evaluation: Path | None  # the folder of that one, where its videos and pictures are
    complaints: tuple[str, ...]

    @property
    def status(self) -> str:
        """Its status: done, running, died and so on."""
        return str(self.summary.get("status", "unknown"))

    @property
    def is_empty(self) -> bool:
        """Whether no update has been made, or nothing of it is left."""
        return not len(self.episodes["env_steps"]) and not len(self.metrics["env_steps"])

    @property
    def seed(self) -> Any:
        """Its root seed."""
        return self.config.get("seed", self.summary.get("seed"))

    @property
    def env(self) -> str:
        """Id of its environment."""
        return str(self.config.get("env.id") or self.summary.get("env") or "unknown environment")

    @property
    def algorithm(self) -> str:
        """Name of its algorithm."""
        return str(self.config.get("algorithm.name") or self.summary.get("algorithm") or "unknown algorithm")

    def number(self, *keys: str) -> float | None:
        """A number of the summary by the keys that lead to it; None if it isn't there."""
        return known(self._at(keys))

    def text(self, *keys: str) -> str:
        """A text of the summary in the same way; "" if it isn't there."""
        return str(self._at(keys) or "")

    def _at(self, keys: Sequence[str]) -> Any:
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return value


def read_run(path: Path) -> Record:
    """Read a run; damaged files are listed as complaints, and a folder that is not a run is refused."""
    complaints: list[str] = []
    try:
        summary = read_summary(path)
    except Refused as refusal:
        if not is_run(path):
            raise
        summary = {"status": "damaged"}
        complaints.append(str(refusal))
    try:
        config = _read_config(path / "config.yaml")
    except (Refused, OSError, UnicodeDecodeError) as error:
        config = {}
        complaints.append(f"config.yaml can't be read: {error}")
    episodes = read_columns(path / "episodes.csv", ("env_steps", "seconds", "return"), needed=3)
    names = ("env_steps", "seconds", "return_mean_100", "steps_per_second")
    metrics = read_columns(path / "metrics.csv", names, needed=2)
    periodic = tuple(_periodic(path / "evaluations.csv"))
    folder, newest = _newest_evaluation(path / "evaluations")
    players = tuple(_players(newest))
    return Record(path, summary, config, episodes, metrics, periodic, players, folder, tuple(complaints))


def _read_config(file: Path) -> dict[str, Any]:
    values, _ = parse(file.read_text(encoding="utf-8"), lambda line: Origin(str(file), line))
    if not isinstance(values, dict):
        raise Refused("it holds no config")
    return flattened(values)


def _newest_evaluation(evaluations: Path) -> tuple[Path | None, dict[str, Any]]:
    """The newest evaluation that was asked for, its folder and its record; what can't be read is skipped.

    So are evaluations in a changed environment (`env.…=`): their returns can't be compared with those of training; and
    those of another player than the policy (`--policy`).
    """
    found = []
    for file in evaluations.glob("*/evaluation.json"):
        record = read_record(file)
        is_of_policy = not record.get("overrides") and not str(record.get("player")).startswith(OTHERS)
        if record.get("status") == "done" and is_of_policy:
            found.append((file.parent, record))
    folders = sorted(found, key=lambda pair: (pair[0].stat().st_mtime, pair[0]))
    asked_for = [pair for pair in folders if not pair[0].name.startswith("step-")] or folders
    return asked_for[-1] if asked_for else (None, {})


def _periodic(file: Path) -> Iterator[EvaluationResult]:
    columns = read_columns(file, ("env_steps", "mean", "low", "high"), needed=2)
    for steps, mean, low, high in zip(*(column.tolist() for column in columns.values()), strict=True):
        yield EvaluationResult("evaluation", mean, known(low), known(high), int(steps))


def _players(record: Mapping[str, Any]) -> Iterator[EvaluationResult]:
    """The policy first, then the baselines."""
    baselines = record.get("baselines")
    others = baselines.items() if isinstance(baselines, Mapping) else ()
    for label, part in ((record.get("player") or "policy", record), *others):
        if isinstance(part, Mapping) and (mean := known(part.get("mean"))) is not None:
            low, high, steps = (known(part.get(key)) for key in ("low", "high", "env_steps"))
            yield EvaluationResult(str(label), mean, low, high, None if steps is None else int(steps))


def read_columns(file: Path, names: Sequence[str], needed: int) -> dict[str, Column]:
    """The named columns of a CSV file as numbers, NaN where one is empty or damaged; empty if there is no such file.

    Left out are rows that end early, as the last one of a killed process may, and those without numbers in the first
    `needed` columns.
    """
    rows: list[list[float]] = []
    try:
        with file.open(encoding="utf-8", errors="replace", newline="") as lines:
            # a NUL, as a power cut leaves it, would stop the reader
            reader = csv.DictReader(line.replace("\0", "") for line in lines)
            whole = (row for row in reader if None not in row and None not in row.values())
            rows.extend([_number(row.get(name, "")) for name in names] for row in whole)
    except (OSError, csv.Error):
        pass  # the rows read so far are kept; a missing file has no rows
    table = np.array(rows, dtype=np.float64).reshape(-1, len(names))
    is_whole = ~np.isnan(table[:, :needed]).any(axis=1)
    return {name: table[is_whole, place] for place, name in enumerate(names)}


def known(value: Any) -> float | None:
    """The number that a JSON file gives; None for anything else, for NaN and for values too large for a chart."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's whole numbers have no bounds
        return None
    return number if math.isfinite(number) else None


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan
