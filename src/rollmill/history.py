"""The history of a run over all its processes, apart from the learner's state: for checkpoints and the summary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rollmill.actors.episodes import UNRESTORED
from rollmill.doctor.restore_trial import EXACT
from rollmill.errors import NoExperience, WorkerFailed
from rollmill.events import Event, Progress, Said, WorkerReplaced
from rollmill.learners.learner import Learner
from rollmill.models.weights import parameters_sha256
from rollmill.numerics import difference
from rollmill.persist.checkpoints import Content
from rollmill.play.playing import Scored
from rollmill.resuming import identity
from rollmill.settings import ExperimentConfig


@dataclass
class History:
    """What one process of a run leaves to the next, and all of them to the summary."""

    config: ExperimentConfig
    numerics: Mapping[str, Any]  # how this process rounds
    grade: str  # how exactly the run could continue after an interruption
    baseline: Scored = field(default_factory=Scored)  # of the random policy
    greedy: Scored = field(default_factory=Scored)  # of the finished policy
    resumed: list[dict[str, int | None]] = field(default_factory=list)  # where earlier processes left off
    replaced: list[dict[str, Any]] = field(default_factory=list)  # workers
    seconds_before: float = 0.0  # of training, in earlier processes
    rounds_differently: str = ""  # why this process makes other bits than the one before, if it does
    first_trouble: Said | None = None  # in an environment

    def state(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {
            "config": identity(self.config),
            "baseline": self.baseline._asdict(),
            "resumed": self.resumed,
            "grade": self.grade,
            "numerics": self.numerics,
            "replaced": self.replaced,
        }

    def restore(self, content: Content, flight_mark: int | None) -> None:
        """Continue what the last process has left; without a mark what follows is in no flight log."""
        kept = {**self.state(), **content.state.get("run", {})}
        self.baseline = Scored(tuple(kept["baseline"]["returns"]), kept["baseline"]["seconds"])
        point = {"update": content.update, "env_steps": content.env_steps, "flight_mark": flight_mark}
        self.resumed, self.replaced = [*kept["resumed"], point], kept["replaced"]
        self.seconds_before = content.state["seconds"]
        self.rounds_differently = difference(kept["numerics"], self.numerics)
        self._lower_grade(kept["grade"])  # what was lost once doesn't come back
        if self.rounds_differently:
            self._lower_grade(f"approximate: {self.rounds_differently}")

    def hear(self, event: Event) -> None:
        """Remember what the end of the run will report."""
        if isinstance(event, WorkerReplaced):
            self.replaced.append(event.record)
        elif isinstance(event, Said) and event.level == "warning":
            if event.topic == UNRESTORED:
                self._lower_grade(f"approximate: env.id={self.config.env.id}: {event.text}")
            elif event.traceback and self.first_trouble is None:
                self.first_trouble = event

    def explained(self, error: Exception) -> Exception:
        """The error as the user should see it: with the first thing that went wrong in an environment on top."""
        if isinstance(error, NoExperience) and self.first_trouble is not None:
            return WorkerFailed(f"{error}: {self.first_trouble.text}", self.first_trouble.traceback)
        return error

    def summary(self, learner: Learner, progress: Progress) -> dict[str, Any]:
        """What the run was and how it went."""
        config, scores = self.config, learner.sequencer.scores
        seconds = max(progress.seconds, 1e-9)
        return {
            "algorithm": config.algorithm.name,
            "env": config.env.id,
            "seed": config.seed,
            "runtime": config.runtime.kind,
            "workers": config.runtime.workers,
            "env_steps": progress.env_steps,
            "frames": progress.frames,
            **config.train.targets,
            "updates": progress.updates,
            "episodes": progress.episodes,
            "parameters_sha256": parameters_sha256(learner.trainer.weights()),
            "returns": {
                "ema": scores.return_ema,
                "mean_100": scores.mean_100,
                "std_100": scores.std_100,
                "best_mean_100": scores.best_mean_100,
                "greedy": self.greedy.mean,
                "greedy_episodes": len(self.greedy.returns),
            },
            "random_baseline": {
                "return": self.baseline.mean,
                "std": self.baseline.std,
                "episodes": len(self.baseline.returns),
                "seconds": round(self.baseline.seconds, 3),
            },
            "throughput": {
                "steps_per_second": progress.env_steps / seconds,
                "frames_per_second": progress.frames / seconds,
                "seconds": progress.seconds,
                "time": learner.time_shares,
            },
            "numerics": self.numerics,
            "resume_grade": self.grade,
            "resumed": self.resumed,
            "failures": {"workers": self.replaced, **learner.sequencer.failures},
        }

    def _lower_grade(self, grade: str) -> None:
        if self.grade.startswith(EXACT):
            self.grade = grade
