"""Playing episodes for their score alone: the random baseline and the finished policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollmill.actors.episodes import Episodes
from rollmill.algorithms.policy import Policy
from rollmill.envs.check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import RollmillError
from rollmill.nested import Nested
from rollmill.seeding import generator, integer_seed
from rollmill.types import Array, AssemblerSpec

PATIENCE = 5  # times the seconds that playing was meant to take

Decide = Callable[[Nested, Array], Array]  # (obs, reset) → action


class Scored(NamedTuple):
    """Raw returns of whole episodes, and how long playing took."""

    returns: tuple[float, ...]
    seconds: float

    @property
    def mean(self) -> float | None:
        """Mean return; None if no episode ended in time."""
        return float(np.mean(self.returns)) if self.returns else None


def play(
    decide: Decide,
    config: EnvConfig,
    seed: int,
    episodes: int,
    seconds: float,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> Scored:
    """Play `episodes` episodes; after `seconds` no new ones are begun, after PATIENCE times that it is given up.

    Each environment has its quota and finishes what it has begun: counting whichever end first would favour the short
    ones. (Giving up does favour them: better a number with that flaw than none.)
    """
    if not episodes:
        return Scored((), 0.0)
    size = min(config.group_size, episodes)
    quota = np.full(size, episodes // size) + (np.arange(size) < episodes % size)
    endless = AssemblerSpec("unroll", 2**62)
    players = Episodes(make_group(config, size), config, endless, seed, 0)
    started = perf_counter()
    try:
        returns: list[float] = []
        obs, reset = players.begin()
        while quota.any() and not is_unwanted() and (elapsed := perf_counter() - started) < PATIENCE * seconds:
            if elapsed > seconds:
                quota = np.minimum(quota, 1)
            outcome = players.step(decide(obs, reset))
            counted = (outcome.terminated | outcome.truncated) & (quota > 0)
            returns += outcome.episode_return[counted].tolist()
            quota = (quota - counted) * players.in_play  # who failed for good is not waited for
            obs, reset = outcome.obs, outcome.reset
        return Scored(tuple(returns), perf_counter() - started)
    finally:
        with suppress(RollmillError):  # the score is known; an environment that won't close doesn't change it
            players.close()


def play_randomly(space: gym.Space[Any], config: EnvConfig, root_seed: int, episodes: int, seconds: float) -> Scored:
    """The random baseline: uniform actions, whatever is seen."""
    size = min(config.group_size, episodes)
    rng = generator(root_seed, "random policy")
    seed = integer_seed(root_seed, "random baseline")
    return play(lambda obs, reset: random_actions(space, size, rng), config, seed, episodes, seconds)


def play_greedily(
    make: Callable[[int], Policy],
    config: EnvConfig,
    root_seed: int,
    episodes: int,
    seconds: float,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> Scored:
    """The policy without exploration, on episodes that training never saw; `make` gives a policy for a group size.

    It ends early when `is_unwanted` says so.
    """
    policy = make(min(config.group_size, episodes))
    state = policy.initial_state()

    def decide(obs: Nested, reset: Array) -> Array:
        nonlocal state
        decision = policy.act(obs, state, reset, None)
        state = decision.state
        return decision.action

    return play(decide, config, integer_seed(root_seed, "greedy evaluation"), episodes, seconds, is_unwanted)
