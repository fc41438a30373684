"""The checkpoints of a run in progress: when to make one, and what became of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from rollmill.errors import nearest
from rollmill.events import Checkpointed, Checkpointing, Event, Progress, Said
from rollmill.learners.learner import Learner
from rollmill.persist.best import best_in
from rollmill.persist.checkpoints import EVALUATION, Checkpoints, Content
from rollmill.persist.parts import write_parts

FLUSH_SECONDS = 5.0  # that a checkpoint waits for the other files of the run


class Saver:
    """Writes checkpoints and counts them; a disk that fails costs checkpoints, never the run."""

    def __init__(self, checkpoints: Checkpoints, flush: Callable[[float], bool]) -> None:
        self._checkpoints, self._flush = checkpoints, flush
        self._counts = {"written": 0, "failed": 0, "seconds": 0.0}  # in all processes of the run
        self._last: Path | None = None
        self._error: str | None = None
        self._metrics: Mapping[str, float] = {}  # of the last update
        self._has_complained = False

    def restore(self, counts: Mapping[str, Any]) -> None:
        """Count on from what a checkpoint holds as `saving`."""
        self._counts |= counts

    def is_due(self, progress: Progress, metrics: Mapping[str, float]) -> bool:
        """Whether a checkpoint should be made after this update."""
        self._metrics = metrics
        return self._checkpoints.due(progress.updates, monotonic())

    def is_behind(self, update: int) -> bool:
        """Whether the last checkpoint is of another update."""
        return self._checkpoints.last_update != update

    def save(self, learner: Learner, run: Mapping[str, Any]) -> Iterator[Event]:
        """Make a checkpoint, with `run` for the next process; the other files of the run are written up to here first.

        So a resumed run finds no gap in them.
        """
        begun, progress = perf_counter(), learner.progress()
        yield Checkpointing(progress)
        if not self._flush(FLUSH_SECONDS):
            yield Said(progress, "checkpoint", "a slow observer: its files may have a gap here", "warning")
        scores, best = learner.sequencer.scores, self._checkpoints.config.best
        metrics = {**self._metrics, "mean_100": scores.mean_100, "return_ema": scores.return_ema}
        if self._metrics and best not in metrics and best != EVALUATION and not self._has_complained:
            self._has_complained = True
            text = f"checkpoint.best={best} is no metric of this run, so no checkpoint is kept as the best: "
            yield Said(progress, "checkpoint", text + nearest(best, list(metrics)), "warning")
        try:
            self._last = self._checkpoints.write(self._content(learner, run, begun), metrics.get(best))
            self._counts["written"] += 1
            event: Event = Checkpointed(learner.progress(), str(self._last), perf_counter() - begun)
        except OSError as error:
            self._counts["failed"] += 1
            level, self._error = "info" if self._error else "warning", error.strerror or str(error)
            text = f"no checkpoint of update {progress.updates}: {self._error}; training continues"
            event = Said(learner.progress(), "checkpoint", text, level)
        self._counts["seconds"] += perf_counter() - begun
        yield event

    def account(self, wall_seconds: float) -> dict[str, Any]:
        """For the summary: how many, how many failed, where, and what they cost."""
        best, seconds = best_in(self._checkpoints.folder), self._counts["seconds"]
        return {
            "written": self._counts["written"],
            "failed": self._counts["failed"],
            "error": self._error,
            "last": None if self._last is None else str(self._last),
            "best": None if best is None else str(best),
            "seconds": round(seconds, 4),
            "share": seconds / max(wall_seconds, seconds, 1e-9),
        }

    def _content(self, learner: Learner, run: Mapping[str, Any], begun: float) -> Content:
        content = learner.capture()
        # this one counts too, with the seconds up to here: how long it takes to write is not known yet
        counts = {"written": self._counts["written"] + 1, "seconds": self._counts["seconds"] + perf_counter() - begun}
        return replace(content, state={**content.state, "run": {**run, "saving": {**self._counts, **counts}}})


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
