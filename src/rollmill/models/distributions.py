"""Action distributions as pure functions of a network's outputs; any leading axes `[...]`.

They keep no tensors and draw no numbers: noise is drawn beforehand for a whole unroll, so that an action depends on
(root seed, actor, sequence) and never on which process samples. Plain tensor operations are used because
`torch.distributions` costs several times as much per call at the batch sizes of an actor.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rollmill.spaces import action_spec
from rollmill.types import Array

_HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
_SMALLEST = np.finfo(np.float32).tiny


class ActionDistribution(Protocol):
    """A family of distributions over actions, given its parameters [..., P]."""

    @property
    def parameter_count(self) -> int:
        """P: how many numbers the network gives for one action."""

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """All that is random in actions of the leading axes `shape`, float32 [*shape, …]."""

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The action that this noise leads to."""

    def mode(self, params: Tensor) -> Tensor:
        """The most likely action."""

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log of the probability (density) of the whole action, [...]."""

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The same and the entropy in nats, [...], sharing what they have in common."""


@dataclass(frozen=True)
class Categorical:
    """One choice of `n`; parameters are logits, actions int64 [...]."""

    n: int

    @property
    def parameter_count(self) -> int:
        """One logit for each choice."""
        return self.n

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Gumbel noise for every logit: minus the log of an exponential, kept from zero so that it stays finite."""
        drawn = rng.standard_exponential((*shape, self.n), dtype=np.float32)
        np.maximum(drawn, _SMALLEST, out=drawn)
        np.log(drawn, out=drawn)
        return np.negative(drawn, out=drawn)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The largest of logits plus Gumbel noise is distributed as softmax(logits)."""
        return (params + noise).argmax(-1)

    def mode(self, params: Tensor) -> Tensor:
        """The choice with the largest logit."""
        return params.argmax(-1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """The action's log softmax."""
        return params.log_softmax(-1).gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The entropy is minus the sum of p log p; both come from one log softmax."""
        log_probs = params.log_softmax(-1)
        return log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1), -(log_probs.exp() * log_probs).sum(-1)


@dataclass(frozen=True)
class MultiCategorical:
    """Independent choices of `nvec[i]` each; parameters are their logits in a row, actions int64 [..., len(nvec)]."""

    nvec: tuple[int, ...]

    @property
    def parameter_count(self) -> int:
        """One logit for each choice of each part."""
        return sum(self.nvec)

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Gumbel noise for every logit."""
        return Categorical(self.parameter_count).draw_noise(rng, shape)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """Each part by its own noise."""
        return self.mode(params + noise)

    def mode(self, params: Tensor) -> Tensor:
        """The largest logit of each part."""
        return torch.stack([logits.argmax(-1) for logits in params.split_with_sizes(self.nvec, -1)], -1)

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """The sum over the parts, which are independent."""
        return _chosen(self._log_softmax(params), action)

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both are sums over the parts, from one log softmax of each."""
        parts = self._log_softmax(params)
        log_probs = torch.cat(parts, -1)
        return _chosen(parts, action), -(log_probs.exp() * log_probs).sum(-1)

    def _log_softmax(self, params: Tensor) -> list[Tensor]:
        return [logits.log_softmax(-1) for logits in params.split_with_sizes(self.nvec, -1)]


@dataclass(frozen=True)
class DiagonalGaussian:
    """Independent normals; parameters are means, then logs of standard deviations; actions float32 [..., *shape]."""

    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers one action has."""
        return math.prod(self.shape)

    @property
    def parameter_count(self) -> int:
        """A mean and a log standard deviation for each number."""
        return 2 * self.size

    def draw_noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
        """Standard normals for every number."""
        return rng.standard_normal((*shape, self.size), dtype=np.float32)

    def sample(self, params: Tensor, noise: Tensor) -> Tensor:
        """The noise, scaled and shifted; bounds are the environment's business, or the density would be wrong."""
        mean, log_std = params.chunk(2, -1)
        return self._shaped(torch.addcmul(mean, log_std.exp(), noise))

    def mode(self, params: Tensor) -> Tensor:
        """The mean."""
        return self._shaped(params.chunk(2, -1)[0])

    def log_prob(self, params: Tensor, action: Tensor) -> Tensor:
        """Log density, -1/2 ((a - mean) / std)^2 - log std - 1/2 log 2 pi, summed over the numbers."""
        mean, log_std = params.chunk(2, -1)
        deviation = (action.reshape(mean.shape) - mean) * torch.exp(-log_std)
        return (-0.5 * deviation.square() - log_std).sum(-1) - self.size * _HALF_LOG_TAU

    def log_prob_and_entropy(self, params: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """The entropy is log std + 1/2 log 2 pi e, summed over the numbers."""
        entropy = params.chunk(2, -1)[1].sum(-1) + self.size * (0.5 + _HALF_LOG_TAU)
        return self.log_prob(params, action), entropy

    def _shaped(self, flat: Tensor) -> Tensor:
        return flat.reshape(*flat.shape[:-1], *self.shape)


def _chosen(log_probs: list[Tensor], action: Tensor) -> Tensor:
    """The log-probability of the choices of all parts."""
    return torch.cat([part.gather(-1, action[..., i, None]) for i, part in enumerate(log_probs)], -1).sum(-1)


def distribution_for(space: gym.Space[Any]) -> ActionDistribution:
    """The distribution over the actions of a space."""
    spec = action_spec(space)  # refuses what can't be trained on
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return MultiCategorical(tuple(int(n) for n in space.nvec))
    return DiagonalGaussian(spec.shape)
