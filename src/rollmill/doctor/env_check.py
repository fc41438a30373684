"""The check at start-up: an environment must match its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.random import Generator

from rollmill import seeding, spaces
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import opened_group
from rollmill.types import Array, FrameStack

STEPS = 20  # enough for an episode's start and, in most small tasks, its end


class EnvSpaces(NamedTuple):
    """Facts about the environment that the rest of a run needs."""

    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    frame_skip: int  # frames per agent decision
    snapshot_size: int  # bytes of one environment's snapshot; 0: there is none
    stacks: Mapping[str, FrameStack]  # by path: the leaves of the observation that stack frames


def check_group(config: EnvConfig) -> EnvSpaces:
    """Play a few random steps and refuse an environment that doesn't match its spaces, naming environment and step."""
    size = min(2, config.group_size)
    with opened_group(config, size, verify=True) as group:
        generator = seeding.generator(0, "check")
        everyone = np.ones(size, bool)
        over = everyone
        for _ in range(STEPS):
            group.reset(over, generator.integers(2**31, size=size))
            result = group.step(random_actions(group.action_space, size, generator), everyone)
            over = result.terminated | result.truncated
        return EnvSpaces(
            group.observation_space, group.action_space, group.frame_skip, group.snapshot_size, group.stacks
        )


def random_actions(space: gym.Space[Any], size: int, generator: Generator) -> Array:
    """Uniform actions for `size` environments, as an agent stores them; normal ones where the space has no bounds."""
    spec = spaces.action_spec(space).lead(size)
    if isinstance(space, gym.spaces.Discrete):
        return generator.integers(space.n, size=spec.shape)
    if isinstance(space, gym.spaces.MultiDiscrete):
        return generator.integers(space.nvec, size=spec.shape)
    assert isinstance(space, gym.spaces.Box)
    if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        return generator.standard_normal(spec.shape, np.float32)
    return generator.uniform(space.low, space.high, spec.shape).astype(np.float32)
