"""How a network decides: sampling with noise that was drawn beforehand, or greedily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch

from rollmill import nested
from rollmill.models.network import Model, Network, shorten_lookups
from rollmill.models.plain import plain_network
from rollmill.nested import Nested
from rollmill.types import Array, ArraySpec, Decision


class PolicyContext(NamedTuple):
    """Where a policy decides."""

    config: Any  # the algorithm's settings
    size: int  # K, environments of its group
    actor: int | None = None  # its number among the actors; None outside of training
    actors: int = 1


class Policy(Protocol):
    """Decides for one group; the same numbers whichever process it runs in.

    A row's last bits may depend on the number of rows, so it is always asked for all K of them.
    """

    @property
    def network(self) -> Model:
        """Its own copy, into which published weights are loaded."""

    @property
    def records(self) -> Mapping[str, ArraySpec]:
        """What it stores with each action, for one environment."""

    @property
    def last_records(self) -> Mapping[str, ArraySpec]:
        """What it stores at the end of an unroll, for one environment."""

    def begin(self, version: int) -> None:
        """Weights of `version` have been loaded into the network."""

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """All randomness of one unroll, [steps, K, …]."""

    def initial_state(self) -> Nested:
        """The recurrent state before the first step, [K, …]."""

    def act(self, obs: Nested, state: Nested, reset: Array, noise: Array | None) -> Decision:
        """Decide for K environments; without noise, greedily."""

    def finish(self, obs: Nested, state: Nested, reset: Array) -> Mapping[str, Array]:
        """What `last_records` declares, [K, …], given what follows the unroll's last step."""


class StochasticPolicy:
    """Samples from the network's action distribution; stores log-probability and value."""

    records: ClassVar[Mapping[str, ArraySpec]] = dict.fromkeys(("log_prob", "value"), ArraySpec((), "float32"))
    last_records: ClassVar[Mapping[str, ArraySpec]] = {}

    def __init__(self, network: Network, context: PolicyContext) -> None:
        self.network = network.eval()
        shorten_lookups(network)
        self._size = context.size
        self._device = next(network.parameters()).device
        self._plain = plain_network(network, context.size)
        self._inputs: _Inputs | None = None

    def begin(self, version: int) -> None:
        """Nothing to do: only the weights matter here."""

    def noise(self, rng: np.random.Generator, steps: int) -> Array:
        """One draw for the whole unroll."""
        return self.network.distribution.draw_noise(rng, (steps, self._size))

    def initial_state(self) -> Nested:
        """The network's initial state for K environments."""
        return nested.map_leaves(lambda leaf: leaf.cpu().numpy(), self.network.initial_state(self._size))

    def act(self, obs: Nested, state: Nested, reset: Array, noise: Array | None) -> Decision:
        """Decide for K environments; without noise, greedily."""
        if self._plain is not None:
            action, log_prob, value = self._plain.decide(obs, noise)
            return Decision(action, {"log_prob": log_prob, "value": value}, {})
        if self._inputs is None:
            self._inputs = _Inputs(obs, state, reset, self._device)
        return self._act_with_torch(*self._inputs.filled(obs, state, reset), noise)

    def finish(self, obs: Nested, state: Nested, reset: Array) -> Mapping[str, Array]:
        """Nothing: the learner computes the value of what follows."""
        return {}

    @torch.inference_mode()
    def _act_with_torch(self, obs: Nested, state: Nested, reset: torch.Tensor, noise: Array | None) -> Decision:
        output = self.network(obs, state, reset)
        distribution, params = self.network.distribution, output.params[0]
        if noise is None:
            action = distribution.mode(params)
        else:
            action = distribution.sample(params, torch.from_numpy(noise).to(self._device))
        log_prob = distribution.log_prob(params, action)
        value = torch.zeros_like(log_prob) if output.value is None else output.value[0]
        # copied: a model may return the tensors that it was given, which the next decision overwrites
        state = nested.map_leaves(lambda leaf: leaf.cpu().numpy().copy(), output.state)
        records = {"log_prob": log_prob.cpu().numpy(), "value": value.cpu().numpy()}
        return Decision(action.cpu().numpy(), records, state)


class _Inputs:
    """The network's inputs as tensors that are filled again for every decision."""

    def __init__(self, obs: Nested, state: Nested, reset: Array, device: torch.device) -> None:
        self._size, self._device = len(reset), device
        self._tensors = [
            nested.map_leaves(lambda leaf: torch.zeros(leaf.shape, dtype=_torch_dtype(leaf)), tree)
            for tree in (obs, state, reset)
        ]
        self._arrays = [nested.map_leaves(lambda leaf: leaf.numpy(), tree) for tree in self._tensors]
        observed, remembered, begins = self._tensors
        self._ready = nested.map_leaves(lambda leaf: leaf.unsqueeze(0), observed), remembered, begins.unsqueeze(0)

    def filled(self, obs: Nested, state: Nested, reset: Array) -> tuple[Nested, Nested, torch.Tensor]:
        """Observation and reset [1, K, …] and state [K, …]."""
        for target, source in zip(self._arrays, (obs, state, reset), strict=True):
            nested.assign(target, slice(self._size), source)
        if self._device.type == "cpu":
            return self._ready
        observed, remembered, begins = self._ready
        moved = [nested.map_leaves(lambda leaf: leaf.to(self._device), tree) for tree in (observed, remembered, begins)]
        return moved[0], moved[1], moved[2]


def _torch_dtype(array: Array) -> torch.dtype:
    return torch.from_numpy(array[:0]).dtype
