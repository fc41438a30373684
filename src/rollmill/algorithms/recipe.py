"""What an algorithm is made of. An algorithm is a record of parts, not a subclass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, Self

import gymnasium as gym
import numpy as np
import torch

from rollmill.algorithms.policy import Policy, PolicyContext
from rollmill.config.base import Config
from rollmill.fields import Fields
from rollmill.models.config import ModelConfig
from rollmill.models.network import Model
from rollmill.stores.store import Store
from rollmill.types import Array, ArraySpec, AssemblerSpec, Flow, Metrics, TopologySpec


class Optimizer(Protocol):
    """What an update needs of the optimiser; reducing over ranks, clipping and devices are hidden in it."""

    def set_rate(self, rate: float) -> None:
        """The learning rate of the following steps."""

    def accumulate(self, loss: torch.Tensor, shard: int = 0) -> None:
        """Back-propagate; the gradients of one shard add up in order, shards are summed in a fixed tree."""

    def apply(self) -> torch.Tensor:
        """Sum the shards, clip and step; the gradient's norm before clipping."""


class UpdateContext(NamedTuple):
    """What an update may depend on besides its batch."""

    rng: np.random.Generator  # from (root seed, update), for the order of minibatches; torch is seeded likewise
    progress: float  # part of training that is over, 0 to 1


class Update(NamedTuple):
    """What an update reports."""

    metrics: Metrics
    gradient_norms: torch.Tensor | None = None  # of every gradient step, to find the first that is not finite
    may_be_nan: frozenset[str] = frozenset()  # metrics that are not defined for every batch
    priorities: Array | None = None  # of the items of the sample, for the store
    is_published: bool = True  # whether actors get the weights


class UpdateRule(Protocol):
    """One learning step: from what a store sampled to changed weights."""

    def __call__(self, batch: Any, context: UpdateContext) -> Update:
        """Change the network and report on it."""

    def capture(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """What it carries from one update to the next, for a checkpoint: named arrays and plain values."""

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Restore what `capture` returned."""


class AlgorithmConfig(Config):
    """The settings that every algorithm has, whatever it does."""

    name: str

    def check_batch(self, columns: int, is_recurrent: bool) -> None:
        """Refuse a batch of `columns` environments that the update can't cut into minibatches."""

    def flow(self, groups: int) -> Flow:
        """How unrolls flow from `groups` actors to the learner: one of each per update, unless said otherwise."""
        return Flow(unrolls=max(groups, 1), in_flight=1)

    def tiny(self, columns: int) -> tuple[Self, int]:
        """The same algorithm with so little work that an update takes a moment, and the steps of two updates."""
        raise TypeError(f"{type(self).__name__} has no tiny form")

    @property
    def network_options(self) -> dict[str, Any]:
        """Further arguments of the recipe's network builder."""
        return {}

    def optimizer_of(self, group: str) -> OptimizerSettings:
        """How to build the optimiser of a parameter group (`Model.parameter_groups`)."""
        raise TypeError(f"{type(self).__name__} has no optimiser")


class OptimizerSettings(NamedTuple):
    """The optimiser as the algorithm wants it."""

    kind: str  # "adam" | "rmsprop"
    learning_rate: float
    epsilon: float
    max_grad_norm: float | None


class NetworkBuilder(Protocol):
    """Makes the network of an algorithm from the spaces and the model section."""

    def __call__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        config: ModelConfig,
        *,
        seed: int,
        with_return_statistics: bool = False,
        with_reward_statistics: bool = False,
    ) -> Any:
        """The freshly initialised network; all its randomness comes from `seed`."""


class PolicyMaker(Protocol):
    """Makes the policy of an algorithm for one group, e.g. a policy class."""

    @property
    def records(self) -> Mapping[str, ArraySpec]:
        """See `Policy`."""

    @property
    def last_records(self) -> Mapping[str, ArraySpec]:
        """See `Policy`."""

    def __call__(self, network: Any, context: PolicyContext, /) -> Policy:
        """The policy of one group."""


@dataclass(frozen=True)
class Recipe:
    """The parts of an algorithm, in the order in which data meets them."""

    name: str
    summary: str
    config: type[AlgorithmConfig]
    network: NetworkBuilder
    policy: PolicyMaker
    assembler: Callable[[Any], AssemblerSpec]  # from the algorithm's config
    store: Callable[[Fields, Flow, Any, str], Store]  # from fields, flow, the algorithm's config and device
    update: Callable[[Any, Mapping[str, Optimizer], Any], UpdateRule]  # from model, optimisers by group, config
    topology: TopologySpec

    def policy_outside_training(self, network: Model, config: AlgorithmConfig, size: int) -> Policy:
        """A policy for evaluation and for users, for `size` environments."""
        return self.policy(network, PolicyContext(config, size))
