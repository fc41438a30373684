"""The learner gives out tickets, turns complete batches into new weights and publishes them: the sequencer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np
from pydantic import Field

from rollmill import nested
from rollmill.actors.component import Notice
from rollmill.algorithms.recipe import Update, UpdateContext, UpdateRule
from rollmill.config import Config
from rollmill.errors import Detected
from rollmill.learners.checkpoint import Content
from rollmill.learners.finite import refuse_nonfinite
from rollmill.learners.journal import Journal
from rollmill.learners.optimizer import FlatOptimizer
from rollmill.learners.scores import Scores
from rollmill.learners.stopwatch import Stopwatch
from rollmill.models.initialise import lent_generator
from rollmill.models.network import Network
from rollmill.models.weights import WeightsLoader, load_weights, weights_of
from rollmill.observe.events import EpisodesEnded, Event, Progress, Updated
from rollmill.seeding import generator, integer_seed
from rollmill.stores.rollout import EpisodeStore, RolloutStore
from rollmill.transport.ports import Ports
from rollmill.types import Array, Border, Problem, Ticket


class TrainConfig(Config):
    """How long to train."""

    steps: int = Field(ge=1, description="agent decisions in all, over all environments; the last update may pass it")


class Learner:
    """Synchronous learning: one ticket per actor and update, all made with the weights they will change.

    Ports: `unrolls` in, `weights` out (cell), and for each actor i `tickets.i` out.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        optimizer: FlatOptimizer,
        update: UpdateRule,
        store: RolloutStore | EpisodeStore,
        train: TrainConfig,
        root_seed: int,
        frame_skip: int,
        problem: Problem,
        stopwatch: Stopwatch,
        ports: Ports,
    ) -> None:
        self.name = name
        self.notices: deque[Notice] = deque()
        self.network = network
        self.store = store
        self.events: deque[Event] = deque()
        self._optimizer, self._update_rule = optimizer, update
        self._journal = Journal(problem)
        self._target_steps = train.steps
        self._root_seed, self._frame_skip = root_seed, frame_skip
        self._unrolls, self._weights = ports["unrolls"], ports["weights"]
        self._tickets = [ports[f"tickets.{i}"] for i in range(store.actors)]
        self._sequence = 0  # of the tickets that are out; also the version of the weights they name
        self._has_begun = False
        self.is_torn = False  # in the middle of an update that was not finished: not to be captured
        self._env_steps = 0
        self._scores = Scores()
        self._troubles = 0
        self._stopwatch = stopwatch
        self._seconds_before = 0.0  # of training, in earlier processes
        self.started = perf_counter()

    @property
    def done(self) -> bool:
        """Enough steps have been made."""
        return self._env_steps >= self._target_steps

    @property
    def updates(self) -> int:
        """Updates made so far, which is the version of the weights."""
        return self._sequence

    def work(self) -> bool:
        """Give out the first tickets, take in unrolls, update when the batch is complete."""
        if not self._has_begun:
            self._has_begun = True
            self.started = perf_counter()
            self._stopwatch.restart()
            self._publish()
            return True
        progressed = self.take_in()
        if self.store.may_sample():
            self._update()
            return True
        return progressed

    def take_in(self) -> bool:
        """Take in the unrolls that have come; no update."""
        progressed = False
        while self.store.may_insert() and (lease := self._unrolls.take()) is not None:
            self._stopwatch.collected(*lease.arrays["seconds"].tolist()[:2])
            self.store.insert(lease)
            progressed = True
        return progressed

    def resume(self, borders: Mapping[int, Border]) -> None:
        """Nothing: the learner comes back by `restore`."""

    def borders(self) -> dict[int, Border]:
        """Where each actor stands, behind the unrolls that have come; who has finished none is left out."""
        return self._journal.borders(self.store.held())

    def holds(self, actor: int) -> bool:
        """Whether the actor's unroll for the next update is here, its slot still in use."""
        return actor in self.store.held()

    def reissue(self, actor: int) -> None:
        """Give out the actor's ticket again, to a new actor that never saw it."""
        if self._has_begun and not self.done and not self.holds(actor):
            self._give_ticket(actor)

    def capture(self) -> Content:
        """Everything that training depends on, as it is between two updates; views, to be written at once."""
        state = {
            "seconds": self.progress().seconds,
            "scores": self._scores.state(),
            "spent": self._stopwatch.state(),
            "troubles": self._troubles,
        }
        arrays = {
            "weights": weights_of(self.network),
            "optimizer": self._optimizer.state(),
            "actors": self._journal.arrays(),
        }
        return Content(arrays, state, self._sequence, self._env_steps)

    def take_back(self) -> None:
        """After half an update: the weights as they were published before it."""
        WeightsLoader(self.network).load(self._weights, self._sequence)

    def restore(self, content: Content) -> None:
        """Go on from what `capture` gave; before the first work()."""
        load_weights(self.network, content.arrays["weights"])
        self._optimizer.restore(content.arrays["optimizer"])
        self._journal.restore(content.arrays["actors"])
        self._sequence, self._env_steps = content.update, content.env_steps
        self._seconds_before, self._troubles = content.state["seconds"], content.state["troubles"]
        self._scores.restore(content.state["scores"])
        self._stopwatch.restore(content.state["spent"])

    def progress(self) -> Progress:
        """Where training stands now."""
        return Progress(
            env_steps=self._env_steps,
            frames=self._env_steps * self._frame_skip,
            target_steps=self._target_steps,
            updates=self._sequence,
            episodes=self._scores.episodes,
            seconds=self._seconds_before + (perf_counter() - self.started if self._has_begun else 0.0),
            return_ema=self._scores.return_ema,
        )

    @property
    def scores(self) -> Scores:
        """Returns of the episodes so far."""
        return self._scores

    @property
    def environment_failures(self) -> dict[str, int]:
        """Calls in which an environment failed, and environments that are quarantined."""
        return {"environments": self._troubles, "quarantined": self._journal.quarantined}

    @property
    def time_shares(self) -> dict[str, float]:
        """Where the wall time of the whole run went."""
        return self._stopwatch.total_shares()

    def close(self) -> None:
        """Nothing to let go of."""

    def _update(self) -> None:
        self._stopwatch.learning()
        _, batch, parts, owners = self.store.sample()
        try:
            refuse_nonfinite(parts, owners, self._sequence + 1)
        except Detected as detected:
            raise Detected(str(detected), self._evidence(parts)) from None
        steps = sum(int(part["valid"].sum()) for part in parts)
        context = UpdateContext(
            generator(self._root_seed, "minibatch", self._sequence), min(self._env_steps / self._target_steps, 1.0)
        )
        self.is_torn = True  # until the update is whole; whatever is raised meanwhile leaves half of one
        with lent_generator(integer_seed(self._root_seed, "update", self._sequence)):
            report = self._update_rule(batch, context)
        self._refuse_nonfinite_update(report, parts)
        self.is_torn = False
        for actor, unroll in self.store.held().items():
            self._journal.advance(actor, unroll)
            self._troubles += int(unroll["troubles"].sum())
        self.store.clear()
        self._env_steps += steps
        self._sequence += 1
        ended = self._scores.add(parts)
        self._publish()
        times = self._stopwatch.updated(steps)
        progress = self.progress()
        if ended.returns:
            self.events.append(EpisodesEnded(progress, *ended))
        self.events.append(Updated(progress, self._sequence, {**report.metrics, **times, **self._port_metrics()}))

    def _refuse_nonfinite_update(self, report: Update, parts: list[dict[str, Any]]) -> None:
        for name, value in report.metrics.items():
            if np.isfinite(value) or name == "explained_variance":
                continue
            when, norms = "", report.gradient_norms
            if norms is not None and not norms.isfinite().all():
                when = f" (from gradient step {int(norms.isfinite().logical_not().nonzero()[0])} of {len(norms)} on)"
            evidence = {"weights_after": {key: array.copy() for key, array in weights_of(self.network).items()}}
            self.take_back()
            raise Detected(
                f"update {self._sequence + 1}: {name} is {value}{when}; "
                "lower algorithm.learning_rate or look at the rewards",
                {**self._evidence(parts), **evidence},
            )

    def _evidence(self, parts: list[dict[str, Any]]) -> dict[str, dict[str, Array]]:
        """The batch and the weights before the update, to be looked at afterwards."""
        batch = {
            f"{number}.{field}{f'.{path}' if path else ''}": leaf.cpu().numpy()
            for number, part in enumerate(parts)
            for field, tree in part.items()
            for path, leaf in nested.leaves(tree)
        }
        return {"batch": batch, "weights": weights_of(self.network)}

    def _port_metrics(self) -> dict[str, float]:
        """How the links of the learner fared since the last update: most waiting at once, looks in vain, and so on."""
        taken, given = self._unrolls.counters.drain(), [port.counters.drain() for port in self._tickets]
        return {
            "port/unrolls_depth": float(taken.depth_peak),
            "port/unrolls_waits": float(taken.waited),
            "port/tickets_refused": float(sum(counters.refused for counters in given)),
            "port/drops": float(sum(counters.dropped for counters in (taken, *given))),
        }

    def _publish(self) -> None:
        """Publish the weights, then the tickets that name them: whoever holds a ticket finds its version."""
        self._weights.write(self._sequence, weights_of(self.network))
        if self.done:
            return
        for actor in range(len(self._tickets)):
            self._give_ticket(actor)

    def _give_ticket(self, actor: int) -> None:
        port = self._tickets[actor]
        lease = port.reserve()
        assert lease is not None, "a ticket port holds the one ticket that is out"
        lease.arrays["ticket"][:] = Ticket(actor, self._sequence, self._sequence)
        port.commit(lease)
