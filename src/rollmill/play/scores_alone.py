"""Playing episodes for their score alone: the random baseline and the finished policy."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollmill.algorithms.policy import Policy
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.envs.player import MakePlayer
from rollmill.errors import RollmillError
from rollmill.intervals import deviation
from rollmill.play.players import GreedyPlayer, RandomPlayer
from rollmill.play.playing import Episode, play_episodes
from rollmill.seeding import episode_seed, integer_seed
from rollmill.settings import ExperimentConfig

PATIENCE = 5  # times the seconds that playing was meant to take


class Scored(NamedTuple):
    """Raw returns of whole episodes, and how long playing took."""

    returns: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean return; None if no episode ended in time."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the returns; None for fewer than two."""
        return deviation(self.returns)


def play(
    make_player: MakePlayer,
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
        return Scored()
    size = min(config.group_size, episodes)
    rows = [
        [Episode(number, episode_seed(seed, 0, k, number // size)) for number in range(k, episodes, size)]
        for k in range(size)
    ]
    group = make_group(config, size)
    started = perf_counter()

    def may_begin() -> bool:
        return perf_counter() - started <= seconds

    def may_go_on() -> bool:
        return not is_unwanted() and perf_counter() - started < PATIENCE * seconds

    try:
        playing = play_episodes(group, make_player(size), rows, None, may_begin, may_go_on)
        returns = [played.total for played in playing if not played.failure]
        return Scored(tuple(returns), perf_counter() - started)
    finally:
        with suppress(RollmillError):  # the score is known; an environment that won't close doesn't change it
            group.close()


def play_randomly(config: ExperimentConfig, space: gym.Space[Any]) -> Scored:
    """The random baseline: uniform actions, whatever is seen."""
    observe, seed = config.observe, integer_seed(config.seed, "random baseline")
    player = partial(RandomPlayer, space, seed=seed)
    return play(player, config.env, seed, observe.baseline_episodes, observe.baseline_seconds)


def play_greedily(config: ExperimentConfig, make: Callable[[int], Policy], is_unwanted: Callable[[], bool]) -> Scored:
    """The policy without exploration, on episodes that training never saw; `make` gives a policy for a group size.

    It ends early when `is_unwanted` says so.
    """
    observe, seed = config.observe, integer_seed(config.seed, "greedy evaluation")
    episodes, seconds = observe.final_episodes, observe.final_seconds
    return play(lambda size: GreedyPlayer(make(size)), config.env, seed, episodes, seconds, is_unwanted)
