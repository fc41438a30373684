"""Players that decide for themselves: a trained policy, chance, or always the same.

What is random in an episode comes from the episode's own seed, so that it doesn't matter which row of which process
plays it. The caller passes the seed (`begin`); where it doesn't, a player counts its episodes itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill.algorithms.policy import Policy
from rollmill.doctor.env_check import random_actions
from rollmill.envs.group import EnvGroup
from rollmill.nested import Nested
from rollmill.seeding import generator, integer_seed
from rollmill.types import Array

CHUNK = 64  # steps for which a row draws at once: one call per step and row would cost more than the decision

Draw = Callable[[np.random.Generator, int], Array]  # (generator, steps) → [steps, …] for one environment


@runtime_checkable
class SeededPlayer(Protocol):
    """A player whose randomness belongs to the episode."""

    def begin(self, k: int, seed: int) -> None:
        """The episode that row k begins now has this seed; said before the first decision of it."""
        ...


class EpisodeDraws:
    """Random numbers for K rows, each from the seed of the episode that the row plays."""

    def __init__(self, draw: Draw, size: int, seed: int) -> None:
        self._draw, self._seed = draw, seed
        self._rows = np.arange(size)
        self._step = np.zeros(size, np.int64)
        self._episode = np.zeros(size, np.int64)
        self._coming: dict[int, int] = {}  # seeds of episodes that begin with the next step
        self._generators = [generator(seed, "player", k) for k in range(size)]
        first = draw(self._generators[0], CHUNK)
        self._drawn = np.zeros((size, *first.shape), first.dtype)

    def begin(self, k: int, seed: int) -> None:
        """Row k begins an episode of this seed."""
        self._coming[k] = seed

    def take(self, reset: NDArray[np.bool_]) -> Array:
        """The numbers of this step, [K, …]."""
        for k in np.flatnonzero(reset).tolist():
            seed = self._coming.pop(k, None)
            if seed is None:
                seed = integer_seed(self._seed, "player", k, int(self._episode[k]))
            self._episode[k] += 1
            self._generators[k] = generator(seed, "player")
            self._refill(k)
        for k in np.flatnonzero(self._step == CHUNK).tolist():
            self._refill(k)
        taken = self._drawn[self._rows, self._step]
        self._step += 1
        return taken

    def _refill(self, k: int) -> None:
        self._drawn[k] = self._draw(self._generators[k], CHUNK)
        self._step[k] = 0


class PolicyPlayer:
    """A policy's most likely actions; with `draws` of its noise, actions drawn from its distribution."""

    def __init__(self, policy: Policy, draws: EpisodeDraws | None = None) -> None:
        self._policy, self._draws = policy, draws
        self._state = policy.initial_state()

    def begin(self, k: int, seed: int) -> None:
        """Row k begins an episode of this seed."""
        if self._draws is not None:
            self._draws.begin(k, seed)

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Decide for a group."""
        return self.decide(group.obs, reset)

    def decide(self, obs: Nested, reset: NDArray[np.bool_]) -> Array:
        """Decide, and remember what a recurrent policy remembers."""
        noise = None if self._draws is None else self._draws.take(reset)
        decision = self._policy.act(obs, self._state, reset, noise)
        self._state = decision.state
        scale = self._policy.network.scale
        return decision.action if scale is None else scale(decision.action)


class RandomPlayer:
    """Uniform actions, whatever is seen."""

    def __init__(self, space: gym.Space[Any], size: int, seed: int) -> None:
        self._draws = EpisodeDraws(lambda rng, steps: random_actions(space, steps, rng), size, seed)

    def begin(self, k: int, seed: int) -> None:
        """Row k begins an episode of this seed."""
        self._draws.begin(k, seed)

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Draw."""
        return self._draws.take(reset)


class ConstantPlayer:
    """The same action at every step."""

    def __init__(self, action: Array, size: int) -> None:
        self._actions = np.stack([action] * size)

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Repeat."""
        return self._actions
