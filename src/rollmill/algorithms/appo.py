"""Asynchronous PPO (Petrenko et al. 2020) with V-trace (Espeholt et al. 2018), feed-forward and recurrent.

It is PPO on unrolls that older policies made, and differs from `ppo.py` in this:

- with mu the policy that made an unroll, the ratio r = pi(a|s) / mu(a|s) of the loss spans the whole lag;
- advantages and value targets are V-trace's, from the policy and the values of the network as it is now, row T+1 of an
  unroll giving the true last bootstrap. With several epochs they are computed before the first step, and the epochs are
  PPO's. With one, a minibatch is made of whole unrolls, and the forward that learns gives pi and V too;
- unrolls that lag by more than `max_lag` updates are left out;
- the learning rate may follow the KL divergence, and values may be learned in units of the returns' standard deviation.

Shapes: T time, B columns (environments of the update's unrolls).

Deviations from the papers: time limits bootstrap from the true successor; the importance weight of the policy gradient
is the ratio of the loss alone, and lambda is such that without lag all of it is PPO (see `returns.vtrace`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from rollmill import nested
from rollmill.algorithms.minibatches import Minibatch, Samples, joined, pick_rows
from rollmill.algorithms.policy import StochasticPolicy
from rollmill.algorithms.ppo import (
    MAY_BE_NAN,
    Evaluated,
    PPOConfig,
    Steps,
    annealed,
    divergence,
    fixed_unrolls,
    normalised,
    ppo_epoch,
    ppo_loss,
    summarise,
)
from rollmill.algorithms.recipe import Optimizer, Recipe, Update, UpdateContext
from rollmill.algorithms.returns import explained_variance, successor_values, vtrace
from rollmill.algorithms.scaling import RewardScaling, in_units_of_rewards, in_units_of_values
from rollmill.errors import Refused
from rollmill.models.network import Network, build_network
from rollmill.nested import Nested
from rollmill.stores.rollout import ArrivalStore
from rollmill.types import Array, Flow, TopologySpec

MOST_IN_FLIGHT = 10_000  # unrolls of all actors: the slot numbers of more may not fit into a pipe at once
RATE_FACTOR = 1.5  # by which an adaptive learning rate changes, at most once per update
RATE_BOUNDS = (1e-6, 1e-2)  # of an adaptive learning rate
KL_SAMPLES = 256  # on which the KL divergence is measured; enough for thresholds a factor of 4 apart


class APPOConfig(PPOConfig):
    """Settings of PPO, and what asynchrony adds; the defaults suit short unrolls and one pass."""

    name: Literal["appo"] = "appo"  # type: ignore[assignment]  # the tag by which the section is read
    unroll: int = Field(default=32, ge=1, description="T: agent decisions per environment and unroll")
    unrolls: int = Field(
        default=1, ge=1, le=MOST_IN_FLIGHT, description="unrolls per update, in the order in which they arrive"
    )
    in_flight: int = Field(default=2, ge=1, le=MOST_IN_FLIGHT, description="unrolls that an actor may have in flight")
    target_lag: float | None = Field(
        default=None,
        gt=0,
        description="mean lag in updates above which fewer unrolls are kept in flight; null: no limit",
    )
    max_lag: int = Field(default=20, ge=0, description="updates; older unrolls are left out")
    epochs: int = Field(default=1, ge=1, description="passes over each batch")
    minibatch: int = Field(default=256, ge=1, description="samples per gradient step; with one epoch whole unrolls")
    adaptive_kl: float | None = Field(
        default=None, gt=0, description="target KL after an update, which the learning rate follows; null: fixed rate"
    )
    vtrace: bool = Field(default=True, description="correct returns for lag; false: as if the unrolls were fresh")
    rho_bar: float = Field(default=1.0, gt=0, description="bound on the importance ratio of a step's own TD error")
    c_bar: float = Field(default=1.0, gt=0, description="bound on the importance ratios of the TD errors after it")

    def flow(self, groups: int) -> Flow:
        """No actor waits: each has up to `in_flight` unrolls under way, and any `unrolls` of them make an update."""
        if groups * self.in_flight > MOST_IN_FLIGHT:
            raise Refused(
                f"algorithm.in_flight={self.in_flight} with env.groups={groups} is more than {MOST_IN_FLIGHT} unrolls "
                "at once; lower it: 2 or 3 keep actors busy"
            )
        lag = groups * self.in_flight / self.unrolls - 1  # of all of them, when all actors are equally fast
        if min(lag, lag if self.target_lag is None else self.target_lag) > self.max_lag:
            raise Refused(
                f"algorithm.max_lag={self.max_lag} would leave out every unroll: with env.groups={groups} × in_flight="
                f"{self.in_flight} / unrolls={self.unrolls} they lag by {lag:g} updates; "
                f"raise unrolls or max_lag, or set target_lag (now {self.target_lag}) to less"
            )
        return Flow(self.unrolls, self.in_flight, self.target_lag, is_ordered=False)

    def check_batch(self, columns: int, is_recurrent: bool) -> None:
        """As PPO's; with one epoch minibatches must cut the batch of `columns` along whole unrolls."""
        if self.epochs == 1:
            if self.minibatch % self.unroll or columns % (self.minibatch // self.unroll):
                raise Refused(
                    f"algorithm.minibatch={self.minibatch} doesn't cut the batch along whole unrolls of {self.unroll}, "
                    f"which algorithm.epochs=1 learns from; choose {self.unroll} times a divisor of {columns}, "
                    "the environments of an update's unrolls"
                )
            self._check_shards(self.minibatch // self.unroll)
        super().check_batch(columns, is_recurrent)

    @property
    def network_options(self) -> dict[str, bool]:
        """Which running statistics the network keeps; those of returns always, so that weights fit either setting."""
        return {**super().network_options, "with_return_statistics": True}

    @model_validator(mode="after")
    def _refuse_two_schedules(self) -> Self:
        if self.adaptive_kl is not None and self.anneal_learning_rate:
            raise ValueError(
                f"algorithm.adaptive_kl={self.adaptive_kl} and algorithm.anneal_learning_rate=true both move the "
                "learning rate; remove one of them"
            )
        return self

    @model_validator(mode="after")
    def _refuse_unread_bounds(self) -> Self:
        if not self.vtrace and (self.rho_bar, self.c_bar) != (1.0, 1.0):
            raise ValueError("algorithm.rho_bar and algorithm.c_bar are not read while algorithm.vtrace=false")
        return self


class Columns(NamedTuple):
    """Whole unrolls side by side."""

    obs: Nested  # [(T+1) B, …], all rows in one axis
    state: Nested  # [B, …], before the first step
    reset: torch.Tensor  # [T+1, B]
    action: torch.Tensor  # [T, B, …], like all that follow
    log_prob: torch.Tensor  # of the behaviour, as is `value`
    value: torch.Tensor
    reward: torch.Tensor
    terminated: torch.Tensor
    truncated: torch.Tensor
    final_row: torch.Tensor  # where an episode ended: the row of its true last observation in the batch's `final_obs`
    number: torch.Tensor  # [1, B]: which columns of the update these are


class Targets(NamedTuple):
    """What is learned from columns, [T, B], in units of the rewards."""

    advantage: torch.Tensor
    returns: torch.Tensor  # value targets
    predicted: torch.Tensor  # the values that they were found with


class APPOUpdate:
    """Epochs of minibatch steps on unrolls of any age; a single epoch takes whole unrolls, several are PPO's."""

    def __init__(self, network: Network, optimizers: Mapping[str, Optimizer], config: APPOConfig) -> None:
        self._network, self._config = network, config
        (self._optimizer,) = optimizers.values()
        self._rewards = RewardScaling(network.reward_statistics, config.gamma)
        self._rate = config.learning_rate  # changes when it is adaptive

    def __call__(self, batch: dict[str, Any], context: UpdateContext) -> Update:
        """Leave out what is too old, then take epochs × minibatches steps; the batch is [T, B, …]."""
        config, network = self._config, self._network
        rate, clip = annealed(config, self._rate, context.progress)
        self._optimizer.set_rate(rate)

        batch, scale = self._rewards(batch)
        whole = self._fresh(batch)
        masked = 1.0 - whole.reward.numel() / batch["reward"].numel()  # the share of steps that are left out
        seen = {"masked_fraction": masked, "learning_rate": rate, **scale}
        if not whole.reward.numel():
            return Update({**seen, "gradient_steps": 0.0})

        network.train()
        taken = Steps([], [])
        if config.epochs == 1:
            found = self._only_epoch(whole, batch, clip, context.rng, taken)
        else:
            found = self._find(whole, batch)
            known = self._known(whole, found)
            for _ in range(config.epochs):
                ppo_epoch(known, network, self._optimizer, config, clip, context.rng, taken)
                if taken.is_too_far(config):
                    break

        if config.adaptive_kl is not None:
            seen["kl_after"] = moved = self._moved(whole, context.rng)
            self._rate = adapted_rate(self._rate, moved, config.adaptive_kl)
        # Statistics move only now: all steps of the update see the same normalised observations and returns.
        network.observe(nested.map_leaves(lambda leaf: leaf[: whole.reward.numel()].unsqueeze(0), whole.obs))
        if config.normalise_returns:
            network.observe_returns(found.returns.flatten())

        quality = explained_variance(found.predicted.cpu().numpy(), found.returns.cpu().numpy())
        metrics = {**summarise(taken, clip), **_importance(taken, config.rho_bar), "explained_variance": quality}
        return Update({**metrics, **seen}, torch.stack(taken.norms), MAY_BE_NAN)

    @torch.no_grad()
    def _find(self, whole: Columns, batch: dict[str, Any]) -> Targets:
        """The targets of all columns, a minibatch at a time: the activations of all may not fit into memory."""
        order = torch.arange(whole.reset.shape[1], device=whole.reset.device)
        parts = [self.evaluate(part, batch)[1] for part in self._unrolls(whole, order)]
        return Targets(*(torch.cat(fields, 1) for fields in zip(*parts, strict=True)))

    def _only_epoch(
        self, whole: Columns, batch: dict[str, Any], clip: float | None, rng: np.random.Generator, taken: Steps
    ) -> Targets:
        """A gradient step per minibatch of whole unrolls; the targets that were computed on the way."""
        config = self._config
        order = torch.from_numpy(rng.permutation(whole.reset.shape[1])).to(whole.reset.device)
        found = Targets(*(torch.empty_like(whole.reward) for _ in Targets._fields))
        for part in self._unrolls(whole, order):
            evaluated = []
            for shard in _shards(part, config.shards):
                now, targets = self.evaluate(shard, batch)
                for field, values in zip(found, targets, strict=True):
                    field[:, shard.number[0]] = values
                evaluated.append(now)
            if config.normalise_advantage:
                evaluated = _with_normalised_advantages(evaluated)
            for number, now in enumerate(evaluated):
                loss, terms = ppo_loss(now, config, clip, part.reward.numel())
                self._optimizer.accumulate(loss, number)
                taken.terms.append(terms)
            taken.norms.append(self._optimizer.apply())
        return found

    def evaluate(self, part: Columns, batch: dict[str, Any]) -> tuple[Evaluated, Targets]:
        """The network's outputs for whole unrolls, and the targets computed from them."""
        network = self._network
        steps = len(part.action)
        obs = _unflat(part.obs, part.reset.shape)
        output = network(nested.index(obs, slice(0, steps)), part.state, part.reset[:steps])
        log_prob, entropy = network.distribution.log_prob_and_entropy(output.params, part.action)
        with torch.no_grad():  # no gradient flows through what follows the unroll
            state = nested.map_leaves(torch.Tensor.detach, output.state)
            last = network(nested.index(obs, slice(steps, None)), state, part.reset[steps:]).value
        targets = self._targets(part, batch, log_prob.detach(), torch.cat([output.value.detach(), last]))
        return Evaluated(log_prob, entropy, output.value, self._samples(part, targets)), targets

    def _samples(self, part: Columns, targets: Targets) -> Samples:
        """What the loss compares with, in the units of the value head."""
        returns = targets.returns
        if self._config.normalise_returns:
            returns = in_units_of_values(self._network, returns)
        return Samples(part.log_prob, part.value, targets.advantage, returns)

    def _known(self, whole: Columns, found: Targets) -> Minibatch:
        """The training data of several epochs: with memory sequences [T, B], else single steps [N]."""
        steps, samples = len(whole.action), self._samples(whole, found)
        if self._network.is_recurrent:
            obs = nested.index(_unflat(whole.obs, whole.reset.shape), slice(0, steps))
            return Minibatch(obs, whole.state, whole.reset[:steps], whole.action, samples)
        obs = nested.index(whole.obs, slice(0, whole.reward.numel()))
        return Minibatch(obs, {}, joined(whole.reset[:steps]), joined(whole.action), Samples(*map(joined, samples)))

    @torch.no_grad()
    def _targets(self, part: Columns, batch: dict[str, Any], log_prob: torch.Tensor, value: torch.Tensor) -> Targets:
        config, network = self._config, self._network
        final = value[:0, 0]
        if part.truncated.any():
            rows = part.final_row[part.truncated]
            obs = nested.map_leaves(lambda leaf: leaf[rows].unsqueeze(0), batch["final_obs"])
            state = nested.index(batch["final_state"], rows)
            final = network(obs, state, torch.zeros_like(rows, dtype=torch.bool).unsqueeze(0)).value[0]
        if config.normalise_returns:
            value, final = (in_units_of_rewards(network, field) for field in (value, final))

        log_ratio = log_prob - part.log_prob if config.vtrace else torch.zeros_like(log_prob)
        reward, terminated, truncated, ratios, values, final_value = (
            field.cpu().numpy() for field in (part.reward, part.terminated, part.truncated, log_ratio, value, final)
        )
        following = successor_values(values[:-1], values[-1], truncated, final_value)
        returns, advantage = vtrace(
            reward,
            values[:-1],
            following,
            terminated,
            truncated,
            ratios,
            config.gamma,
            config.gae_lambda,
            config.rho_bar,
            config.c_bar,
        )
        advantages, goals = (torch.from_numpy(array).to(value.device) for array in (advantage, returns))
        return Targets(advantages, goals, value[:-1])

    def _fresh(self, batch: dict[str, Any]) -> Columns:
        """The training data: the columns that don't lag too much."""
        ended = batch["terminated"] | batch["truncated"]
        whole = Columns(
            obs=nested.map_leaves(joined, batch["obs"]),
            final_row=(ended.flatten().cumsum(0) - 1).view_as(ended),
            number=torch.arange(ended.shape[1], device=ended.device).unsqueeze(0),
            **{field: batch[field] for field in Columns._fields if field not in ("obs", "final_row", "number")},
        )
        fresh = batch["lag"] <= self._config.max_lag
        if not fresh.all():
            whole = _chosen(whole, fresh.nonzero().flatten())
            whole = whole._replace(number=torch.arange(whole.number.shape[1], device=ended.device).unsqueeze(0))
        return whole._replace(obs=self._network.arrange(whole.obs))

    def _unrolls(self, whole: Columns, order: torch.Tensor) -> Iterator[Columns]:
        """Minibatches of whole unrolls in the order of these columns; nothing is copied where one holds them all."""
        count = min(whole.action.shape[0] * len(order) // self._config.minibatch, len(order))
        if count <= 1:
            yield whole
            return
        for columns in order.tensor_split(count):
            yield _chosen(whole, columns)

    @torch.no_grad()
    def _moved(self, whole: Columns, rng: np.random.Generator) -> float:
        """KL divergence between the current policy and those that made the unrolls, on a sample of them."""
        steps, columns = whole.action.shape[:2]
        some = rng.permutation(columns)[: max(KL_SAMPLES // steps, 1)]
        few = _chosen(whole, torch.from_numpy(some).to(whole.action.device))
        params = self._network(_unflat(few.obs, few.reset.shape), few.state, few.reset).params[:-1]
        return divergence(self._network.distribution.log_prob(params, few.action) - few.log_prob)

    def capture(self) -> tuple[Mapping[str, Array], Mapping[str, Any]]:
        """The running returns and the adaptive learning rate."""
        return {}, {**self._rewards.state(), "learning_rate": self._rate}

    def restore(self, arrays: Mapping[str, Array], state: Mapping[str, Any]) -> None:
        """Restore what `capture` returned."""
        self._rewards.restore(state)
        self._rate = state["learning_rate"]


def adapted_rate(rate: float, kl: float, target: float) -> float:
    """Raise the learning rate if the KL divergence is below half its target, lower it above twice the target."""
    if kl > 2 * target:
        rate /= RATE_FACTOR
    elif kl < target / 2:
        rate *= RATE_FACTOR
    return min(max(rate, RATE_BOUNDS[0]), RATE_BOUNDS[1])


def _importance(taken: Steps, rho_bar: float) -> dict[str, float]:
    """V-trace's importance weights: mean of the clipped ratio and fraction of clipped ones; 1 and 0 without lag."""
    ratio = torch.cat([part.log_ratio.flatten() for part in taken.terms]).exp()
    return {
        "rho_mean": float(ratio.clamp(max=rho_bar).mean()),
        "rho_clipped_fraction": float((ratio > rho_bar).float().mean()),
    }


def _with_normalised_advantages(evaluated: list[Evaluated]) -> list[Evaluated]:
    """Advantages normalised over all shards of a minibatch."""
    every = [now.old.advantage for now in evaluated]
    scaled = normalised(torch.cat(every, 1) if len(every) > 1 else every[0])
    parts = torch.split(scaled, [shard.shape[1] for shard in every], 1)
    return [now._replace(old=now.old._replace(advantage=part)) for now, part in zip(evaluated, parts, strict=True)]


def _shards(part: Columns, count: int) -> list[Columns]:
    """The columns of a minibatch in `count` equal parts."""
    if count == 1:
        return [part]
    every = torch.arange(part.reset.shape[1], device=part.reset.device)
    return [_chosen(part, columns) for columns in every.tensor_split(count) if len(columns)]


def _unflat(obs: Nested, shape: torch.Size) -> Nested:
    """[(T+1) B, …] → [T+1, B, …]."""
    return nested.map_leaves(lambda leaf: leaf.unflatten(0, shape), obs)


def _chosen(whole: Columns, columns: torch.Tensor) -> Columns:
    """Some of the columns, copied."""
    rows, width = whole.reset.shape
    order = (torch.arange(rows, device=columns.device).unsqueeze(1) * width + columns).flatten()
    return Columns(
        nested.map_leaves(lambda leaf: pick_rows(leaf, order), whole.obs),
        nested.map_leaves(lambda leaf: leaf.index_select(0, columns), whole.state),
        *(field.index_select(1, columns) for field in whole[2:]),
    )


RECIPE = Recipe(
    name="appo",
    summary="asynchronous PPO with V-trace on unrolls of any age, feed-forward and recurrent",
    config=APPOConfig,
    network=build_network,
    policy=StochasticPolicy,
    assembler=fixed_unrolls,
    store=ArrivalStore,
    update=APPOUpdate,
    topology=TopologySpec("async"),
)
