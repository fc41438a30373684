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


def sample_observations(space: gym.Space[Any], steps: int, batch: int, seed: int) -> Nested:
    """Tensors [T, B, …] as a network gets them; the space's own generator isn't touched."""
    private = deepcopy(space)
    private.seed(seed)
    rows = [_as_nested(private, private.sample()) for _ in range(steps * batch)]

    def join(spec: Any, *leaves: Any) -> torch.Tensor:
        stacked = np.stack([np.asarray(leaf, dtype=spec.dtype) for leaf in leaves])
        return torch.from_numpy(stacked.reshape(steps, batch, *spec.shape))

    return nested.map_leaves(join, observation_spec(space), *rows)


def _as_nested(space: gym.Space[Any], sample: Any) -> Nested:
    """A sample with tuples as dicts, as everywhere in rollmill."""
    children = observation_leaf_space(space)
    if not isinstance(children, dict):
        return sample
    values = sample if isinstance(sample, dict) else {str(i): part for i, part in enumerate(sample)}
    return {key: _as_nested(child, values[key]) for key, child in children.items()}
