"""The trainer turns samples into new weights: network, optimiser and update rule. It doesn't know the actors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.algorithms.recipe import Update, UpdateContext, UpdateRule
from rollmill.errors import Detected
from rollmill.learners.finite import refuse_nonfinite
from rollmill.learners.optimizer import FlatOptimizer, optimizer_arrays, restore_optimizers
from rollmill.models.initialise import lent_generator
from rollmill.models.network import Model
from rollmill.models.weights import WeightsLoader, arrays_of, load_weights, weights_of
from rollmill.seeding import generator, integer_seed
from rollmill.stores.store import Sample
from rollmill.transport.ports import Cell
from rollmill.types import Array


class Trainer:
    """Makes updates and publishes weights; number of updates and version of the weights are two numbers."""

    def __init__(
        self,
        network: Model,
        optimizers: Mapping[str, FlatOptimizer],
        rule: UpdateRule,
        weights: Cell,
        root_seed: int,
    ) -> None:
        self.network = network
        self.updates = 0
        self.version = 0  # of the weights that are published
        self.mid_update = False  # an update is unfinished: weights and optimiser state are inconsistent
        self._optimizers, self._rule, self._weights, self._root_seed = optimizers, rule, weights, root_seed
        self._published: dict[str, Array] | None = None  # restored: the weights of `version`, where they are older
        self._is_ahead = False  # the network has changed since it was published

    def sample_rng(self) -> np.random.Generator:
        """A generator for the next update's sample."""
        return generator(self._root_seed, "sample", self.updates)

    def update(self, sample: Sample, progress: float) -> Update:
        """One update of the network; `progress` is the part of training that is over."""
        number = self.updates + 1
        try:
            refuse_nonfinite(sample.parts, sample.owners, number)
        except Detected as detected:
            raise Detected(str(detected), self._evidence(sample)) from None
        context = UpdateContext(generator(self._root_seed, "minibatch", self.updates), progress)
        self.mid_update = True  # until the update is whole
        with lent_generator(integer_seed(self._root_seed, "update", self.updates)):
            report = self._rule(sample.batch, context)
        self._refuse_nonfinite(report, sample)
        self.mid_update = False
        self.updates, self._is_ahead = number, True
        return report

    def publish(self) -> None:
        """Publish the weights as the next version."""
        self.version += 1
        self._weights.write(self.version, arrays_of(self.network.published()))
        self._is_ahead = False

    def publish_again(self) -> None:
        """Publish the newest version, at the start of a process."""
        self._weights.write(self.version, self._published or arrays_of(self.network.published()))
        self._published = None

    def weights(self) -> dict[str, Array]:
        """All parameters and buffers by name; views where they are on the CPU."""
        return weights_of(self.network)

    def load(self, weights: Mapping[str, Array]) -> None:
        """Replace the weights."""
        load_weights(self.network, weights)

    def revert_weights(self) -> None:
        """After half an update: the newest published weights. What is not published stays as it is."""
        WeightsLoader(self.network.published()).load(self._weights, self.version)

    def capture(self) -> tuple[dict[str, Mapping[str, Array]], dict[str, Any]]:
        """Named arrays and plain values for a checkpoint."""
        arrays, state = self._rule.capture()
        parts: dict[str, Mapping[str, Array]] = {
            "weights": self.weights(),
            "optimizer": optimizer_arrays(self._optimizers),
        }
        if arrays:
            parts["update_rule"] = arrays
        if self._is_ahead:
            published = {name: np.empty_like(array) for name, array in arrays_of(self.network.published()).items()}
            self._weights.read_into(self.version, published)
            parts["published"] = published
        return parts, {"version": self.version, "update_rule": state}

    def restore(self, arrays: Mapping[str, Mapping[str, Array]], state: Mapping[str, Any], updates: int) -> None:
        """Restore what `capture` returned."""
        self.load(arrays["weights"])
        restore_optimizers(self._optimizers, arrays["optimizer"])
        self._rule.restore(arrays.get("update_rule", {}), state.get("update_rule", {}))
        self.updates = updates
        self._published, self._is_ahead = dict(arrays.get("published", {})) or None, "published" in arrays
        self.version = state.get("version", updates)  # older checkpoints store only one of the two

    def _refuse_nonfinite(self, report: Update, sample: Sample) -> None:
        """Stop at a metric that is NaN or infinite, with the newest published weights."""
        for name, value in report.metrics.items():
            if np.isfinite(value) or name in report.may_be_nan:
                continue
            when, norms = "", report.gradient_norms
            if norms is not None and not norms.isfinite().all():
                when = f" (from gradient step {int(norms.isfinite().logical_not().nonzero()[0])} of {len(norms)} on)"
            evidence = {"weights_after": {key: array.copy() for key, array in self.weights().items()}}
            self.revert_weights()
            raise Detected(
                f"update {self.updates + 1}: {name} is {value}{when}; "
                "lower algorithm.learning_rate or look at the rewards",
                {**self._evidence(sample), **evidence},
            )

    def _evidence(self, sample: Sample) -> dict[str, dict[str, Array]]:
        """The batch and the weights before the update, to be examined afterwards."""
        batch = {
            f"{number}.{field}{f'.{path}' if path else ''}": leaf.cpu().numpy()
            for number, part in enumerate(sample.parts)
            for field, tree in part.items()
            for path, leaf in nested.leaves(tree)
        }
        return {"batch": batch, "weights": self.weights()}
