"""One process's share of a run: begin or continue, train, end; every step of it is an event."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from rollmill.doctor.preflight import oversubscribed_threads
from rollmill.errors import Detected, RollmillError, Stalled, WorkerFailed
from rollmill.events import ComponentFailed, Event, RunStarted, Said, Stopped, Updated
from rollmill.flight.log import Flight, FlightWriter
from rollmill.flight.records import NAME as FLIGHT_LOG
from rollmill.flight.records import Consumed
from rollmill.history import History
from rollmill.launch.interruption import Interruption
from rollmill.launch.process import tune_allocator
from rollmill.launch.pulse import watchdog
from rollmill.learners.journal import resume_points_from
from rollmill.learners.learner import Learner
from rollmill.numerics import REMEDY, plan_line
from rollmill.observe.dispatcher import Dispatcher
from rollmill.persist.checkpoints import Checkpoints
from rollmill.persist.run_folder import RunFolder
from rollmill.play.playing import play_greedily, play_randomly
from rollmill.resuming import Reopened
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.graph import Runtime
from rollmill.saving import FLUSH_SECONDS, Saver, write_dump
from rollmill.types import Array


class Session:
    """Everything between an open run folder and its summary."""

    def __init__(
        self,
        history: History,
        folder: RunFolder,
        blueprint: Blueprint,
        runtime: Runtime,
        dispatcher: Dispatcher,
        interruption: Interruption,
        reopened: Reopened | None,
        weights: Mapping[str, Array] | None,
    ) -> None:
        self._config, self._history, self._folder, self._blueprint = history.config, history, folder, blueprint
        self._runtime, self._dispatcher, self._interruption = runtime, dispatcher, interruption
        self._reopened, self._weights = reopened, weights
        checkpoints = reopened.checkpoints if reopened else Checkpoints(folder.checkpoints, self._config.checkpoint)
        self._saver = Saver(checkpoints, dispatcher.flush)
        self._flight = Flight()
        self._keeps_blocks = False
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
            failure = self._history.explained(error)
        yield from self._end(failure)

    def _build(self) -> None:
        """Start every process and component; those of a reopened run continue from their resume points."""
        self._keeps_blocks = tune_allocator()
        content = None if self._reopened is None else self._reopened.found.content
        if content is None:
            self._runtime.start()
        else:
            self._runtime.start(resume_points_from(content.arrays["actors"], self._blueprint.problem))
            self._learner.restore(content)
        if self._weights is not None:
            self._learner.trainer.load(self._weights)
            self._folder.save_weights(self._folder.initial, self._weights)
        self._learner.sequencer.tap = self._dispatcher.tap
        if self._config.observe.flight_log:
            self._learner.sequencer.flight = self._flight = self._open_flight_log()
        if content is not None:
            self._history.restore(content, self._flight.mark)
            self._saver.restore(content.state.get("run", {}).get("saving", {}))

    def _open_flight_log(self) -> FlightWriter:
        config, every = self._config, self._config.observe.flight_hash_every
        flight = FlightWriter(self._folder.path / FLIGHT_LOG, every, self._blueprint.fields)
        if self._reopened is not None:
            flight.pending = tuple(map(Consumed.of, self._reopened.found.content.state.get("pending", ())))
        flight.begin(  # with what may change when a run is resumed, and changes what is learned
            self._learner.trainer.updates,
            **config.train.targets,
            learner_threads=config.runtime.threads.learner,
            actors=self._blueprint.actors,
            numerics=self._history.numerics,
        )
        return flight

    def _begin(self) -> Iterator[Event]:
        config, history, progress = self._config, self._history, self._learner.progress()
        if self._reopened is None:
            history.baseline = play_randomly(config, self._blueprint.action_space)
        title = f"{config.algorithm.name} on {config.env.id}"
        allocator = "allocator: " + ("keeps large blocks" if self._keeps_blocks else "as it is (no mallopt here)")
        numerics = plan_line(config.runtime.numerics)
        plan = (*self._runtime.plan(), *self._blueprint.action_plan, allocator, numerics, f"resume: {history.grade}")
        random = history.baseline
        yield RunStarted(progress, title, plan, random.mean, len(random.returns), random.std)
        if history.rounds_differently:
            text = f"{history.rounds_differently}, so it continues with other bits; for equal ones {REMEDY}"
            yield Said(progress, "run", text, "warning")
        for complaint in self._reopened.found.complaints if self._reopened else ():
            yield Said(progress, "checkpoint", f"{complaint}; an older one is used", "warning")
        if (oversubscribed := oversubscribed_threads(self._blueprint)) is not None:
            yield Said(progress, "run", oversubscribed, "warning")
        if self._saver.is_due(progress, {}):
            yield from self._save()

    def _train(self) -> Iterator[Event]:
        if self._interruption.is_wanted:
            return
        for event in self._runtime.run():
            self._history.hear(event)
            if (trouble := self._flight.news()) is not None:  # the run continues without the log
                yield Said(event.progress, "run", trouble, "warning")
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
        seconds = progress.seconds - self._history.seconds_before
        flight_log = self._flight.end(progress.updates, learner.trainer.weights(), status, seconds)
        cut_short: BaseException | None = None
        if status == "done":
            try:
                yield from self._play_greedily()
            except (KeyboardInterrupt, SystemExit) as second_signal:  # the summary is worth its moment
                cut_short = second_signal
        self._dispatcher.flush(FLUSH_SECONDS)  # so that what was lost is known
        self.summary = {
            "status": status,
            "reason": reason,
            **self._history.summary(learner, progress),
            "checkpoints": self._saver.account(progress.seconds),
            "losses": self._dispatcher.losses(),
            "run": str(self._folder.path),
            **({} if flight_log is None else {"flight_log": flight_log}),
        }
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
        return self._saver.save(self._learner, self._history.state())

    def _save_weights(self) -> str | None:
        """The weights for use elsewhere; what kept them from being written."""
        try:
            self._folder.save_weights(self._folder.weights, self._learner.trainer.weights())
        except OSError as error:
            return error.strerror or str(error)
        return None

    def _play_greedily(self) -> Iterator[Event]:
        recipe, network = self._blueprint.recipe, self._learner.trainer.network
        make = partial(recipe.policy_outside_training, network, self._blueprint.algorithm)
        try:
            with self._watchdog():
                self._history.greedy = play_greedily(self._config, make, lambda: self._interruption.is_wanted)
        except RollmillError as error:  # the training is done all the same
            text = f"the finished policy could not be played: {error}"
            yield Said(self._learner.progress(), "run", text, "warning")

    def _verdict(self, failure: Exception | None) -> tuple[str, str]:
        if failure is not None:
            return ("detected" if isinstance(failure, Detected) else "failed"), str(failure)
        if self._interruption.is_wanted:
            resume = f"continue with: rollmill train {self._folder.path} --resume"
            return "interrupted", f"by {self._interruption.source}; {resume}"
        return "done", f"all {self._config.train.goal[0].removeprefix('env_')} made"
