"""One process's share of a run: begin or continue, train, end; every step of it is an event."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from time import perf_counter
from typing import Any

from rollmill.actors.episodes import UNRESTORED
from rollmill.doctor.oversubscription import oversubscribed_threads
from rollmill.doctor.restore_trial import EXACT
from rollmill.errors import Detected, NoExperience, RollmillError, Stalled, WorkerFailed
from rollmill.events import (
    Checkpointing,
    ComponentFailed,
    Event,
    Progress,
    RunStarted,
    Said,
    Stopped,
    Updated,
)
from rollmill.flight.log import NAME as FLIGHT_LOG
from rollmill.flight.log import FlightWriter
from rollmill.flight.records import Consumed
from rollmill.launch.interruption import Interruption
from rollmill.launch.process import tune_allocator
from rollmill.launch.pulse import watchdog
from rollmill.learners.journal import resume_points_from
from rollmill.learners.learner import Learner
from rollmill.models.weights import parameters_sha256
from rollmill.numerics import REMEDY, difference, facts, plan_line
from rollmill.observe.dispatcher import Dispatcher
from rollmill.persist.checkpoints import Checkpoints, Content
from rollmill.persist.run_folder import RunFolder
from rollmill.play.playing import Scored, play_greedily, play_randomly
from rollmill.resuming import Reopened, identity
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.saving import Saver, write_dump
from rollmill.settings import ExperimentConfig
from rollmill.types import Array

FLUSH_SECONDS = 5.0  # that a checkpoint waits for the other files of the run

Runtime = SerialRuntime | ProcessRuntime


class Session:
    """Everything between an open run folder and its summary."""

    def __init__(
        self,
        config: ExperimentConfig,
        folder: RunFolder,
        blueprint: Blueprint,
        runtime: Runtime,
        dispatcher: Dispatcher,
        interruption: Interruption,
        grade: str,
        reopened: Reopened | None,
        weights: Mapping[str, Array] | None,
    ) -> None:
        self._config, self._folder, self._blueprint = config, folder, blueprint
        self._runtime, self._dispatcher, self._interruption = runtime, dispatcher, interruption
        self._grade, self._reopened, self._weights = grade, reopened, weights
        self._numerics = facts(config.runtime.numerics)
        self._baseline = self._greedy = Scored((), 0.0)
        self._resumed: list[dict[str, int | None]] = []  # where earlier processes left off
        checkpoints = reopened.checkpoints if reopened else Checkpoints(folder.checkpoints, config.checkpoint)
        self._saver = Saver(checkpoints)
        self._replaced_before: list[dict[str, Any]] = []  # workers, by earlier processes
        self._first_trouble: Said | None = None
        self._keeps_blocks = False
        self._flight: FlightWriter | None = None
        self._has_complained = False  # about its end
        self._seconds_before = 0.0  # of training, in earlier processes
        self._rounds_differently = ""  # why this process makes other bits than the one before, if it does
        self.summary: dict[str, Any] = {}

    def events(self) -> Iterator[Event]:
        """All that happens; what ended the run badly is raised when everything that can be kept is kept."""
        failure: Exception | None = None
        with self._watchdog():
            self._build()
        try:
            with self._watchdog():
                yield from self._begin()
                yield from self._train()
        except Exception as error:
            failure = self._explained(error)
        yield from self._end(failure)

    def _build(self) -> None:
        """Start every process and component; those of a reopened run continue from their resume points."""
        self._keeps_blocks = tune_allocator()
        if self._reopened is None:
            self._runtime.start()
        else:
            content = self._reopened.found.content
            self._runtime.start(resume_points_from(content.arrays["actors"], self._blueprint.problem))
            self._learner.restore(content)
        if self._weights is not None:
            self._learner.trainer.load(self._weights)
            self._folder.save_weights(self._folder.initial, self._weights)
        self._learner.sequencer.tap = self._dispatcher.tap
        self._open_flight_log()

    def _open_flight_log(self) -> None:
        config = self._config
        if config.observe.flight_log:
            self._flight = FlightWriter(
                self._folder.path / FLIGHT_LOG, config.observe.flight_hash_every, self._blueprint.fields
            )
            if self._reopened is not None:
                pending = self._reopened.found.content.state.get("pending", ())
                self._flight.pending = tuple(Consumed.of(values) for values in pending)
            self._learner.sequencer.flight = self._flight
            # what may change when a run is resumed, and changes what is learned
            settings: dict[str, Any] = {
                "target_steps": config.train.steps,
                "learner_threads": config.runtime.threads.learner,
            }
            settings |= {"actors": config.env.groups, "numerics": self._numerics}
            self._flight.begin(self._learner.trainer.updates, **settings)

    def _new_complaint(self, progress: Progress) -> Iterator[Event]:
        """What ended the flight log, once; the run continues without it."""
        trouble = None if self._flight is None else self._flight.complaint or self._flight.gap
        if trouble is not None and not self._has_complained:
            self._has_complained = True
            yield Said(progress, "run", trouble, "warning")

    def _close_flight_log(self, progress: Progress, status: str) -> dict[str, Any] | None:
        """How the log fared, for the summary."""
        flight = self._flight
        if flight is None:
            return None
        flight.hash(progress.updates, self._learner.trainer.weights())
        flight.note("stopped", progress.updates, status=status)
        lost = flight.complaint or flight.gap
        flight.close()
        share = flight.cpu_seconds / max(progress.seconds - self._seconds_before, 1e-9)
        return {"bytes": flight.bytes, "cpu_share": share, **({} if lost is None else {"lost": lost})}

    def _begin(self) -> Iterator[Event]:
        config, reopened = self._config, self._reopened
        if reopened is None:
            self._baseline = play_randomly(
                self._blueprint.action_space,
                config.env,
                config.seed,
                config.observe.baseline_episodes,
                config.observe.baseline_seconds,
            )
        else:
            self._remember(reopened.found.content)
        title = f"{config.algorithm.name} on {config.env.id}"
        allocator = "allocator: " + ("keeps large blocks" if self._keeps_blocks else "as it is (no mallopt here)")
        numerics = plan_line(config.runtime.numerics)
        plan = (*self._runtime.plan(), *self._blueprint.action_plan, allocator, numerics, f"resume: {self._grade}")
        random = self._baseline
        yield RunStarted(self._learner.progress(), title, plan, random.mean, len(random.returns), random.std)
        if self._rounds_differently:
            text = f"{self._rounds_differently}, so it continues with other bits; for equal ones {REMEDY}"
            yield Said(self._learner.progress(), "run", text, "warning")
        for complaint in reopened.found.complaints if reopened else ():
            yield Said(self._learner.progress(), "checkpoint", f"{complaint}; an older one is used", "warning")
        if (oversubscribed := oversubscribed_threads(self._blueprint)) is not None:
            yield Said(self._learner.progress(), "run", oversubscribed, "warning")
        if self._saver.is_due(self._learner.progress(), {}):
            yield from self._save()

    def _train(self) -> Iterator[Event]:
        if self._interruption.is_wanted:
            return
        for event in self._runtime.run():
            self._hear(event)
            yield from self._new_complaint(event.progress)
            yield event
            if isinstance(event, Updated) and self._saver.is_due(event.progress, event.metrics):
                yield from self._save()

    def _end(self, failure: Exception | None) -> Iterator[Event]:
        learner = self._learner
        progress = learner.progress()
        if failure is not None and not isinstance(failure, WorkerFailed):  # which has reported its own
            yield ComponentFailed(progress, "main", str(failure), "".join(traceback.format_exception(failure)))
        if isinstance(failure, Detected):
            dump = write_dump(self._folder.path, failure.evidence, str(failure), progress)
            if dump is not None:
                yield Said(progress, "run", f"batch and weights are kept in {dump}")
        if learner.trainer.mid_update:
            learner.trainer.revert_weights()
        elif self._saver.is_behind(learner.trainer.updates):
            yield from self._save()
        unsaved = self._save_weights()
        try:
            with self._watchdog():
                self._runtime.close()
        except Stalled as stalled:
            yield Said(progress, "run", str(stalled), "warning")
        status, reason = self._verdict(failure)
        flight_log = self._close_flight_log(progress, status)
        cut_short: BaseException | None = None
        if status == "done":
            try:
                yield from self._play_greedily()
            except (KeyboardInterrupt, SystemExit) as second_signal:  # the summary is worth its moment
                cut_short = second_signal
        self._dispatcher.flush(FLUSH_SECONDS)  # so that what was lost is known
        self.summary = self._summarise(progress, status, reason)
        if flight_log is not None:
            self.summary["flight_log"] = flight_log
        self._dispatcher.dismiss(Stopped(progress, status, reason, dict(self.summary)))
        self.summary["observers"] = self._dispatcher.report()
        yield Stopped(progress, status, reason, self.summary)
        if cut_short is not None:
            raise cut_short
        if failure is not None:
            raise failure
        if unsaved is not None:
            raise RollmillError(f"{self._folder.path}: the final weights could not be written: {unsaved}; make room")

    @property
    def _learner(self) -> Learner:
        return self._runtime.learner

    def _watchdog(self) -> AbstractContextManager[None]:
        """Ends environment code that hangs in this process."""
        return watchdog(self._config.runtime.env_seconds, self._folder.logs / "main.stack")

    def _save(self) -> Iterator[Event]:
        """A checkpoint, once the other files have everything up to here: a resumed run finds no gap in them."""
        begun, progress = perf_counter(), self._learner.progress()
        yield Checkpointing(progress)
        if not self._dispatcher.flush(FLUSH_SECONDS):
            yield Said(progress, "checkpoint", "a slow observer: its files may have a gap here", "warning")
        if complaint := self._saver.complaint(self._learner):
            yield Said(progress, "checkpoint", complaint, "warning")
        yield self._saver.save(self._learner, self._kept(), begun)

    def _save_weights(self) -> str | None:
        """The weights for use elsewhere; what kept them from being written."""
        try:
            self._folder.save_weights(self._folder.weights, self._learner.trainer.weights())
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _play_greedily(self) -> Iterator[Event]:
        config, observe = self._config, self._config.observe
        recipe, network = self._blueprint.recipe, self._learner.trainer.network
        make = partial(recipe.policy_outside_training, network, self._blueprint.algorithm)
        try:
            with self._watchdog():
                self._greedy = play_greedily(
                    make,
                    config.env,
                    config.seed,
                    observe.final_episodes,
                    observe.final_seconds,
                    lambda: self._interruption.is_wanted,
                )
        except RollmillError as error:  # the training is done all the same
            text = f"the finished policy could not be played: {error}"
            yield Said(self._learner.progress(), "run", text, "warning")

    def _hear(self, event: Event) -> None:
        """Remember what the end of the run will report."""
        if isinstance(event, Said) and event.level == "warning":
            if event.topic == UNRESTORED and self._grade.startswith(EXACT):
                self._grade = f"approximate: env.id={self._config.env.id}: {event.text}"
            elif event.traceback and self._first_trouble is None:
                self._first_trouble = event

    def _explained(self, error: Exception) -> Exception:
        """The error as the user should see it: with the first thing that went wrong in an environment on top."""
        if isinstance(error, NoExperience) and self._first_trouble is not None:
            return WorkerFailed(f"{error}: {self._first_trouble.text}", self._first_trouble.traceback)
        return error

    def _verdict(self, failure: Exception | None) -> tuple[str, str]:
        if failure is not None:
            return ("detected" if isinstance(failure, Detected) else "failed"), str(failure)
        if self._interruption.is_wanted:
            resume = f"continue with: rollmill train {self._folder.path} --resume"
            return "interrupted", f"by {self._interruption.source}; {resume}"
        return "done", "all steps made"

    def _summarise(self, progress: Progress, status: str, reason: str) -> dict[str, Any]:
        config, learner, scores = self._config, self._learner, self._learner.sequencer.scores
        seconds = max(progress.seconds, 1e-9)
        return {
            "status": status,
            "reason": reason,
            "algorithm": config.algorithm.name,
            "env": config.env.id,
            "seed": config.seed,
            "runtime": config.runtime.kind,
            "workers": config.runtime.workers,
            "env_steps": progress.env_steps,
            "frames": progress.frames,
            "target_steps": progress.target_steps,
            "updates": progress.updates,
            "episodes": progress.episodes,
            "parameters_sha256": parameters_sha256(learner.trainer.weights()),
            "returns": {
                "ema": scores.return_ema,
                "mean_100": scores.mean_100,
                "std_100": scores.std_100,
                "best_mean_100": scores.best_mean_100,
                "greedy": self._greedy.mean,
                "greedy_episodes": len(self._greedy.returns),
            },
            "random_baseline": {
                "return": self._baseline.mean,
                "std": self._baseline.std,
                "episodes": len(self._baseline.returns),
                "seconds": round(self._baseline.seconds, 3),
            },
            "throughput": {
                "steps_per_second": progress.env_steps / seconds,
                "frames_per_second": progress.frames / seconds,
                "seconds": progress.seconds,
                "time": learner.time_shares,
            },
            "numerics": self._numerics,
            "resume_grade": self._grade,
            "resumed": self._resumed,
            "checkpoints": self._saver.account(progress.seconds),
            "failures": {"workers": self._replaced_workers(), **learner.sequencer.failures},
            "losses": self._dispatcher.losses(),
            "run": str(self._folder.path),
        }

    def _kept(self) -> dict[str, Any]:
        """What the next process of this run must know besides the learner's state."""
        return {
            "config": identity(self._config),
            "baseline": self._baseline._asdict(),
            "resumed": self._resumed,
            "grade": self._grade,
            "numerics": self._numerics,
            "replaced": self._replaced_workers(),
        }

    def _remember(self, content: Content) -> None:
        """Take over what the last process of this run has left."""
        self._seconds_before = content.state["seconds"]
        kept = {**self._kept(), "saving": self._saver.totals(), **content.state.get("run", {})}
        self._baseline = Scored(tuple(kept["baseline"]["returns"]), kept["baseline"]["seconds"])
        mark = None if self._flight is None else self._flight.mark  # none: what follows is in no log
        point = {"update": content.update, "env_steps": content.env_steps, "flight_mark": mark}
        self._resumed = [*kept["resumed"], point]
        self._replaced_before = kept["replaced"]
        self._saver.restore(kept["saving"])
        if self._grade.startswith(EXACT):  # what was lost once doesn't come back
            self._grade = kept["grade"]
        self._rounds_differently = difference(kept["numerics"], self._numerics)
        if self._rounds_differently and self._grade.startswith(EXACT):
            self._grade = f"approximate: {self._rounds_differently}"

    def _replaced_workers(self) -> list[dict[str, Any]]:
        return self._replaced_before + [
            {
                "place": event.place,
                "reason": event.reason,
                "update": event.progress.updates,
                "seconds": round(event.seconds, 3),
                "replay_seconds": round(event.replay_seconds, 3),
            }
            for event in self._runtime.replacements
        ]
