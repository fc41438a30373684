"""Proximal policy optimisation (Schulman et al. 2017), feed-forward and recurrent; A2C is a configuration of it.

With the ratio r = pi(a|s) / pi_old(a|s), advantages A (GAE) and returns G = A + V_old it minimises

    L = - E[ min(r A, clip(r, 1 - c, 1 + c) A) ]  +  c_v 1/2 E[ (V - G)^2 ]  -  c_e E[ H(pi) ]

Shapes: T time, B environments, N = T × B samples of one update.
A2C: one epoch, one minibatch, `clip: null`, so that r = 1 and the gradient is that of log pi times A.

Deviations from the paper: advantages are normalised per minibatch; the gradient's norm is clipped; an update stops
after the epoch in which the KL divergence exceeds `target_kl`; time limits bootstrap from the true successor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from rollmill import nested
from rollmill.algorithms.minibatches import Minibatch, Samples, joined, minibatches
from rollmill.algorithms.policy import StochasticPolicy
from rollmill.algorithms.recipe import (
    AlgorithmConfig,
    Optimizer,
    OptimizerSettings,
    Recipe,
    Update,
    UpdateContext,
)
from rollmill.algorithms.returns import explained_variance, gae, successor_values
from rollmill.algorithms.scaling import RewardScaling, in_units_of_rewards, in_units_of_values
from rollmill.errors import Refused
from rollmill.models.network import Network, build_network
from rollmill.stores.rollout import RolloutStore
from rollmill.types import Array, AssemblerSpec, TopologySpec

MAY_BE_NAN = frozenset({"explained_variance"})  # undefined for returns without variance


class PPOConfig(AlgorithmConfig):
    """Settings of PPO; the defaults are those of most published runs."""

    name: Literal["ppo"] = "ppo"
    unroll: int = Field(default=128, ge=1, description="T: agent decisions per environment and update")
    epochs: int = Field(default=4, ge=1, description="passes over each batch")
    minibatch: int = Field(default=256, ge=1, description="samples per gradient step; divides the batch")
    learning_rate: float = Field(default=2.5e-4, gt=0, description="of the optimiser")
    optimizer: Literal["adam", "rmsprop"] = Field(default="adam", description="A2C's paper used rmsprop")
    optimizer_epsilon: float = Field(default=1e-5, gt=0, description="added to the optimiser's denominator")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per agent decision")
    gae_lambda: float = Field(default=0.95, ge=0, le=1, description="weight of longer returns in GAE")
    clip: float | None = Field(default=0.2, gt=0, description="bound on |ratio - 1|; null: none")
    value_clip: float | None = Field(
        default=None, gt=0, description="bound on the change of a value per update; null: none"
    )
    entropy_coefficient: float = Field(default=0.01, ge=0, description="weight of the entropy bonus")
    value_coefficient: float = Field(default=0.5, ge=0, description="weight of the value loss")
    max_grad_norm: float | None = Field(
        default=0.5, gt=0, description="gradient norm is clipped to this; null: no clipping"
    )
    normalise_advantage: bool = Field(
        default=True, description="zero mean and unit standard deviation within a minibatch"
    )
    normalise_rewards: bool = Field(
        default=False, description="divide rewards by the running standard deviation of discounted returns, clip to ±10"
    )
    normalise_returns: bool = Field(
        default=False, description="learn values in units of the returns' standard deviation"
    )
    shards: int = Field(
        default=1, ge=1, description="parts of a minibatch whose gradients are computed one by one and then summed"
    )
    target_kl: float | None = Field(
        default=None, gt=0, description="stop the update after an epoch beyond this; null: never"
    )
    anneal_learning_rate: bool = Field(default=False, description="linearly to zero over training")
    anneal_clip: bool = Field(default=False, description="linearly to zero over training")

    def check_batch(self, columns: int, is_recurrent: bool) -> None:
        """Minibatches must divide the batch; with memory they must consist of whole sequences."""
        batch = columns * self.unroll
        remedy = f"choose a divisor of {batch} = {columns} environments × {self.unroll} steps"
        if batch % self.minibatch:
            raise Refused(f"algorithm.minibatch={self.minibatch} doesn't divide the batch of {batch}; {remedy}")
        self._check_shards(self.minibatch // self.unroll if is_recurrent else self.minibatch)
        if self.minibatch == 1 and self.normalise_advantage:
            raise Refused(
                "algorithm.minibatch=1 has no standard deviation to normalise advantages with;  "
                "raise it, or set algorithm.normalise_advantage=false"
            )
        if is_recurrent and (self.minibatch % self.unroll or columns % (self.minibatch // self.unroll)):
            raise Refused(
                f"algorithm.minibatch={self.minibatch} cuts through sequences of {self.unroll} steps, but the model "
                f"has memory; choose {self.unroll} times a divisor of {columns}"
            )

    def _check_shards(self, parts: int) -> None:
        if parts % self.shards:
            raise Refused(
                f"algorithm.shards={self.shards} doesn't divide the {parts} sequences or steps of a minibatch; "
                f"choose a divisor of {parts}"
            )

    def tiny(self, columns: int) -> tuple[Self, int]:
        """Short unrolls, one epoch, one minibatch, one shard."""
        unroll = min(self.unroll, 16)
        changes = {"unroll": unroll, "epochs": 1, "minibatch": columns * unroll, "shards": 1}
        return self.model_copy(update=changes), 2 * columns * unroll

    @model_validator(mode="after")
    def _refuse_unread_keys(self) -> Self:
        if self.anneal_clip and self.clip is None:
            raise ValueError("algorithm.anneal_clip=true is not read while algorithm.clip=null; remove one of them")
        return self

    @model_validator(mode="after")
    def _refuse_two_normalisations(self) -> Self:
        if self.normalise_rewards and self.normalise_returns:
            raise ValueError(
                "algorithm.normalise_rewards=true and algorithm.normalise_returns=true both set the units of values; "
                "remove one of them"
            )
        return self

    @property
    def network_options(self) -> dict[str, bool]:
        """Which running statistics the network keeps."""
        return {
            "with_reward_statistics": self.normalise_rewards,
            "with_return_statistics": self.normalise_returns,
        }

    def optimizer_of(self, group: str) -> OptimizerSettings:
        """How to build the optimiser; there is only one parameter group."""
        return OptimizerSettings(self.optimizer, self.learning_rate, self.optimizer_epsilon, self.max_grad_norm)


class Evaluated(NamedTuple):
    """The network's outputs for some steps, and what the loss compares them with."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor
    old: Samples


class Terms(NamedTuple):
    """The parts of the loss of each sample, without gradient; their means are logged."""

    surrogate: torch.Tensor
    value_error: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor


def ppo_loss(now: Evaluated, config: PPOConfig, clip: float | None, samples: int) -> tuple[torch.Tensor, Terms]:
    """A shard's part of the objective over a minibatch of `samples`; advantages are normalised already."""
    log_prob, entropy, value, old = now
    log_ratio = log_prob - old.log_prob
    ratio = log_ratio.exp()

    surrogate = ratio * old.advantage
    if clip is not None:
        surrogate = torch.min(surrogate, ratio.clamp(1 - clip, 1 + clip) * old.advantage)

    error = (value - old.returns).square()
    if config.value_clip is not None:
        bounded = old.value + (value - old.value).clamp(-config.value_clip, config.value_clip)
        error = torch.max(error, (bounded - old.returns).square())

    each = (0.5 * config.value_coefficient) * error - surrogate - config.entropy_coefficient * entropy
    return each.sum() / samples, Terms(surrogate.detach(), error.detach(), entropy.detach(), log_ratio.detach())


class PPOUpdate:
    """Epochs of minibatch steps on one batch of fresh unrolls."""

    def __init__(self, network: Network, optimizers: Mapping[str, Optimizer], config: PPOConfig) -> None:
        self._network, self._config = network, config
        (self._optimizer,) = optimizers.values()
        self._rewards = RewardScaling(network.reward_statistics, config.gamma)

    def __call__(self, batch: dict[str, Any], context: UpdateContext) -> Update:
        """Estimate returns, then take epochs × minibatches steps; the batch is [T, B, …]."""
        config, network = self._config, self._network
        rate, clip = annealed(config, config.learning_rate, context.progress)
        self._optimizer.set_rate(rate)

        batch, scale = self._rewards(batch)
        samples, quality = self.prepare(batch)
        whole = self.whole(batch, samples)

        network.train()
        taken = Steps([], [])
        for _ in range(config.epochs):
            ppo_epoch(whole, network, self._optimizer, config, clip, context.rng, taken)
            if taken.is_too_far(config):
                break
        # Statistics move only now: the ratio compares two policies that saw equally normalised observations.
        network.observe(nested.index(batch["obs"], slice(0, -1)))
        if config.normalise_returns:
            network.observe_returns(samples.returns.flatten())

        metrics = {**summarise(taken, clip), "explained_variance": quality, "learning_rate": rate, **scale}
        return Update(metrics, torch.stack(taken.norms), MAY_BE_NAN)

    def prepare(self, batch: dict[str, Any]) -> tuple[Samples, float]:
        """Advantages and returns from behaviour values, bootstrapped at the true successors."""
        config = self._config
        values = [batch["value"], *self._bootstrap_values(batch)]
        if config.normalise_returns:
            values = [in_units_of_rewards(self._network, value) for value in values]
        value, last_value, final_value = (field.cpu().numpy() for field in values)
        reward, terminated, truncated = (batch[field].cpu().numpy() for field in ("reward", "terminated", "truncated"))
        following = successor_values(value, last_value, truncated, final_value)
        advantage = gae(reward, value, following, terminated, truncated, config.gamma, config.gae_lambda)
        returns = advantage + value
        device = batch["log_prob"].device
        targets = (torch.from_numpy(array).to(device) for array in (advantage, returns))
        return Samples(batch["log_prob"], batch["value"], *targets), explained_variance(value, returns)

    @torch.no_grad()
    def _bootstrap_values(self, batch: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
        """V of what follows the last row, [B], and V of the true successor at every truncation, in row-major order."""
        network, truncated = self._network.eval(), batch["truncated"]
        following = nested.index(batch["obs"], slice(-1, None))
        last = network(following, batch["last_state"], batch["reset"][-1:]).value[0]
        final = last[:0]
        # `final_obs` holds a row for every ended episode; those of terminated episodes need no value.
        cut = truncated[truncated | batch["terminated"]]
        if cut.any():
            obs = nested.map_leaves(lambda leaf: leaf[cut].unsqueeze(0), batch["final_obs"])
            state = nested.index(batch["final_state"], cut)
            final = network(obs, state, torch.zeros_like(cut[cut]).unsqueeze(0)).value[0]
        return last, final

    def whole(self, batch: dict[str, Any], samples: Samples) -> Minibatch:
        """The training data of all epochs: with memory sequences [T, B], else single steps [N]."""
        if self._config.normalise_returns:
            samples = samples._replace(returns=in_units_of_values(self._network, samples.returns))
        obs, reset = nested.index(batch["obs"], slice(0, -1)), batch["reset"][:-1]
        if self._network.is_recurrent:
            return Minibatch(obs, batch["state"], reset, batch["action"], samples)
        obs = self._network.arrange(nested.map_leaves(joined, obs))
        return Minibatch(obs, {}, joined(reset), joined(batch["action"]), Samples(*map(joined, samples)))

    def capture(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """The running returns."""
        return {}, self._rewards.state()

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Restore what `capture` returned."""
        self._rewards.restore(state)


class Steps(NamedTuple):
    """The gradient steps of an update so far."""

    terms: list[Terms]  # of every shard of every step
    norms: list[torch.Tensor]  # of the gradient of every step, before clipping

    def is_too_far(self, config: PPOConfig) -> bool:
        """Whether the KL divergence of the last step exceeds the target."""
        if config.target_kl is None:
            return False
        last = self.terms[-config.shards :]
        return divergence(torch.cat([shard.log_ratio.flatten() for shard in last])) > config.target_kl


def ppo_epoch(
    whole: Minibatch,
    network: Network,
    optimizer: Optimizer,
    config: PPOConfig,
    clip: float | None,
    rng: np.random.Generator,
    taken: Steps,
) -> None:
    """One pass over all samples in shuffled order: a gradient step per minibatch, summed over its shards."""
    for minibatch in minibatches(whole, config.minibatch, rng):
        if config.normalise_advantage:
            advantage = normalised(minibatch.old.advantage)
            minibatch = minibatch._replace(old=minibatch.old._replace(advantage=advantage))
        for number, shard in enumerate(minibatch.shards(config.shards)):
            loss, terms = ppo_loss(evaluate(network, shard), config, clip, minibatch.reset.numel())
            optimizer.accumulate(loss, number)
            taken.terms.append(terms)
        taken.norms.append(optimizer.apply())


def evaluate(network: Network, shard: Minibatch) -> Evaluated:
    """The network's outputs for the steps of a shard."""
    output = network(shard.obs, shard.state, shard.reset)
    log_prob, entropy = network.distribution.log_prob_and_entropy(output.params, shard.action)
    return Evaluated(log_prob, entropy, output.value, shard.old)


def annealed(config: PPOConfig, rate: float, progress: float) -> tuple[float, float | None]:
    """Learning rate and clip range at this part of training."""
    remaining = 1.0 - progress
    clip = config.clip * remaining if config.clip is not None and config.anneal_clip else config.clip
    return rate * (remaining if config.anneal_learning_rate else 1.0), clip


def summarise(taken: Steps, clip: float | None) -> dict[str, float]:
    """Means over all samples of the update, at once: a call per minibatch would cost as much as the loss itself."""
    surrogate, error, entropy, log_ratio = (
        torch.cat([t.flatten() for t in column]) for column in zip(*taken.terms, strict=True)
    )
    ratio = log_ratio.exp()
    return {
        "loss/policy": -float(surrogate.mean()),
        "loss/value": 0.5 * float(error.mean()),
        "entropy": float(entropy.mean()),
        "kl": divergence(log_ratio),
        "clip_fraction": 0.0 if clip is None else float(((ratio - 1).abs() > clip).float().mean()),
        "grad_norm": float(torch.stack(taken.norms).mean()),
        "gradient_steps": float(len(taken.norms)),
    }


def divergence(log_ratio: torch.Tensor) -> float:
    """Schulman's k3 estimate of KL(old, new): unbiased and never negative."""
    return float((log_ratio.expm1() - log_ratio).mean())


def normalised(advantage: torch.Tensor) -> torch.Tensor:
    """Mean 0 and standard deviation 1; a single sample, left where other environments failed, becomes 0."""
    if advantage.numel() < 2:
        return torch.zeros_like(advantage)
    deviation, mean = torch.std_mean(advantage)
    return (advantage - mean) / (deviation + 1e-8)


def fixed_unrolls(config: PPOConfig) -> AssemblerSpec:
    """Unrolls of `unroll` steps, across episode borders."""
    return AssemblerSpec("unroll", config.unroll)


RECIPE = Recipe(
    name="ppo",
    summary="proximal policy optimisation, feed-forward and recurrent; A2C by configuration",
    config=PPOConfig,
    network=build_network,
    policy=StochasticPolicy,
    assembler=fixed_unrolls,
    store=RolloutStore,
    update=PPOUpdate,
    topology=TopologySpec("sync"),
)
