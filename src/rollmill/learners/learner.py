"""The learner: sequencer, store and trainer joined to the component that the runtimes run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from time import perf_counter
from typing import Self

from pydantic import Field, model_validator

from rollmill.actors.component import Notice
from rollmill.config.base import Config
from rollmill.errors import NoExperience
from rollmill.events import EpisodesEnded, Event, Progress, Updated
from rollmill.learners.sequencer import Sequencer
from rollmill.learners.stopwatch import Stopwatch
from rollmill.learners.trainer import Trainer
from rollmill.persist.checkpoints import Content
from rollmill.stores.store import LeasedUnroll, Store, StoreState
from rollmill.types import ResumePoint


class TrainConfig(Config):
    """How long to train: for `steps` or for `updates`."""

    steps: int | None = Field(
        default=None, ge=1, description="agent decisions in all, over all environments; the last update may pass it"
    )
    updates: int | None = Field(default=None, ge=1, description="updates in all; instead of steps")

    @model_validator(mode="after")
    def _has_one_goal(self) -> Self:
        if self.steps is None and self.updates is None:
            raise ValueError("train needs steps or updates, e.g. train.steps=100000")
        if self.steps is not None and self.updates is not None:
            raise ValueError(
                f"train.steps={self.steps} and train.updates={self.updates}: training ends after one of them; "
                "set the other to null"
            )
        return self

    @property
    def goal(self) -> tuple[str, int]:
        """What is counted, as metrics and summaries name it, and how many there will be."""
        return ("env_steps", self.steps) if self.steps is not None else ("updates", self.updates or 0)

    @property
    def targets(self) -> dict[str, int]:
        """The goal as `Progress` names it."""
        return {"target_steps": self.steps or 0, "target_updates": self.updates or 0}

    def continued(self, done: int) -> str:
        """The override with which a run that has done so many may continue."""
        counted, target = self.goal
        return f"train.{counted.removeprefix('env_')}={2 * max(target, done)}"


class Learner:
    """Takes in unrolls, updates when the store has enough of them, publishes, and gives out the next tickets.

    Ports: `unrolls` in, `weights` out (cell), and for each actor i `tickets.i` out.
    """

    def __init__(
        self,
        name: str,
        sequencer: Sequencer,
        store: Store,
        trainer: Trainer,
        train: TrainConfig,
        frame_skip: int,
        stopwatch: Stopwatch,
    ) -> None:
        self.name = name
        self.notices: deque[Notice] = deque()
        self.events: deque[Event] = deque()
        self.sequencer, self.store, self.trainer = sequencer, store, trainer
        self._train, self._frame_skip = train, frame_skip
        self._stopwatch = stopwatch
        self._has_begun = False
        self._steps_updated = 0  # env steps at the last update
        self._seconds_before = 0.0  # of training, in earlier processes
        self.started = perf_counter()

    @property
    def done(self) -> bool:
        """All updates are made; or all steps, and what was to be learned from them is."""
        return self._has_enough and (self._train.steps is None or not self.store.owes_updates())

    @property
    def _has_enough(self) -> bool:
        return self._fraction >= 1.0

    @property
    def _fraction(self) -> float:
        """The part of training that is over, 0 to 1."""
        counted, target = self._train.goal
        return min((self.trainer.updates if counted == "updates" else self.sequencer.env_steps) / target, 1.0)

    def work(self) -> bool:
        """Give out the first tickets, take in unrolls, update when the store has enough."""
        if not self._has_begun:
            self._begin()
            return True
        progressed = self.take_in()
        if self.store.may_sample():
            self._update()
            return True
        if self.sequencer.ledger.is_idle:
            number = self.trainer.updates + 1
            raise NoExperience(f"update {number}: every environment failed; nothing to learn from")
        return progressed

    def take_in(self) -> bool:
        """Receive the unrolls that have arrived, and insert them until an update is due: their order decides when."""
        self.sequencer.receive()
        progressed, store = False, self.store
        while not store.may_sample() and store.may_insert() and (unroll := self.sequencer.take()) is not None:
            committed = store.insert(unroll)
            self.sequencer.announce(committed, self.trainer.updates + 1)
            self._commit(committed)
            progressed = True
            if committed and self.sequencer.is_between_rounds:
                self._give_tickets()
        return progressed

    def _begin(self) -> None:
        self._has_begun = True
        self.started = perf_counter()
        self._stopwatch.restart()
        if (limit := self.sequencer.ledger.limit) is not None:
            self.sequencer.flight.note("limit", self.trainer.updates, in_flight=limit)
        self.trainer.publish_again()
        self._give_tickets()

    def _update(self) -> None:
        """Sample, learn, commit, publish; in this order, so that progress never depends on timing."""
        sequencer, trainer = self.sequencer, self.trainer
        self._stopwatch.learning()
        try:
            sample = self.store.sample(trainer.sample_rng, trainer.version)
        except NoExperience as failure:
            raise NoExperience(f"update {trainer.updates + 1}: {failure}") from None
        sequencer.announce(sample.unrolls, trainer.updates + 1)
        sequencer.flight.updating(trainer.updates + 1)
        report = trainer.update(sample, self._fraction)
        committed = self.store.used(sample, report.priorities)
        self._commit(committed)
        sequencer.flight.updated(trainer.updates, report.metrics, trainer.weights)
        flow = sequencer.flow_metrics(committed, trainer.version, trainer.updates)
        if report.is_published:
            trainer.publish()
        self._give_tickets()
        times = self._stopwatch.updated(sequencer.env_steps - self._steps_updated)
        self._steps_updated = sequencer.env_steps
        self.events.append(Updated(self.progress(), trainer.version, {**report.metrics, **times, **flow}))

    def _commit(self, unrolls: Sequence[LeasedUnroll]) -> None:
        """Count unrolls that the store has committed, and give their slots back."""
        if not unrolls:
            return
        ended = self.sequencer.commit(unrolls)
        progress = self.progress()
        self.sequencer.release(unrolls, progress)
        if ended.returns:
            self.events.append(EpisodesEnded(progress, *ended))

    def _give_tickets(self) -> None:
        """After publishing: an actor with a ticket finds the version that it names."""
        if not self._has_enough and self.store.may_insert():
            self.sequencer.ledger.give(self.trainer.version)

    def resume(self, points: Mapping[int, ResumePoint]) -> None:
        """Nothing: the learner is restored by `restore`."""

    def resume_points(self) -> dict[int, ResumePoint]:
        """The resume point of each actor after its last unroll that has arrived."""
        return self.sequencer.resume_points()

    def missing(self) -> list[int]:
        """The actors whose unrolls are waited for."""
        return self.sequencer.ledger.missing()

    def reissue(self, actor: int) -> None:
        """Send the actor's tickets again after it was rebuilt: the new one never received them."""
        if self._has_begun and not self._has_enough:
            self.sequencer.reissue(actor, self.trainer.version, self.trainer.updates)

    def retarget(self, train: TrainConfig) -> None:
        """Change how long to train, for a run that was resumed with another goal."""
        self._train = train

    def capture(self) -> Content:
        """Everything that training depends on, as it is between two updates; views, to be written at once."""
        parts, trainer_state = self.trainer.capture()
        actors, sequencer_state = self.sequencer.capture()
        kept = self.store.capture()
        if kept.arrays:
            parts["store"] = kept.arrays
        state = {
            "store": kept.values,
            "seconds": self.progress().seconds,
            "spent": self._stopwatch.state(),
            **sequencer_state,
            **trainer_state,
        }
        chunks = {"store": kept.chunks} if kept.chunks else {}
        return Content({**parts, "actors": actors}, state, self.trainer.updates, self.sequencer.env_steps, chunks)

    def restore(self, content: Content) -> None:
        """Continue from what `capture` returned; before the first work()."""
        self.trainer.restore(content.arrays, content.state, content.update)
        self.sequencer.restore(content.arrays["actors"], content.state, content.env_steps, content.update)
        kept = content.arrays.get("store", {}), content.state.get("store", {}), content.chunks.get("store", {})
        self.store.restore(StoreState(*kept))
        self._steps_updated, self._seconds_before = content.env_steps, content.state["seconds"]
        self._stopwatch.restore(content.state["spent"])

    def progress(self) -> Progress:
        """Progress of the training."""
        scores, env_steps = self.sequencer.scores, self.sequencer.env_steps
        return Progress(
            env_steps=env_steps,
            frames=env_steps * self._frame_skip,
            updates=self.trainer.updates,
            **self._train.targets,
            episodes=scores.episodes,
            seconds=self._seconds_before + (perf_counter() - self.started if self._has_begun else 0.0),
            return_ema=scores.return_ema,
        )

    @property
    def time_shares(self) -> dict[str, float]:
        """Shares of the wall time of the whole run."""
        return self._stopwatch.total_shares()

    def close(self) -> None:
        """Nothing to release."""
