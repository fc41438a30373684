"""How a network decides: sampling with noise that was drawn beforehand, or greedily."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch

from rollmill import nested
from rollmill.models.network import Network
from rollmill.nested import Nested
from rollmill.types import Array, Decision

ROW_MULTIPLE = 4  # a row's result depends on the batch size unless that is a multiple of 4 (AVX2 kernels)


class Policy(Protocol):
    """Decides for one group; the same numbers whichever process it runs in."""

    network: Network

    def begin(self, version: int) -> None:
        """Weights of `version` have been loaded into the network."""

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """All randomness of one unroll, [steps, K, …]."""

    def initial_state(self) -> Nested:
        """The recurrent state before the first step, [K, …]."""

    def act(self, obs: Nested, state: Nested, reset: Array, noise: Array | None) -> Decision:
        """Decide for K environments; without noise, greedily."""


class StochasticPolicy:
    """Samples from the network's action distribution."""

    def __init__(self, network: Network, size: int) -> None:
        self.network = network.eval()
        self._size = size
        self._rows = -(-size // ROW_MULTIPLE) * ROW_MULTIPLE
        self._device = next(network.parameters()).device

    def begin(self, version: int) -> None:
        """Nothing to do: only the weights matter here."""

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """One draw for the whole unroll; rows that pad the batch get zeros, so they can't shift the others."""
        drawn = self.network.distribution.draw_noise(rng, (steps, self._size))
        return self._padded(drawn, axis=1)

    def initial_state(self) -> Nested:
        """The network's initial state for K environments."""
        return nested.map_leaves(lambda leaf: leaf.cpu().numpy(), self.network.initial_state(self._size))

    @torch.inference_mode()
    def act(self, obs: Nested, state: Nested, reset: Array, noise: Array | None) -> Decision:
        """Decide for K environments; without noise, greedily."""
        output = self.network(
            nested.map_leaves(self._time_major, obs),
            nested.map_leaves(self._tensor, state),
            self._time_major(reset),
        )
        distribution, params = self.network.distribution, output.params[0]
        if noise is None:
            action = distribution.mode(params)
        else:
            action = distribution.sample(params, torch.from_numpy(noise).to(self._device))
        log_prob = distribution.log_prob(params, action)
        value = log_prob.new_zeros(log_prob.shape) if output.value is None else output.value[0]
        return Decision(
            self._array(action), self._array(log_prob), self._array(value), nested.map_leaves(self._array, output.state)
        )

    def _padded(self, array: Array, axis: int = 0) -> Array:
        if self._rows == self._size:
            return array
        widths = [(0, 0)] * array.ndim
        widths[axis] = (0, self._rows - self._size)
        return np.pad(array, widths)

    def _tensor(self, array: Array) -> torch.Tensor:
        return torch.from_numpy(self._padded(array)).to(self._device)

    def _time_major(self, array: Array) -> torch.Tensor:
        return self._tensor(array).unsqueeze(0)

    def _array(self, tensor: torch.Tensor) -> Any:
        return tensor.cpu().numpy()[: self._size]
