"""One run as a report needs it: everything that can still be read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.config.base import Origin
from rollmill.config.yaml_text import parse
from rollmill.errors import Refused
from rollmill.report.csv_reading import Column, known, read_columns
from rollmill.report.evaluations import Evaluated, read_evaluations
from rollmill.report.runs import read_summary


@dataclass(frozen=True)
class Record:
    """A run: its summary, its config by dotted key, its tables, and what is wrong with its files."""

    path: Path
    summary: Mapping[str, Any]
    config: Mapping[str, Any]
    episodes: Mapping[str, Column]  # env_steps, seconds, return
    metrics: Mapping[str, Column]  # env_steps, seconds, return_mean_100, steps_per_second
    evaluated: Evaluated
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
        value: Any = self.summary
        for key in keys:
            value = value.get(key) if isinstance(value, Mapping) else None
        return known(value)


def read_record(path: Path) -> Record:
    """Read a run; damaged files are listed as complaints, and a folder that is not a run is refused."""
    complaints: list[str] = []
    try:
        summary = read_summary(path)
    except Refused as refusal:
        if not (path / "run.json").is_file() and not (path / "summary.json").is_file():
            raise
        summary = {"status": "damaged"}
        complaints.append(str(refusal))
    try:
        config = _read_config(path / "config.yaml")
    except (Refused, OSError, UnicodeDecodeError) as error:
        config = {}
        complaints.append(f"config.yaml can't be read: {error}")
    return Record(
        path,
        summary,
        config,
        _without_gaps(read_columns(path / "episodes.csv", ("env_steps", "seconds", "return"))),
        _without_gaps(
            read_columns(path / "metrics.csv", ("env_steps", "seconds", "return_mean_100", "steps_per_second")), 2
        ),
        read_evaluations(path),
        tuple(complaints),
    )


def _without_gaps(columns: dict[str, Column], needed: int | None = None) -> dict[str, Column]:
    """The rows whose first `needed` columns (all unless given) hold numbers."""
    first = list(columns.values())[:needed]
    is_whole = ~sum((column != column for column in first[1:]), start=first[0] != first[0])
    return {name: column[is_whole] for name, column in columns.items()}


def _read_config(file: Path) -> dict[str, Any]:
    values, _ = parse(file.read_text(encoding="utf-8"), lambda line: Origin(str(file), line))
    if not isinstance(values, dict):
        raise Refused("it holds no config")
    return dict(_leaves(values, ""))


def _leaves(tree: Any, path: str) -> list[tuple[str, Any]]:
    if isinstance(tree, dict) and tree:
        return [leaf for key, value in tree.items() for leaf in _leaves(value, f"{path}.{key}" if path else str(key))]
    return [(path, tree)]
