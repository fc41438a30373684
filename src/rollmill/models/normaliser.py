"""Observations normalised to zero mean and unit standard deviation by running statistics."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rollmill.nested import Nested
from rollmill.spaces import observation_leaf_space

_EPSILON = 1e-8  # added to the variance
_BOUND = 10.0  # deviations beyond which an observation is clipped


class RunningStatistics(nn.Module):
    """Mean and variance of every entry of an array over all samples so far.

    They are buffers, so they are saved, hashed and published with the weights; float64, because a float32 count stops
    growing at 2^24 samples.
    """

    mean: Tensor
    var: Tensor
    count: Tensor

    def __init__(self, shape: tuple[int, ...], deviation: float = 1.0) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(shape, dtype=torch.float64))
        self.register_buffer("var", torch.full(shape, deviation**2, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def update(self, x: Tensor) -> None:
        """Add the samples [T, B, …] by Chan's rule for joining the moments of two sets."""
        samples = x.flatten(0, 1).double()
        added = samples.shape[0]
        if added == 0:
            return
        var, mean = torch.var_mean(samples, 0, correction=0)
        total = self.count + added
        shift = mean - self.mean
        squares = self.var * self.count + var * added + shift.square() * (self.count * added / total)
        # in place: views of the buffers, such as the published weights, see the new numbers
        self.var.copy_(squares / total)
        self.mean.add_(shift * (added / total))
        self.count.copy_(total)

    def forward(self, x: Tensor) -> Tensor:
        """The samples in deviations from the mean, clipped."""
        scale = (self.var + _EPSILON).rsqrt().float()
        return ((x - self.mean.float()) * scale).clamp(-_BOUND, _BOUND)

    @property
    def deviation(self) -> Tensor:
        """The standard deviation, never quite zero."""
        return (self.var + _EPSILON).sqrt()

    def undo(self, x: Tensor) -> Tensor:
        """From deviations back to the samples' own units."""
        return x * self.deviation.float() + self.mean.float()


class ObservationNormaliser(nn.Module):
    """Normalises the float leaves of an observation; images of bytes (see `CNN`) and discrete leaves pass unchanged."""

    def __init__(self, space: gym.Space[Any]) -> None:
        super().__init__()
        children = observation_leaf_space(space)
        self._keys = sorted(children) if isinstance(children, dict) else None
        if isinstance(children, dict):
            # numbered and not named: a key of the environment may not be a valid name of a submodule
            self.parts = nn.ModuleList(ObservationNormaliser(children[key]) for key in sorted(children))
            self.statistics = None
        else:
            is_float = isinstance(children, gym.spaces.Box) and np.issubdtype(children.dtype, np.floating)
            self.statistics = RunningStatistics(children.shape or ()) if is_float else None

    def update(self, obs: Nested) -> None:
        """Add observations [T, B, …]; the learner alone does so, in the order in which it consumes unrolls."""
        if self._keys is not None:
            for key, part in zip(self._keys, self.parts, strict=True):
                part.update(obs[key])  # type: ignore[operator]  # a part is a normaliser
        elif self.statistics is not None:
            self.statistics.update(obs)

    def forward(self, obs: Nested) -> Nested:
        """The observation with its float leaves normalised."""
        if self._keys is not None:
            return {key: part(obs[key]) for key, part in zip(self._keys, self.parts, strict=True)}
        return obs if self.statistics is None else self.statistics(obs)
