"""The checkpoints of a run in progress: when to make one, and what became of them."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from rollmill.errors import nearest
from rollmill.events import Checkpointed, Event, Progress, Said
from rollmill.learners.learner import Learner
from rollmill.persist.best import best_in
from rollmill.persist.checkpoints import EVALUATION, Checkpoints, Content
from rollmill.persist.parts import write_parts


class Saver:
    """Writes checkpoints and keeps account of them; a disk that fails costs checkpoints, never the run."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._written, self._failed, self._seconds = 0, 0, 0.0
        self._last: Path | None = None
        self._error: str | None = None
        self._metrics: Mapping[str, float] = {}
        self._has_complained = False

    def is_due(self, progress: Progress, metrics: Mapping[str, float]) -> bool:
        """Whether a checkpoint should be made after this update."""
        self._metrics = metrics
        return self._checkpoints.due(progress.updates, monotonic())

    def is_behind(self, update: int) -> bool:
        """Whether the last checkpoint is of another update."""
        return self._checkpoints.last_update != update

    def save(self, learner: Learner, kept_with_it: Mapping[str, Any], begun: float) -> Event:
        """Make a checkpoint, for which training has waited since `begun`; the event that reports it."""
        try:
            content = learner.capture()
            content = replace(content, state={**content.state, "run": {**kept_with_it, "saving": self._with(begun)}})
            self._last = self._checkpoints.write(content, self._metrics_of(learner).get(self._checkpoints.config.best))
        except OSError as error:
            self._failed += 1
            is_news, self._error = self._error is None, f"{error.strerror or error}"
            text = f"no checkpoint of update {learner.trainer.updates}: {self._error}; training continues"
            return Said(learner.progress(), "checkpoint", text, "warning" if is_news else "info")
        finally:
            spent = perf_counter() - begun
            self._seconds += spent
        self._written += 1
        return Checkpointed(learner.progress(), str(self._last), spent)

    def totals(self) -> dict[str, Any]:
        """The counts so far, for the next process of this run."""
        return {"written": self._written, "failed": self._failed, "seconds": self._seconds}

    def _with(self, begun: float) -> dict[str, Any]:
        """The counts with the checkpoint in which they are stored.

        Of its seconds those up to here: how long it takes to write is unknown before it is written.
        """
        spent = self._seconds + perf_counter() - begun
        return {**self.totals(), "written": self._written + 1, "seconds": spent}

    def restore(self, totals: Mapping[str, Any]) -> None:
        """Count on from what a checkpoint has kept."""
        self._written, self._failed, self._seconds = totals["written"], totals["failed"], totals["seconds"]

    def account(self, wall_seconds: float) -> dict[str, Any]:
        """For the summary: how many, how many failed, where, and what they cost."""
        best = best_in(self._checkpoints.folder)
        return {
            "written": self._written,
            "failed": self._failed,
            "error": self._error,
            "last": None if self._last is None else str(self._last),
            "best": None if best is None else str(best),
            "seconds": round(self._seconds, 4),
            "share": self._seconds / max(wall_seconds, self._seconds, 1e-9),
        }

    def complaint(self, learner: Learner) -> str | None:
        """What is wrong with the name of the metric for the best checkpoint; reported once, after an update."""
        name, known = self._checkpoints.config.best, self._metrics_of(learner)
        if self._has_complained or not self._metrics or name in known or name == EVALUATION:
            return None
        self._has_complained = True
        return f"checkpoint.best={name} is no metric of this run, so no checkpoint is kept as the best: " + nearest(
            name, list(known)
        )

    def _metrics_of(self, learner: Learner) -> dict[str, float | None]:
        scores = learner.sequencer.scores
        return {**self._metrics, "mean_100": scores.mean_100, "return_ema": scores.return_ema}


def write_dump(run: Path, evidence: Mapping[str, Mapping[str, Any]], message: str, progress: Progress) -> Path | None:
    """Keep what a detector stopped on, in the format of a checkpoint; None if the disk doesn't let us."""
    path = run / "dumps" / f"update-{progress.updates + 1:09d}"
    try:
        path.parent.mkdir(exist_ok=True)
        shutil.rmtree(path, ignore_errors=True)  # of an earlier try
        write_parts(path, Content(evidence, {"message": message}, progress.updates, progress.env_steps), None)
    except OSError:
        return None
    return path
