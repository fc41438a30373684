"""Evaluation while the policy learns: `rollmill evaluate` on the newest checkpoint, in a process of its own."""

from __future__ import annotations

import csv
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from pydantic import FiniteFloat, TypeAdapter, ValidationError

from rollmill.events import Checkpointed, Event, RunStarted, Stopped
from rollmill.launch.children import Child, rollmill_command
from rollmill.launch.helper import start_helper
from rollmill.observe.config import EvaluateConfig
from rollmill.observe.files import CsvTable
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import amount, count, some
from rollmill.persist.best import EvaluatedCheckpoints, best_in
from rollmill.persist.writing import read_record, to_json, write_atomically

LOOK_SECONDS = 0.2  # between two looks at the process


@dataclass(frozen=True)
class EvaluationRow:
    """One evaluation: a line of <run>/evaluations.csv."""

    env_steps: int  # of the checkpoint
    updates: int
    episodes: int
    mean: FiniteFloat  # raw return
    low: float | None  # 95 % interval of the mean; None of a single episode
    high: float | None
    seconds: float  # that the evaluation took, its start-up included


_ROW = TypeAdapter(EvaluationRow)


@dataclass(frozen=True)
class _Running:
    process: Child
    checkpoint: Checkpointed
    held: Path  # the copy that is evaluated
    folder: Path  # of its results
    begun: float


class EvaluationObserver:
    """Evaluates the newest checkpoint every so often, one at a time, and keeps the best one as `evaluated`.

    It looks at its process whenever an event comes. It waits for none except at the end of a run that is done, whose
    last checkpoint it still evaluates, within bounds.
    """

    name = "evaluate"
    overflow: Overflow = "drop"

    def __init__(self, run: Path, config: EvaluateConfig, say: Callable[[str], None]) -> None:
        self._run, self._config, self._say = run, config, say
        self._seconds = math.inf if config.seconds is None else config.seconds
        self._table = CsvTable(run / "evaluations.csv")
        self._checkpoints = EvaluatedCheckpoints(run / "checkpoints")
        self._rows: list[EvaluationRow] = []
        self._wanted: Checkpointed | None = None
        self._running: _Running | None = None
        self._begun = self._looked = monotonic()
        self._has_complained = False
        self._is_done = False  # the run is, and its last checkpoint is worth waiting for

    def receive(self, event: Event) -> None:
        """Take note of checkpoints, and see to the process."""
        if isinstance(event, RunStarted):
            self._rows = _read_rows(self._run / "evaluations.csv")
            self._checkpoints.sweep(event.progress.updates)
        elif isinstance(event, Checkpointed):
            self._wanted = event
        elif isinstance(event, Stopped):
            self._is_done = event.status == "done"
        if monotonic() - self._looked >= LOOK_SECONDS or isinstance(event, Checkpointed):
            self._looked = monotonic()
            self._look(self._seconds)

    def close(self) -> None:
        """Evaluate the last checkpoint of a run that is done, end what still runs, and complete the summary."""
        self._look(math.inf)
        if self._is_done and self._wanted is not None and self._config.finish_seconds > 0:
            self._give_up()  # the last checkpoint is worth more, and nothing is left to be polite to
            self._look(0.0, niceness=0)
        if self._running is not None and self._is_done and self._running.process.wait(self._config.finish_seconds):
            self._look(math.inf)
        self._give_up()
        self._table.close()
        if self._rows:
            self._complete_summary()

    def _look(self, pause: float, niceness: int | None = None) -> None:
        """Collect a finished evaluation; start the next if `pause` seconds have passed since the last start."""
        if self._running is not None and self._running.process.exit_code is not None:
            self._take()
        if self._running is None and self._wanted is not None and monotonic() - self._begun >= pause:
            wanted, self._wanted = self._wanted, None
            if wanted.progress.updates > 0:  # what has learned nothing yet is not worth the time
                self._start(wanted, self._config.niceness if niceness is None else niceness)

    def _give_up(self) -> None:
        """End an evaluation that is not finished."""
        if self._running is not None:
            given_up, self._running = self._running, None
            given_up.process.end()
            self._checkpoints.let_go(given_up.held)
            shutil.rmtree(given_up.folder, ignore_errors=True)
            self._log(f"the evaluation at {_steps(given_up)} was not finished in time")

    def _start(self, checkpoint: Checkpointed, niceness: int) -> None:
        try:
            held = self._checkpoints.hold(Path(checkpoint.path))
        except FileNotFoundError:  # removed by a newer one, whose event is on its way
            return
        self._begun = monotonic()
        folder = self._run / "evaluations" / f"step-{checkpoint.progress.env_steps:012d}"
        shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed, for the same checkpoint
        logs = self._run / "logs"
        logs.mkdir(exist_ok=True)
        folder.parent.mkdir(exist_ok=True)
        options = ("--episodes", str(self._config.episodes), "--no-baselines", "--no-examine", "--out", str(folder))
        command = rollmill_command("evaluate", str(held), *options)
        process = start_helper(command, niceness, logs / "evaluate.out", logs / "evaluate.log")
        self._running = _Running(process, checkpoint, held, folder, self._begun)

    def _take(self) -> None:
        """The result of a process that has ended."""
        assert self._running is not None
        ended, self._running = self._running, None
        row = _read_row(ended, monotonic() - ended.begun)
        ended.process.end()
        if row is None:
            self._checkpoints.let_go(ended.held)
            if not self._has_complained:
                how = f"ended with code {ended.process.exit_code}; see {self._run / 'logs' / 'evaluate.log'}"
                self._say(f"warning: evaluate: the evaluation at {_steps(ended)} {how}")
            self._has_complained = True
            return
        is_best = all(row.mean > before.mean for before in self._rows)
        self._rows.append(row)
        if is_best:
            self._checkpoints.keep(ended.held, row.updates)
        else:
            self._checkpoints.let_go(ended.held)
        self._table.write_rows([asdict(row)])
        interval = f"[{amount(row.low)}, {amount(row.high)}]"
        best = ", the best so far" if is_best else ""
        line = f"evaluation at {_steps(ended)}: {amount(row.mean)} {interval}, {some(row.episodes, 'episode')}{best}"
        self._say(line)
        self._log(line)

    def _log(self, line: str) -> None:
        with (self._run / "logs" / "evaluate.log").open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")

    def _complete_summary(self) -> None:
        """Add what was found to summary.json, which the observer before this one has written."""
        best = max(self._rows, key=lambda row: row.mean)
        found: dict[str, Any] = {"count": len(self._rows), "best": asdict(best), "last": asdict(self._rows[-1])}
        path = self._run / "summary.json"
        if summary := read_record(path):
            best_path = best_in(self._checkpoints.folder)  # it may be a later one by now
            if "checkpoints" in summary and best_path is not None:
                summary["checkpoints"]["best"] = str(best_path)
            write_atomically(path, to_json({**summary, "evaluations": found}, indent=2) + "\n")


def _steps(running: _Running) -> str:
    return f"{count(running.checkpoint.progress.env_steps)} steps"


def _read_row(ended: _Running, seconds: float) -> EvaluationRow | None:
    """What the process has found; None if it failed."""
    if ended.process.exit_code != 0:
        return None
    progress = ended.checkpoint.progress
    known = {"env_steps": progress.env_steps, "updates": progress.updates, "seconds": round(seconds, 3)}
    with suppress(ValidationError):
        return _ROW.validate_python(read_record(ended.folder / "evaluation.json") | known)
    return None


def _read_rows(path: Path) -> list[EvaluationRow]:
    """The evaluations of earlier processes, as far as the file is whole."""
    rows = []
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for values in csv.DictReader(file):
                with suppress(ValidationError):
                    rows.append(_ROW.validate_python({key: value or None for key, value in values.items()}))
    return rows
