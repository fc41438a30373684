"""Proximal policy optimisation (Schulman et al. 2017), feed-forward and recurrent; A2C is a configuration of it.

With the ratio r = pi(a|s) / pi_old(a|s), advantages A (GAE) and returns G = A + V_old it minimises

    L = - E[ min(r A, clip(r, 1 - c, 1 + c) A) ]  +  c_v 1/2 E[ (V - G)^2 ]  -  c_e E[ H(pi) ]

Shapes: T time, B environments, N = T × B samples of one update.
A2C: one epoch, one minibatch, `clip: null`, so that r = 1 and the gradient is that of log pi times A.

Deviations from the paper: advantages are normalised per minibatch; the gradient's norm is clipped; an update stops
after the epoch in which the KL divergence exceeds `target_kl`; time limits bootstrap from the true successor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator

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
from rollmill.algorithms.returns import explained_variance, gae, running_returns, successor_values
from rollmill.errors import Refused
from rollmill.models.network import Network, build_network
from rollmill.nested import Nested
from rollmill.types import Array, AssemblerSpec, StoreSpec, TopologySpec

REWARD_BOUND = 10.0  # to which normalised rewards are clipped


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
    max_grad_norm: float | None = Field(default=0.5, gt=0, description="gradient norm is clipped to this; null: not")
    normalise_advantage: bool = Field(default=True, description="zero mean, unit deviation within a minibatch")
    normalise_rewards: bool = Field(
        default=False, description="divide rewards by the running deviation of discounted returns, clip to ±10"
    )
    target_kl: float | None = Field(
        default=None, gt=0, description="stop the update after an epoch beyond this; null: never"
    )
    anneal_learning_rate: bool = Field(default=False, description="linearly to zero over training")
    anneal_clip: bool = Field(default=False, description="linearly to zero over training")

    def check_batch(self, columns: int, is_recurrent: bool) -> None:
        """Minibatches must cut the batch without rest; recurrent ones along whole sequences."""
        batch = columns * self.unroll
        remedy = f"choose a divisor of {batch} = {columns} environments × {self.unroll} steps"
        if batch % self.minibatch:
            raise Refused(f"algorithm.minibatch={self.minibatch} doesn't divide the batch of {batch}; {remedy}")
        if self.minibatch == 1 and self.normalise_advantage:
            raise Refused(
                "algorithm.minibatch=1 has no deviation to normalise advantages with; "
                "raise it, or set algorithm.normalise_advantage=false"
            )
        if is_recurrent and (self.minibatch % self.unroll or columns % (self.minibatch // self.unroll)):
            raise Refused(
                f"algorithm.minibatch={self.minibatch} cuts through sequences of {self.unroll} steps, but the model "
                f"has memory; choose {self.unroll} times a divisor of {columns}"
            )

    def tiny(self, columns: int) -> tuple[Self, int]:
        """Short unrolls, one epoch, one minibatch."""
        unroll = min(self.unroll, 16)
        changes = {"unroll": unroll, "epochs": 1, "minibatch": columns * unroll}
        return self.model_copy(update=changes), 2 * columns * unroll

    @model_validator(mode="after")
    def _refuse_unread_keys(self) -> Self:
        if self.anneal_clip and self.clip is None:
            raise ValueError("algorithm.anneal_clip=true is not read while algorithm.clip=null; remove one of them")
        return self

    @property
    def with_reward_statistics(self) -> bool:
        """Whether the network keeps the statistics that rewards are normalised with."""
        return self.normalise_rewards

    @property
    def optimizer_settings(self) -> OptimizerSettings:
        """How to build the optimiser."""
        return OptimizerSettings(self.optimizer, self.learning_rate, self.optimizer_epsilon, self.max_grad_norm)


class Samples(NamedTuple):
    """What the loss compares the network's outputs with; any leading axes."""

    log_prob: torch.Tensor
    value: torch.Tensor
    advantage: torch.Tensor
    returns: torch.Tensor


class Minibatch(NamedTuple):
    """What one gradient step sees, time-major."""

    obs: Nested
    state: Nested
    reset: torch.Tensor
    action: torch.Tensor
    old: Samples


class Evaluated(NamedTuple):
    """What the network says now about some steps, and what the loss compares it with."""

    log_prob: torch.Tensor
    entropy: torch.Tensor
    value: torch.Tensor
    old: Samples


class Terms(NamedTuple):
    """The parts of the loss of each sample, without gradient; their means are what is logged."""

    surrogate: torch.Tensor
    value_error: torch.Tensor
    entropy: torch.Tensor
    log_ratio: torch.Tensor


def ppo_loss(now: Evaluated, config: PPOConfig, clip: float | None) -> tuple[torch.Tensor, Terms]:
    """The objective above, for advantages that are normalised already, and its terms."""
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
    return each.mean(), Terms(surrogate.detach(), error.detach(), entropy.detach(), log_ratio.detach())


def summarise(terms: list[Terms], clip: float | None) -> dict[str, float]:
    """Means over all samples of the update, in one go: a call per minibatch would cost as much as the loss itself."""
    surrogate, error, entropy, log_ratio = (
        torch.cat([t.flatten() for t in column]) for column in zip(*terms, strict=True)
    )
    ratio = log_ratio.exp()
    return {
        "loss/policy": -float(surrogate.mean()),
        "loss/value": 0.5 * float(error.mean()),
        "entropy": float(entropy.mean()),
        "kl": divergence(log_ratio),
        "clip_fraction": 0.0 if clip is None else float(((ratio - 1).abs() > clip).float().mean()),
    }


def divergence(log_ratio: torch.Tensor) -> float:
    """Schulman's k3 estimate of KL(old, new): unbiased and never negative."""
    return float((log_ratio.expm1() - log_ratio).mean())


def normalised(advantage: torch.Tensor) -> torch.Tensor:
    """Mean 0 and deviation 1; one alone, left over where other environments failed, is as good as the mean: 0."""
    if advantage.numel() < 2:
        return torch.zeros_like(advantage)
    deviation, mean = torch.std_mean(advantage)
    return (advantage - mean) / (deviation + 1e-8)


class PPOUpdate:
    """Epochs of minibatch steps on one batch of fresh unrolls."""

    def __init__(self, network: Network, optimizer: Optimizer, config: PPOConfig) -> None:
        self._network = network
        self._optimizer = optimizer
        self._config = config
        self._running = np.zeros(0)  # discounted return of each environment's running episode

    def state(self) -> dict[str, Any]:
        """What the updates so far have left, next to weights and optimiser."""
        return {"running_returns": self._running.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        self._running = np.array(state.get("running_returns", []), np.float64)

    def __call__(self, batch: dict[str, Any], context: UpdateContext) -> Update:
        """Estimate returns, then take epochs × minibatches steps; the batch is [T, B, …]."""
        config, network = self._config, self._network
        remaining = 1.0 - context.progress
        rate = config.learning_rate * (remaining if config.anneal_learning_rate else 1.0)
        clip = config.clip * remaining if config.clip is not None and config.anneal_clip else config.clip
        self._optimizer.set_rate(rate)

        batch, scale = self.with_scaled_rewards(batch)
        samples, quality = self.prepare(batch)
        whole = self._whole(batch, samples)
        network.train()
        passes = (map(self._evaluated, self._minibatches(whole, context.rng)) for _ in range(config.epochs))
        terms, norms = self._learn(passes, clip)
        # Statistics move only now: the ratio compares two policies that saw equally normalised observations.
        network.observe(nested.index(batch["obs"], slice(0, -1)))

        return Update(
            {
                **summarise(terms, clip),
                "grad_norm": float(norms.mean()),
                "explained_variance": quality,
                "learning_rate": rate,
                "gradient_steps": float(len(norms)),
                **scale,
            },
            norms,
        )

    def _learn(self, passes: Iterable[Iterable[Evaluated]], clip: float | None) -> tuple[list[Terms], torch.Tensor]:
        """A gradient step behind each minibatch that is evaluated, until the policy has moved too far in one pass.

        The terms of every step's loss, and the norms of the gradients.
        """
        terms: list[Terms] = []
        norms: list[torch.Tensor] = []
        for one_pass in passes:
            for now in one_pass:
                loss, parts = ppo_loss(now, self._config, clip)
                norms.append(self._optimizer.step(loss))
                terms.append(parts)
            if self._config.target_kl is not None and divergence(terms[-1].log_ratio) > self._config.target_kl:
                break
        return terms, torch.stack(norms)

    def _evaluated(self, part: Minibatch) -> Evaluated:
        output = self._network(part.obs, part.state, part.reset)
        log_prob, entropy = self._network.distribution.log_prob_and_entropy(output.params, part.action)
        return Evaluated(log_prob, entropy, output.value, part.old)

    def with_scaled_rewards(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
        """The batch with its rewards divided by the deviation of running returns, which learns from it first."""
        statistics, reward = self._network.reward_statistics, batch["reward"]
        if statistics is None:
            return batch, {}
        number, rewards, reset = (batch[field].cpu().numpy() for field in ("environment", "reward", "reset"))
        self._running = np.pad(self._running, (0, max(0, number.max() + 1 - len(self._running))))
        returns = np.empty(rewards.shape)
        turn = _occurrences(number)
        for columns in (turn == i for i in range(turn.max() + 1)):  # of one environment in the order of their unrolls
            before = self._running[number[columns]]
            returns[:, columns] = running_returns(rewards[:, columns], reset[:-1, columns], before, self._config.gamma)
            self._running[number[columns]] = returns[-1, columns]
        statistics.update(torch.from_numpy(returns).to(reward.device))
        scaled = (reward / statistics.deviation.float()).clamp(-REWARD_BOUND, REWARD_BOUND)
        return {**batch, "reward": scaled}, {"return_deviation": float(statistics.deviation)}

    def prepare(self, batch: dict[str, Any]) -> tuple[Samples, float]:
        """Advantages and returns from behaviour values, bootstrapped at the true successors."""
        config = self._config
        reward, value, terminated, truncated = (
            batch[field].cpu().numpy() for field in ("reward", "value", "terminated", "truncated")
        )
        last_value, final_value = self._bootstrap_values(batch)
        following = successor_values(value, last_value, truncated, final_value)
        advantage = gae(reward, value, following, terminated, truncated, config.gamma, config.gae_lambda)
        returns = advantage + value
        device = batch["log_prob"].device
        targets = (torch.from_numpy(array).to(device) for array in (advantage, returns))
        return Samples(batch["log_prob"], batch["value"], *targets), explained_variance(value, returns)

    @torch.no_grad()
    def _bootstrap_values(self, batch: dict[str, Any]) -> tuple[Array, Array]:
        """V of what follows the last row, [B], and V of the true successor at every truncation, in row-major order."""
        network, truncated = self._network.eval(), batch["truncated"]
        following = nested.index(batch["obs"], slice(-1, None))
        last = network(following, batch["last_state"], batch["reset"][-1:]).value[0]
        final = last[:0]
        # `final_obs` holds a row for every ended episode; those that terminated have no value to ask for.
        cut = truncated[truncated | batch["terminated"]]
        if cut.any():
            obs = nested.map_leaves(lambda leaf: leaf[cut].unsqueeze(0), batch["final_obs"])
            state = nested.index(batch["final_state"], cut)
            final = network(obs, state, torch.zeros_like(cut[cut]).unsqueeze(0)).value[0]
        return last.cpu().numpy(), final.cpu().numpy()

    def _whole(self, batch: dict[str, Any], samples: Samples) -> Minibatch:
        """All that the epochs learn from: with memory sequences [T, B], else single steps [N]."""
        obs, reset = nested.index(batch["obs"], slice(0, -1)), batch["reset"][:-1]
        if self._network.is_recurrent:
            return Minibatch(obs, batch["state"], reset, batch["action"], samples)
        obs = self._network.arrange(nested.map_leaves(joined, obs))
        return Minibatch(obs, {}, joined(reset), joined(batch["action"]), Samples(*map(joined, samples)))

    def _minibatches(self, whole: Minibatch, rng: np.random.Generator) -> Iterator[Minibatch]:
        """One epoch in shuffled order, advantages normalised within each minibatch."""
        shuffle = self._shuffled_sequences if self._network.is_recurrent else self._shuffled_steps
        for obs, state, reset, action, old in shuffle(whole, rng):
            if self._config.normalise_advantage:
                old = old._replace(advantage=normalised(old.advantage))
            yield Minibatch(obs, state, reset, action, old)

    def _shuffled_steps(self, whole: Minibatch, rng: np.random.Generator) -> Iterator[Minibatch]:
        """Without memory single steps are shuffled and cut into [1, minibatch]."""
        samples = whole.action.shape[0]
        order = torch.from_numpy(rng.permutation(samples)).to(whole.action.device)

        def cut(field: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return pick_rows(field, order).unsqueeze(0).tensor_split(max(samples // self._config.minibatch, 1), 1)

        obs, resets, actions = nested.map_leaves(cut, whole.obs), cut(whole.reset), cut(whole.action)
        olds = zip(*map(cut, whole.old), strict=True)
        for number, (reset, action, old) in enumerate(zip(resets, actions, olds, strict=True)):
            yield Minibatch(nested.index(obs, number), {}, reset, action, Samples(*old))

    def _shuffled_sequences(self, whole: Minibatch, rng: np.random.Generator) -> Iterator[Minibatch]:
        """With memory, whole columns are shuffled and the state each began with goes along."""
        steps, columns = whole.reset.shape
        order = torch.from_numpy(rng.permutation(columns)).to(whole.action.device)
        for chosen in order.tensor_split(max(steps * columns // self._config.minibatch, 1)):
            pick = partial(torch.index_select, dim=1, index=chosen)  # for images many times as fast as [:, chosen]
            yield Minibatch(
                nested.map_leaves(pick, whole.obs),
                nested.index(whole.state, chosen),
                pick(whole.reset),
                pick(whole.action),
                Samples(*map(pick, whole.old)),
            )


def _occurrences(numbers: Array) -> Array:
    """How often each entry has come before."""
    seen: dict[int, int] = {}
    counts = []
    for number in numbers.tolist():
        counts.append(seen.get(number, 0))
        seen[number] = counts[-1] + 1
    return np.array(counts)


def joined(field: torch.Tensor) -> torch.Tensor:
    """[T, B, …] → [N, …]."""
    return field.flatten(0, 1)


def pick_rows(rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """`rows[order]`, copied row by row, which for images is ten times as fast as element by element."""
    if rows.ndim == 4 and rows.is_contiguous(memory_format=torch.channels_last):
        return rows.permute(0, 2, 3, 1).index_select(0, order).permute(0, 3, 1, 2)  # as it lies in memory
    return rows.index_select(0, order)


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
    store=StoreSpec("rollout"),
    update=PPOUpdate,
    topology=TopologySpec("sync"),
)
