"""Groups of runs that differ in nothing but their seed, and the mean over their seeds with its interval."""

from __future__ import annotations

import json
import os.path
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.errors import Refused
from rollmill.intervals import t_point
from rollmill.persist.writing import read_record
from rollmill.report.run_record import Record, read_run
from rollmill.report.runs import is_run

SEEDS_FILE = "seeds.json"  # makes a folder one of runs that differ in their seed
NOT_COMPARED = ("observe.", "checkpoint.")  # how a run is watched and saved; what is learned is the same
LEAST = 3  # values for an interval; for two it is nine standard deviations to either side: useless


@dataclass(frozen=True)
class Group:
    """One experiment: a config, tried with one seed or several."""

    label: str
    runs: tuple[Record, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """By dotted key, of its first run that has one."""
        return next((run.config for run in self.runs if run.config), {})

    @property
    def title(self) -> str:
        """Algorithm and environment."""
        return f"{self.runs[0].algorithm} on {self.runs[0].env}"

    @property
    def env(self) -> str:
        """Id of the environment."""
        return self.runs[0].env

    def numbers(self, *keys: str) -> list[float]:
        """A number of each run's summary, where it is known."""
        return [value for run in self.runs if (value := run.number(*keys)) is not None]

    def spread(self, *keys: str) -> Spread | None:
        """Their mean and its interval."""
        return spread(self.numbers(*keys))

    def mean(self, *keys: str) -> float | None:
        """Their mean; None if none is known."""
        return found.mean if (found := self.spread(*keys)) else None


def expand(paths: Sequence[Path]) -> list[Path]:
    """The run folders of the paths: folders of several seeds are replaced by their runs, repetitions dropped."""
    folders: list[Path] = []
    for path in paths:
        folders += _seed_runs(path) if (path / SEEDS_FILE).is_file() else [path]
    return list({folder.resolve(): folder for folder in folders}.values())


def gather(paths: Sequence[Path]) -> list[Group]:
    """Read the runs and group them, in the order in which they were given."""
    records = [read_run(path) for path in expand(paths)]
    if all(record.is_empty for record in records):
        empty = records[0]
        others = f" (nor have {len(records) - 1} others)" if len(records) > 1 else ""
        raise Refused(
            f"report: {empty.path} ({empty.status}) has made no update{others}, so there is nothing to show: "
            "name a run that has"
        )
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(_identity(record), []).append(record)
    distinct = [_without_repetitions(runs) for runs in groups.values()]
    unnamed = [Group(_label(runs), tuple(sorted(runs, key=_seed_order))) for runs in distinct]
    return _numbered(unnamed)


def differences(groups: Sequence[Group]) -> dict[str, list[Any]]:
    """The settings that are not the same in all groups, with each group's value; None where a group has none."""
    keys = list(dict.fromkeys(key for group in groups for key in group.config if is_compared(key)))
    rows = {key: [group.config.get(key) for group in groups] for key in keys}
    return {key: row for key, row in rows.items() if any(value != row[0] for value in row)}


def is_compared(key: str) -> bool:
    """Whether runs with different values of this setting are different experiments."""
    return key not in ("seed", "runtime.pin") and not key.startswith(NOT_COMPARED)


class Spread(NamedTuple):
    """The mean of some values and its 95 % interval; there is none for fewer than three."""

    mean: float
    low: float | None
    high: float | None


def spread(values: Sequence[float]) -> Spread | None:
    """Mean and t-interval, mean ± t(n-1) s/√n; None without values.

    Three seeds are too few for a bootstrap, whose interval would be about half as wide as it should be.
    """
    if not values:
        return None
    mean = statistics.fmean(values)
    if len(values) < LEAST:
        return Spread(mean, None, None)
    half = t_factor(len(values)) * statistics.stdev(values)
    return Spread(mean, mean - half, mean + half)


def t_factor(count: int) -> float:
    """What the standard deviation of `count` values (at least two) is multiplied with: t(n-1) / √n."""
    return t_point(count - 1) / float(count**0.5)


def _seed_runs(folder: Path) -> list[Path]:
    seeds = read_record(folder / SEEDS_FILE).get("seeds")
    known = seeds if isinstance(seeds, list) else []  # it may be broken; the folders are still there
    named = [folder / f"seed-{seed}" for seed in known] or sorted(folder.glob("seed-*"))
    runs = [path for path in named if is_run(path)]
    if not runs:
        raise Refused(f"report: {folder}: none of its seeds has begun: wait, or name other runs")
    return runs


def _identity(record: Record) -> str:
    if not record.config:
        return str(record.path)  # nothing else is known of it
    settings = {key: value for key, value in record.config.items() if is_compared(key)}
    return json.dumps(settings, sort_keys=True, default=str)


def _without_repetitions(runs: Sequence[Record]) -> list[Record]:
    """The runs without those that end with another's seed and parameters: they add no information, but would count."""
    kept: dict[Any, Record] = {}
    for run in runs:
        digest = run.summary.get("parameters_sha256")
        key = (str(run.seed), str(digest)) if digest else run.path
        if (first := kept.get(key)) is None:
            kept[key] = run
        else:
            note = f"{run.path} repeats it (equal seed, equal parameters) and is left out"
            kept[key] = replace(first, complaints=(*first.complaints, note))
    return list(kept.values())


def _seed_order(record: Record) -> tuple[bool, Any]:
    return (not isinstance(record.seed, int), record.seed if isinstance(record.seed, int) else str(record.path))


def _label(runs: Sequence[Record]) -> str:
    """What the names of the folders have in common: of runs/ppo/seed-1 and runs/ppo/seed-2 it is ppo."""
    paths = [run.path.resolve() for run in runs]
    parents = {path.parent for path in paths}
    if len(parents) == 1 and all(re.fullmatch(r"seed-\d+", path.name) for path in paths):
        return parents.pop().name
    if len(paths) == 1:
        return paths[0].name
    beginning = os.path.commonprefix([path.name for path in paths])  # noqa: RUF071 characters are meant
    common = re.sub(r"([-_. ]*seed)?[-_. ]*$", "", beginning)
    return common or f"{runs[0].algorithm} on {runs[0].env}"


def _numbered(groups: list[Group]) -> list[Group]:
    """The groups, with a number after labels that are repeated."""
    seen: dict[str, int] = {}
    result = []
    for group in groups:
        seen[group.label] = times = seen.get(group.label, 0) + 1
        result.append(group if times == 1 else replace(group, label=f"{group.label} ({times})"))
    return result
