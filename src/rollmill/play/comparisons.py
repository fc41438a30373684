"""What a player is compared with: chance, always the same action, and the environment's own scripts."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.envs.config import EnvConfig
from rollmill.envs.families import scripts_of
from rollmill.play.named_players import LEVELS, PlayerSpec

MOST_CONSTANTS = 18  # actions up to which each is played for itself: as many as an Atari joystick has
EPISODES = 20  # of each, at most
LEAST_SECONDS = 10.0  # for all of them together; twice what the player itself took, if that is more


def baselines_of(env: EnvConfig, space: gym.Space[Any]) -> list[PlayerSpec]:
    """Everybody there is to compare with."""
    scripts = [PlayerSpec("scripted", name) for name in scripts_of(env)]
    return [PlayerSpec("random"), *scripts, *(PlayerSpec("constant", detail) for detail in _constants(space))]


def _constants(space: gym.Space[Any]) -> list[str]:
    if isinstance(space, gym.spaces.Box):
        return list(LEVELS)
    if isinstance(space, gym.spaces.Discrete):
        return [str(number) for number in range(int(space.n))] if space.n <= MOST_CONSTANTS else []
    if isinstance(space, gym.spaces.MultiDiscrete) and np.prod(space.nvec) <= MOST_CONSTANTS:
        return [",".join(map(str, index)) for index in np.ndindex(*space.nvec.tolist())]
    return []
