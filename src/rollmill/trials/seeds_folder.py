"""The folder of an experiment with several seeds: seeds.json, config.yaml, and per seed a run and its output.

`seeds_view` shows how its runs progress.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollmill.config.load import dump
from rollmill.console.view import View
from rollmill.errors import Refused
from rollmill.observe.phrases import amount, clock, count
from rollmill.persist.run_folder import MARK, RunFolder, is_free
from rollmill.persist.writing import read_record, tail, write_atomically
from rollmill.settings import ExperimentConfig

SEEDS_FILE = "seeds.json"  # what makes a folder one of these; the report looks for it


class SeedsFolder:
    """The runs of all seeds, and the status of each."""

    def __init__(self, path: Path, facts: Mapping[str, Any]) -> None:
        self.path = path
        self._facts = dict(facts)
        self.seeds: tuple[int, ...] = tuple(facts["seeds"])
        self.options: tuple[str, ...] = tuple(map(str, facts.get("options", ())))  # that every seed begins with
        self.status: dict[int, str] = {seed: facts.get("status", {}).get(str(seed), "waiting") for seed in self.seeds}

    @classmethod
    def create(
        cls,
        path: Path | None,
        source: Path,
        config: ExperimentConfig,
        seeds: Sequence[int],
        overwrite: bool,
        options: Sequence[str] = (),
    ) -> SeedsFolder:
        """Make the folder; one that exists is replaced only on request, and only if it is of this kind."""
        if path is not None:
            _make_room(path, overwrite)
        place = RunFolder.create(path, f"{config.algorithm.name}-{config.env.id}-seeds", overwrite=False).path
        started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        facts = {"config": str(source), "started": started, "seeds": list(seeds), "options": list(options)}
        folder = cls(place, facts)
        try:
            # later seeds must not notice that the file they came from was edited meanwhile
            write_atomically(folder.config, dump(config))
            folder.store()
        except OSError as error:
            raise Refused(f"{place} can't be written to: {error.strerror}; choose a folder with --run") from error
        return folder

    @classmethod
    def open(cls, path: Path) -> SeedsFolder:
        """One that exists."""
        file = path / SEEDS_FILE
        try:
            facts = json.loads(file.read_text(encoding="utf-8"))
            if not facts["seeds"] or not all(type(seed) is int and seed >= 0 for seed in facts["seeds"]):
                raise ValueError("seeds are whole numbers")
            return cls(path, facts)
        except OSError as error:
            raise Refused(f"{file} can't be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Refused(f"{file} is damaged ({error}); resume its runs one by one") from error

    @property
    def config(self) -> Path:
        """What every seed is trained with."""
        return self.path / "config.yaml"

    def run(self, seed: int) -> Path:
        """The run folder of a seed."""
        return self.path / f"seed-{seed}"

    def output(self, seed: int) -> Path:
        """What the process of a seed printed."""
        return self.path / f"seed-{seed}.log"

    def mark(self, seed: int, status: str) -> None:
        """Keep the status of a seed; what a full disk doesn't take now is written with the next change."""
        self.status[seed] = status
        with suppress(OSError):  # no reason to end runs, which see to their own files
            self.store()

    def store(self) -> None:
        """Write seeds.json."""
        facts = {**self._facts, "status": {str(seed): status for seed, status in self.status.items()}}
        write_atomically(self.path / SEEDS_FILE, json.dumps(facts, indent=2) + "\n")

    def made(self, seed: int, counted: str) -> int:
        """How many env_steps or updates a seed's run has made by its summary; 0 if there is none."""
        return read_record(self.run(seed) / "summary.json").get(counted) or 0


def _make_room(path: Path, overwrite: bool) -> None:
    if is_free(path):
        return
    if not overwrite:
        remedy = "--overwrite to replace it"
        if (path / SEEDS_FILE).is_file():
            remedy = f"continue it (rollmill train {path} --resume), or {remedy}"
        raise Refused(f"--run {path} exists; choose another folder, or {remedy}")
    if path.is_symlink() or not (path / SEEDS_FILE).is_file() or (path / MARK).is_file():
        raise Refused(f"--run {path} is no folder of several seeds (no {SEEDS_FILE}), so it is kept; choose another")
    with RunFolder(path).locked():
        shutil.rmtree(path)


def seeds_view(folder: SeedsFolder, counted: str, target: int) -> View:
    """A bar for each seed, or a line for each that is running: the content of the newest row of its metrics.

    It is done when `counted`, its env_steps or updates, reaches `target`.
    """
    rows = [_row(seed, status, counted, target, folder.run(seed)) for seed, status in folder.status.items()]
    unit = counted.removeprefix("env_")
    lines = [
        f"{seed}  {percent}  {done} {unit}  ETA {left}  return {score}  {rate} steps/s"
        for seed, status, fraction, percent, done, score, rate, left in rows
        if status == "running" and fraction
    ]
    return View(rows, lines, ("", "", "", "", unit, "return", "steps/s", "ETA"))


def _row(
    seed: int, status: str, counted: str, target: int, run: Path
) -> tuple[str, str, float, str, str, str, str, str]:
    newest = {} if status == "waiting" else _last_metrics(run / "metrics.jsonl")
    done = min(newest.get(counted) or 0, target)
    rate = newest.get("steps_per_second") if status == "running" else None
    # at the mean speed so far; updates have no rate of their own
    left = (target - done) * newest["seconds"] / done if rate and done else None
    percent, progress = f"{done / target * 100:3.0f}%", f"{count(done)}/{count(target)}"
    score = amount(newest.get("return_ema"))
    return f"seed {seed}", status, done / target, percent, progress, score, count(rate), clock(left)


def _last_metrics(file: Path) -> dict[str, Any]:
    try:
        *_, newest, _ = tail(file)  # after the last line break there is nothing, or half a row
        row = json.loads(newest)
    except ValueError:  # not there yet
        return {}
    return row if isinstance(row, dict) else {}
