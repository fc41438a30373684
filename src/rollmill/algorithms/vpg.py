"""Vanilla policy gradient (Williams 1992; Sutton et al. 2000) over whole episodes.

With the reward to go R of each step, and b the mean of all R of the update, it minimises

    L = - 1/N sum over episodes, steps of  log pi(a|s) (R - b)  -  c_e E[ H(pi) ]

Gradients are accumulated episode by episode and no step is taken until the last one: the policy that made the
episodes stays the policy that is differentiated. The last layer starts at zero, so that entropy starts at its maximum.

Shapes: T steps of one episode; an update sees groups × group_size episodes.
There is no value function, so an episode that was cut (time limit or `episode_steps`) has nothing to bootstrap from:
its rewards to go stop at the cut. The share of such episodes is reported as `cut_fraction`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field

from rollmill import nested
from rollmill.algorithms.policy import StochasticPolicy
from rollmill.algorithms.recipe import (
    AlgorithmConfig,
    Optimizer,
    OptimizerSettings,
    Recipe,
    Update,
    UpdateContext,
)
from rollmill.algorithms.returns import reward_to_go
from rollmill.models.network import Network, build_network
from rollmill.stores.rollout import EpisodeStore
from rollmill.types import Array, AssemblerSpec, TopologySpec


class VPGConfig(AlgorithmConfig):
    """Settings of VPG; an update uses one episode of every environment."""

    name: Literal["vpg"] = "vpg"
    episode_steps: int = Field(
        default=1000, ge=1, description="longest episode, in agent decisions; longer ones are cut"
    )
    learning_rate: float = Field(default=1e-2, gt=0, description="of the optimiser")
    optimizer: Literal["adam", "rmsprop"] = Field(default="adam", description="kind of optimiser")
    optimizer_epsilon: float = Field(default=1e-8, gt=0, description="added to the optimiser's denominator")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per agent decision")
    reset_on_reward: bool = Field(
        default=False, description="restart the running return at each reward (a point of Pong)"
    )
    normalise: bool = Field(default=True, description="divide R - b by its standard deviation over the update")
    entropy_coefficient: float = Field(default=0.0, ge=0, description="weight of the entropy bonus")
    max_grad_norm: float | None = Field(
        default=None, gt=0, description="gradient norm is clipped to this; null: no clipping"
    )

    def tiny(self, columns: int) -> tuple[Self, int]:
        """Episodes that are cut early; the steps of one update at least, because the length of episodes is unknown."""
        steps = min(self.episode_steps, 50)
        return self.model_copy(update={"episode_steps": steps}), columns

    def optimizer_of(self, group: str) -> OptimizerSettings:
        """How to build the optimiser; there is only one parameter group."""
        return OptimizerSettings(self.optimizer, self.learning_rate, self.optimizer_epsilon, self.max_grad_norm)


def vpg_loss(
    log_prob: torch.Tensor, entropy: torch.Tensor, advantage: torch.Tensor, steps: int, config: VPGConfig
) -> tuple[torch.Tensor, torch.Tensor]:
    """One episode's share of the objective over `steps` steps in all, and (policy loss, entropy) without gradient."""
    policy_loss = -(log_prob * advantage).sum() / steps
    mean_entropy = entropy.sum() / steps
    loss = policy_loss - config.entropy_coefficient * mean_entropy
    return loss, torch.stack((policy_loss.detach(), mean_entropy.detach()))


class VPGUpdate:
    """One optimiser step from the gradients of all episodes."""

    def __init__(self, network: Network, optimizers: Mapping[str, Optimizer], config: VPGConfig) -> None:
        self._network = network
        (self._optimizer,) = optimizers.values()
        self._config = config

    def __call__(self, batch: list[dict[str, Any]], context: UpdateContext) -> Update:
        """Accumulate over episodes, then step; the batch is a list of unrolls [T, K, …] of whole episodes."""
        config, network = self._config, self._network
        self._optimizer.set_rate(config.learning_rate)
        episodes = [(unroll, k, int(unroll["valid"][:, k].sum())) for unroll in batch for k in range(_columns(unroll))]
        advantages = self.prepare(episodes)
        steps = sum(length for _, _, length in episodes)

        network.train()
        totals = torch.zeros(2)
        for (unroll, k, length), advantage in zip(episodes, advantages, strict=True):
            obs = nested.map_leaves(lambda leaf, k=k, n=length: leaf[:n, k : k + 1], unroll["obs"])
            state = nested.map_leaves(lambda leaf, k=k: leaf[k : k + 1], unroll["state"])
            output = network(obs, state, unroll["reset"][:length, k : k + 1])
            action = unroll["action"][:length, k : k + 1]
            log_prob, entropy = network.distribution.log_prob_and_entropy(output.params, action)
            weight = torch.from_numpy(advantage).to(log_prob.device)
            loss, diagnostics = vpg_loss(log_prob[:, 0], entropy[:, 0], weight, steps, config)
            self._optimizer.accumulate(loss)
            totals += diagnostics.cpu()
        norm = self._optimizer.apply()
        for unroll, k, length in episodes:
            network.observe(nested.map_leaves(lambda leaf, k=k, n=length: leaf[:n, k : k + 1], unroll["obs"]))

        policy_loss, entropy_mean = totals.tolist()
        cut = np.mean([bool(unroll["truncated"][length - 1, k]) for unroll, k, length in episodes])
        return Update(
            {
                "loss/policy": policy_loss,
                "entropy": entropy_mean,
                "grad_norm": float(norm),
                "learning_rate": config.learning_rate,
                "cut_fraction": float(cut),
                "gradient_steps": 1.0,
            }
        )

    def capture(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """Nothing: all that VPG knows is in the weights and the optimiser."""
        return {}, {}

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Nothing, likewise."""

    def prepare(self, episodes: list[tuple[dict[str, Any], int, int]]) -> list[Array]:
        """Reward to go minus the mean over the update, per episode; optionally in units of its standard deviation."""
        config = self._config
        returns = [
            reward_to_go(unroll["reward"][:length, k].cpu().numpy(), config.gamma, config.reset_on_reward)
            for unroll, k, length in episodes
        ]
        every = np.concatenate(returns)
        scale = every.std() + 1e-8 if config.normalise else 1.0
        return [((r - every.mean()) / scale).astype(np.float32) for r in returns]


def _columns(unroll: dict[str, Any]) -> int:
    return int(unroll["valid"].shape[1])


def whole_episodes(config: VPGConfig) -> AssemblerSpec:
    """One whole episode of every environment."""
    return AssemblerSpec("episodes", config.episode_steps)


RECIPE = Recipe(
    name="vpg",
    summary="vanilla policy gradient over whole episodes, mean baseline, accumulated gradients",
    config=VPGConfig,
    network=partial(build_network, with_value=False, zero_last_layer=True),
    policy=StochasticPolicy,
    assembler=whole_episodes,
    store=EpisodeStore,
    update=VPGUpdate,
    topology=TopologySpec("sync"),
)
