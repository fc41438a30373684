"""The learner gives out tickets, turns complete batches into new weights and publishes them: the sequencer."""

from __future__ import annotations

from collections import deque
from time import perf_counter

import numpy as np
from pydantic import Field

from rollmill.algorithms.recipe import UpdateContext, UpdateRule
from rollmill.config import Config
from rollmill.errors import Detected
from rollmill.learners.finite import refuse_nonfinite
from rollmill.learners.scores import Scores
from rollmill.learners.stopwatch import Stopwatch
from rollmill.models.initialise import lent_generator
from rollmill.models.network import Network
from rollmill.models.weights import WeightsLoader, weights_of
from rollmill.observe.events import EpisodesEnded, Event, Progress, Updated
from rollmill.seeding import generator, integer_seed
from rollmill.stores.rollout import EpisodeStore, RolloutStore
from rollmill.transport.ports import Ports
from rollmill.types import Ticket


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
        update: UpdateRule,
        store: RolloutStore | EpisodeStore,
        train: TrainConfig,
        root_seed: int,
        frame_skip: int,
        stopwatch: Stopwatch,
        ports: Ports,
    ) -> None:
        self.name = name
        self.network = network
        self.store = store
        self.events: deque[Event] = deque()
        self._update_rule = update
        self._target_steps = train.steps
        self._root_seed, self._frame_skip = root_seed, frame_skip
        self._unrolls, self._weights = ports["unrolls"], ports["weights"]
        self._tickets = [ports[f"tickets.{i}"] for i in range(store.actors)]
        self._sequence = 0  # of the tickets that are out; also the version of the weights they name
        self._has_begun = False
        self._env_steps = 0
        self._scores = Scores()
        self._stopwatch = stopwatch
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
        progressed = False
        while self.store.may_insert() and (lease := self._unrolls.take()) is not None:
            self._stopwatch.collected(*lease.arrays["seconds"].tolist()[:2])
            self.store.insert(lease)
            progressed = True
        if self.store.may_sample():
            self._update()
            return True
        return progressed

    def progress(self) -> Progress:
        """Where training stands now."""
        return Progress(
            env_steps=self._env_steps,
            frames=self._env_steps * self._frame_skip,
            target_steps=self._target_steps,
            updates=self._sequence,
            episodes=self._scores.episodes,
            seconds=perf_counter() - self.started,
            return_ema=self._scores.return_ema,
        )

    @property
    def scores(self) -> Scores:
        """Returns of the episodes so far."""
        return self._scores

    @property
    def time_shares(self) -> dict[str, float]:
        """Where the wall time of the whole run went."""
        return self._stopwatch.total_shares()

    def close(self) -> None:
        """Nothing to let go of."""

    def _update(self) -> None:
        self._stopwatch.learning()
        tickets, batch, parts = self.store.sample()
        refuse_nonfinite(parts, tickets, self._sequence + 1)
        steps = sum(int(part["valid"].sum()) for part in parts)
        context = UpdateContext(
            generator(self._root_seed, "minibatch", self._sequence), min(self._env_steps / self._target_steps, 1.0)
        )
        with lent_generator(integer_seed(self._root_seed, "update", self._sequence)):
            report = self._update_rule(batch, context)
        for name, value in report.metrics.items():
            if not np.isfinite(value) and name != "explained_variance":
                WeightsLoader(self.network).load(self._weights, self._sequence)  # the last good ones are kept
                raise Detected(
                    f"update {self._sequence + 1}: {name} is {value}; "
                    "lower algorithm.learning_rate or look at the rewards"
                )
        self._env_steps += steps
        self._sequence += 1
        ended = self._scores.add(parts)
        self._publish()
        times = self._stopwatch.updated(steps)
        progress = self.progress()
        if ended.returns:
            self.events.append(EpisodesEnded(progress, *ended))
        self.events.append(Updated(progress, self._sequence, {**report.metrics, **times, **self._port_metrics()}))

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
        for actor, port in enumerate(self._tickets):
            lease = port.reserve()
            assert lease is not None, "a ticket port holds the one ticket that is out"
            lease.arrays["ticket"][:] = Ticket(actor, self._sequence, self._sequence)
            port.commit(lease)
