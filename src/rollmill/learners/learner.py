"""The learner gives out tickets, turns complete batches into new weights and publishes them: the sequencer."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from pydantic import Field

from rollmill import nested
from rollmill.actors.component import Notice
from rollmill.algorithms.recipe import Remembering, Update, UpdateContext, UpdateRule
from rollmill.config import Config
from rollmill.errors import Detected, NoExperience
from rollmill.learners.checkpoint import Content
from rollmill.learners.finite import refuse_nonfinite
from rollmill.learners.flight import Flight, NoFlight
from rollmill.learners.journal import Journal
from rollmill.learners.ledger import FlightLedger, Ledger
from rollmill.learners.optimizer import FlatOptimizer
from rollmill.learners.scores import Scores
from rollmill.learners.stopwatch import Stopwatch
from rollmill.learners.tap import Tap, Trajectory
from rollmill.models.initialise import lent_generator
from rollmill.models.network import Network
from rollmill.models.weights import WeightsLoader, load_weights, weights_of
from rollmill.observe.events import EpisodesEnded, Event, Progress, Updated
from rollmill.seeding import generator, integer_seed
from rollmill.stores.rollout import Sampled, Store
from rollmill.transport.ports import Ports
from rollmill.types import Array, Border, Flow, Problem


class TrainConfig(Config):
    """How long to train."""

    steps: int = Field(ge=1, description="agent decisions in all, over all environments; the last update may pass it")


class Learner:
    """Gives out tickets for unrolls, updates when the store has enough of them, publishes; every choice is logged.

    Ports: `unrolls` in, `weights` out (cell), and for each actor i `tickets.i` out.
    """

    def __init__(
        self,
        name: str,
        network: Network,
        optimizer: FlatOptimizer,
        update: UpdateRule,
        store: Store,
        flow: Flow,
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
        self.ticket_ports = [ports[name] for name in sorted(ports, key=_number) if name.startswith("tickets.")]
        self.ledger: Ledger = FlightLedger(self.ticket_ports, flow, self._weights.depth)
        self.flight: Flight = NoFlight()
        self.tap: Tap | None = None
        self._incarnations = [0] * len(self.ticket_ports)
        self._makers: dict[tuple[int, int], int] = {}  # incarnation that made an unroll, by actor and sequence
        self._version = 0  # of the weights: updates made so far
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
        return self._version

    def work(self) -> bool:
        """Give out the first tickets, take in unrolls, update when the batch is complete."""
        if not self._has_begun:
            self._has_begun = True
            self.started = perf_counter()
            self._stopwatch.restart()
            if isinstance(self.ledger, FlightLedger) and self.ledger.controller.is_limiting:
                self.flight.note("limit", self._version, in_flight=self.ledger.controller.allowed)
            self._publish()
            return True
        progressed = self.take_in()
        if self.store.may_sample():
            self._update()
            return True
        if isinstance(self.ledger, FlightLedger) and not self.ledger.missing():
            raise NoExperience(f"update {self._version + 1}: every environment failed; nothing to learn from")
        return progressed

    def take_in(self) -> bool:
        """Take in the unrolls that have come; no update."""
        progressed = False
        while (lease := self._unrolls.take()) is not None:
            ticket = self.store.insert(lease)
            self._makers[ticket[:2]] = self._incarnations[ticket.actor]
            self._stopwatch.collected(ticket.actor, *lease.arrays["seconds"].tolist()[:2])
            self.ledger.arrived(ticket)
            progressed = True
        self.ledger.send()
        return progressed

    def resume(self, borders: Mapping[int, Border]) -> None:
        """Nothing: the learner comes back by `restore`."""

    def borders(self) -> dict[int, Border]:
        """Where each actor stands, behind the unrolls that have come; who has finished none is left out."""
        return self._journal.borders(self.store.held())

    def retarget(self, steps: int) -> None:
        """Train for so many steps in all, as a run does that was resumed with another `train.steps`."""
        self._target_steps = steps

    def missing(self) -> list[int]:
        """The actors whose unrolls are waited for."""
        return self.ledger.missing()

    def reissue(self, actor: int) -> None:
        """Give out the actor's tickets again, to another incarnation of it that never saw them."""
        self._incarnations[actor] += 1
        if self._has_begun and not self.done:
            self.flight.note("replaced", self._version, actor=actor, incarnation=self._incarnations[actor])
            self.ledger.reissue(actor, self._version)

    def capture(self) -> Content:
        """Everything that training depends on, as it is between two updates; views, to be written at once."""
        state = {
            "seconds": self.progress().seconds,
            "scores": self._scores.state(),
            "spent": self._stopwatch.state(),
            "troubles": self._troubles,
            "incarnations": self._incarnations,
            **({"ledger": self.ledger.state()} if isinstance(self.ledger, FlightLedger) else {}),
            **({"update_rule": self._update_rule.state()} if isinstance(self._update_rule, Remembering) else {}),
        }
        arrays = {
            "weights": weights_of(self.network),
            "optimizer": self._optimizer.state(),
            "actors": self._journal.arrays(),
        }
        return Content(arrays, state, self._version, self._env_steps)

    def take_back(self) -> None:
        """After half an update: the weights as they were published before it."""
        WeightsLoader(self.network).load(self._weights, self._version)

    def restore(self, content: Content) -> None:
        """Go on from what `capture` gave; before the first work()."""
        load_weights(self.network, content.arrays["weights"])
        self._optimizer.restore(content.arrays["optimizer"])
        self._journal.restore(content.arrays["actors"])
        self._version, self._env_steps = content.update, content.env_steps
        self._seconds_before, self._troubles = content.state["seconds"], content.state["troubles"]
        self._scores.restore(content.state["scores"])
        self._stopwatch.restore(content.state["spent"])
        # every actor begins anew; checkpoints from before there was a ledger were all of synchronous runs
        self._incarnations = [n + 1 for n in content.state.get("incarnations", self._incarnations)]
        if isinstance(self.ledger, FlightLedger):
            self.ledger.restore(content.state.get("ledger") or {"sequences": [content.update] * len(self.ticket_ports)})
        if isinstance(self._update_rule, Remembering):
            self._update_rule.restore(content.state.get("update_rule", {}))

    def progress(self) -> Progress:
        """Where training stands now."""
        return Progress(
            env_steps=self._env_steps,
            frames=self._env_steps * self._frame_skip,
            target_steps=self._target_steps,
            updates=self._version,
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
        sampled, number = self.store.sample(self._version), self._version + 1
        parts = sampled.parts
        self._note_lost_episodes(sampled)
        self.flight.consumed(
            number,
            [(held.ticket, self._makers.pop(held.ticket[:2]), held.lease.arrays) for held in sampled.unrolls],
        )
        self._troubles += sum(int(held.lease.arrays["troubles"].sum()) for held in sampled.unrolls)
        try:
            refuse_nonfinite(parts, sampled.owners, number)
        except Detected as detected:
            raise Detected(str(detected), self._evidence(parts)) from None
        steps = sum(int(part["valid"].sum()) for part in parts)
        context = UpdateContext(
            generator(self._root_seed, "minibatch", self._version), min(self._env_steps / self._target_steps, 1.0)
        )
        self.is_torn = True  # until the update is whole; whatever is raised meanwhile leaves half of one
        with lent_generator(integer_seed(self._root_seed, "update", self._version)):
            report = self._update_rule(sampled.batch, context)
        self._refuse_nonfinite_update(report, parts)
        self.is_torn = False
        for held in sampled.unrolls:
            self._journal.advance(held.ticket.actor, held.lease.arrays)
        self._env_steps += steps
        self._version = number
        ended = self._scores.add(parts)
        progress = self.progress()
        self._let_go(sampled, progress)
        self.flight.updated(number, report.metrics, weights_of(self.network))
        flow = self._flow_metrics(sampled)  # before the next tickets, which the lag has a say in
        self._publish()
        times = self._stopwatch.updated(steps)
        if ended.returns:
            self.events.append(EpisodesEnded(progress, *ended))
        self.events.append(Updated(progress, number, {**report.metrics, **times, **flow}))

    def _note_lost_episodes(self, sampled: Sampled) -> None:
        """An actor that was set up anew may have had to give up running episodes: a choice that nothing else tells."""
        borders: dict[int, Array] = {}
        for (actor, sequence, _), lease in sampled.unrolls:
            begins, after = lease.arrays["reset"], int(lease.arrays["length"])
            expected = borders.get(actor, self._journal.begins(actor))
            if expected is not None and (rows := np.flatnonzero(begins[0] & ~expected)).size:
                self.flight.note("lost", self._version, actor=actor, sequence=sequence, rows=rows.tolist())
            borders[actor] = begins[after]

    def _let_go(self, sampled: Sampled, progress: Progress) -> None:
        """The unrolls are consumed: their slots go back to the actors, or first to whoever taps them."""
        self.store.consume(sampled)
        for held in sampled.unrolls:
            release = partial(self._unrolls.release, held.lease)
            if self.tap is None or not self.tap.offer(
                Trajectory(*held.ticket, self._version, held.lease.arrays, release), progress
            ):
                release()
        self.ledger.consumed([held.ticket for held in sampled.unrolls])

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
                f"update {self._version + 1}: {name} is {value}{when}; "
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

    def _flow_metrics(self, sampled: Sampled) -> dict[str, float]:
        """How old the unrolls were, and how the learner's links fared since the last update."""
        lags = [self._version - 1 - held.ticket.version for held in sampled.unrolls]
        mean = sum(lags) / len(lags)
        ledger = self.ledger
        in_flight = 0
        if isinstance(ledger, FlightLedger):
            in_flight = ledger.in_flight + len(lags)
            if ledger.controller.measured(mean):
                self.flight.note("limit", self._version, in_flight=ledger.controller.allowed)
        taken, given = self._unrolls.counters.drain(), [port.counters.drain() for port in self.ticket_ports]
        return {
            "lag/min": float(min(lags)),
            "lag/mean": mean,
            "lag/max": float(max(lags)),
            "port/in_flight": float(in_flight),
            "port/unrolls_depth": float(taken.depth_peak),
            "port/unrolls_waits": float(taken.waited),
            "port/tickets_refused": float(sum(counters.refused for counters in given)),
            "port/drops": float(sum(counters.dropped for counters in (taken, *given))),
        }

    def _publish(self) -> None:
        """Publish the weights, then the tickets that name them: whoever holds a ticket finds its version."""
        self._weights.write(self._version, weights_of(self.network))
        if not self.done:
            self.ledger.give(self._version)


def _number(port: str) -> tuple[str, int]:
    """Sorts `tickets.10` behind `tickets.9`."""
    name, _, number = port.partition(".")
    return name, int(number or 0)
