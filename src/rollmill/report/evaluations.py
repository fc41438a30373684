"""Evaluations of a run's policy, during training or after it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.report.csv_reading import known, read_columns

OTHERS = ("random", "constant:", "scripted:")  # players that are not trained policies


@dataclass(frozen=True)
class Evaluation:
    """The mean return of some episodes, with its interval where it is known."""

    label: str
    mean: float
    low: float | None
    high: float | None
    episodes: int | None
    env_steps: int | None = None  # of the checkpoint that played


@dataclass(frozen=True)
class Evaluated:
    """All evaluations of a run."""

    periodic: tuple[Evaluation, ...]  # during training, by env steps
    players: tuple[Evaluation, ...]  # the policy and the baselines of the newest evaluation that was asked for
    folder: Path | None  # of that one, where its videos and pictures are


def read_evaluations(run: Path) -> Evaluated:
    """Look at evaluations.csv and the folders below evaluations/; what can't be read is skipped.

    So are evaluations in a changed environment (`env.…=`): their returns can't be compared with those of training; and
    those of another player than the policy (`--policy`).
    """
    found = [(folder, record) for folder, record in _finished(run / "evaluations") if _is_of_policy(record)]
    folders = sorted(found, key=lambda pair: (pair[0].stat().st_mtime, pair[0]))
    asked_for = [pair for pair in folders if not pair[0].name.startswith("step-")] or folders
    folder, record = asked_for[-1] if asked_for else (None, {})
    return Evaluated(tuple(_periodic(run / "evaluations.csv")), tuple(_players(record)), folder)


def _periodic(file: Path) -> Iterator[Evaluation]:
    columns = read_columns(file, ("env_steps", "episodes", "mean", "low", "high"))
    for steps, episodes, mean, low, high in zip(*(column.tolist() for column in columns.values()), strict=True):
        if steps == steps and mean == mean:  # not NaN
            count = int(episodes) if episodes == episodes else None
            yield Evaluation("evaluation", mean, known(low), known(high), count, int(steps))


def _finished(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    for file in folder.glob("*/evaluation.json"):
        try:
            record = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(record, dict) and record.get("status") == "done":
            yield file.parent, record


def _is_of_policy(record: Mapping[str, Any]) -> bool:
    return not record.get("overrides") and not str(record.get("player")).startswith(OTHERS)


def _players(record: Mapping[str, Any]) -> Iterator[Evaluation]:
    """The policy first, then the baselines."""
    steps = known(record.get("env_steps"))
    if found := _evaluation(str(record.get("player") or "policy"), record):
        yield replace(found, env_steps=None if steps is None else int(steps))
    baselines = record.get("baselines")
    for name, part in baselines.items() if isinstance(baselines, Mapping) else ():
        if isinstance(part, Mapping) and (found := _evaluation(str(name), part)):
            yield found


def _evaluation(label: str, part: Mapping[str, Any]) -> Evaluation | None:
    mean, episodes = known(part.get("mean")), part.get("episodes")
    if mean is None:
        return None
    count = episodes if isinstance(episodes, int) else None
    return Evaluation(label, mean, known(part.get("low")), known(part.get("high")), count)
