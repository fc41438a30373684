"""Observations drawn from a space, for trying a network before there is an environment."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rollmill import nested
from rollmill.nested import Nested
from rollmill.spaces import observation_leaf_space, observation_spec

# Spaces that mean "any number" are often bounded by the largest float, where every network overflows.
_BOUND = 100.0


def sample_observations(space: gym.Space[Any], steps: int, batch: int, seed: int) -> Nested:
    """Tensors [T, B, …] as a network gets them; the space's own generator isn't touched."""
    private = deepcopy(space)
    private.seed(seed)
    rng = np.random.default_rng(seed)
    rows = [_sample(private, rng) for _ in range(steps * batch)]

    def join(spec: Any, *leaves: Any) -> torch.Tensor:
        stacked = np.stack([np.asarray(leaf, dtype=spec.dtype) for leaf in leaves])
        return torch.from_numpy(stacked.reshape(steps, batch, *spec.shape))

    return nested.map_leaves(join, observation_spec(space), *rows)


def _sample(space: gym.Space[Any], rng: np.random.Generator) -> Nested:
    children = observation_leaf_space(space)
    if isinstance(children, dict):
        return {key: _sample(child, rng) for key, child in children.items()}
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return rng.uniform(np.clip(space.low, -_BOUND, _BOUND), np.clip(space.high, -_BOUND, _BOUND))
    return space.sample()
