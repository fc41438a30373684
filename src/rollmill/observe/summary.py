"""summary.json: the state of a run in one small file."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rollmill.events import Checkpointed, EpisodesEnded, Event, RunStarted, Stopped, WorkerReplaced
from rollmill.observe.metrics import NONE_ENDED, RecentEpisodes
from rollmill.observe.observer import Overflow
from rollmill.persist.writing import to_json, write_atomically


class SummaryObserver:
    """Rewrites <run>/summary.json at the start, every few seconds and at the end, always as a whole.

    While the run continues its status is "running"; `written_at` then shows whether it is alive or was killed.
    """

    name = "summary"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float = 5.0, past: EpisodesEnded = NONE_ENDED) -> None:
        self._run = run
        self._interval = interval
        self._written_seconds = 0.0
        self._episodes = RecentEpisodes(past)
        self._known: dict[str, Any] = {"run": str(run)}
        self._written, self._spent = 0, 0.0  # checkpoints of this process, and the seconds that they took
        self._replaced: list[dict[str, Any]] = []
        self._last_word: dict[str, Any] | None = None  # until it is on the disk

    def receive(self, event: Event) -> None:
        """Keep the file up to date."""
        self._learn(event)
        if isinstance(event, Stopped):
            outcome = {"status": event.status, "reason": event.reason}
            self._last_word = {**self._running(event), **event.summary, **outcome}
            self._write(self._last_word)
            self._last_word = None
        elif (
            isinstance(event, RunStarted | Checkpointed)
            or event.progress.seconds - self._written_seconds >= self._interval
        ):
            self._written_seconds = event.progress.seconds
            self._write(self._running(event))

    def close(self) -> None:
        """Try once more to write how the run ended, if that failed."""
        if self._last_word is not None:
            self._write(self._last_word)

    def _learn(self, event: Event) -> None:
        if isinstance(event, EpisodesEnded):
            self._episodes.add(event)
        elif isinstance(event, RunStarted):
            baseline = {"return": event.random_return, "std": event.random_std, "episodes": event.random_episodes}
            self._known |= {"title": event.title, "random_baseline": baseline}
        elif isinstance(event, Checkpointed):
            self._written += 1
            self._spent += event.seconds
            self._known["checkpoints"] = {"written": self._written, "last": event.path, "seconds": self._spent}
        elif isinstance(event, WorkerReplaced):
            self._replaced.append(event.record)
            self._known["failures"] = {"workers": self._replaced}

    def _running(self, event: Event) -> dict[str, Any]:
        progress = asdict(event.progress)
        seconds, return_ema = progress.pop("seconds"), progress.pop("return_ema")
        rate = event.progress.env_steps / seconds if seconds > 0 else None
        return {
            "status": "running",
            **self._known,
            **progress,
            "returns": {
                "ema": return_ema,
                "mean_100": self._episodes.return_mean,
                "std_100": self._episodes.return_std,
            },
            "throughput": {"steps_per_second": rate, "seconds": seconds},
        }

    def _write(self, summary: dict[str, Any]) -> None:
        record = {**summary, "written_at": round(time.time(), 3)}  # seconds since 1970
        write_atomically(self._run / "summary.json", to_json(record, indent=2) + "\n")
