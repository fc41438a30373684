"""The part of a network between observation and heads: features for the policy, features for the value, and memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import gymnasium as gym
from torch import Tensor, nn

from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import CNN
from rollmill.models.inputs import flat_input, is_row_of_floats
from rollmill.models.layers import TwinMLP
from rollmill.models.recurrent import Memory
from rollmill.models.torsos import Torso, build_torso, choose_torso
from rollmill.nested import Nested


class Encoding(NamedTuple):
    """Features of N = T × B steps; `policy` and `value` are one tensor where the torso is shared."""

    policy: Tensor  # [N, F]
    value: Tensor  # [N, F]
    state: Nested  # after the last step; {} without memory


class Encoder(nn.Module):
    """Base of the encoders: what they all have, as it is without memory."""

    out_features: int
    state_spec: Nested  # of ArraySpec, one environment

    def __init__(self) -> None:
        super().__init__()
        self.state_spec = {}

    def initial_state(self, batch: int) -> Nested:
        """The state before an episode's first step, [batch, …]."""
        return {}

    def arrange(self, obs: Nested) -> Nested:
        """The same observations [N, …] in the memory format that is read fastest."""
        return obs

    def observe(self, obs: Nested) -> None:
        """Update the statistics of this encoder with observations [T, B, …]."""


class SharedEncoder(Encoder):
    """One torso for both heads, and after it a memory if there is one."""

    def __init__(self, torso: Torso, memory: Memory | None = None) -> None:
        super().__init__()
        self.torso = torso
        self.memory = memory
        self.out_features = torso.out_features if memory is None else memory.out_features
        self.state_spec = {} if memory is None else memory.state_spec

    def initial_state(self, batch: int) -> Nested:
        """Zeros."""
        return {} if self.memory is None else self.memory.initial_state(batch)

    def forward(self, obs: Nested, state: Nested, reset: Tensor | None) -> Encoding:
        """Features of every step by itself; with memory, of the steps before it in its episode too."""
        features = self.torso(_flattened(obs))
        if self.memory is not None:
            assert reset is not None
            features, state = self.memory(features.view(*reset.shape, -1), state, reset)
            features = features.flatten(0, 1)
        return Encoding(features, features, state)

    def arrange(self, obs: Nested) -> Nested:
        """Images as convolutions read them fastest; with memory, sequences [T, B, …] stay as they are."""
        return self.torso.arrange(obs) if isinstance(self.torso, CNN) and self.memory is None else obs

    def observe(self, obs: Nested) -> None:
        """Images, if they are normalised."""
        self.torso.observe(_flattened(obs))


class SeparateEncoder(Encoder):
    """A torso for the policy and another of the same kind for the value."""

    def __init__(self, policy: Torso, value: Torso) -> None:
        super().__init__()
        self.policy = policy
        self.value = value
        self.out_features = policy.out_features

    def forward(self, obs: Nested, state: Nested, reset: Tensor | None) -> Encoding:
        """Features of every step by itself."""
        flat = _flattened(obs)
        return Encoding(self.policy(flat), self.value(flat), state)

    def observe(self, obs: Nested) -> None:
        """Images, if they are normalised."""
        for torso in (self.policy, self.value):
            torso.observe(_flattened(obs))


class TwinEncoder(Encoder):
    """Separate MLPs for policy and value, computed together."""

    twin: TwinMLP

    def __init__(self, space: gym.Space[Any], config: ModelConfig) -> None:
        super().__init__()
        reader = flat_input(space)
        self.reader = None if is_row_of_floats(space) else reader
        self.twin = TwinMLP(reader.out_features, config.hidden, config.activation)
        self.out_features = self.twin.out_features

    def forward(self, obs: Nested, state: Nested, reset: Tensor | None) -> Encoding:
        """Features of every step by itself."""
        flat = _flattened(obs)
        policy, value = self.twin(flat if self.reader is None else self.reader(flat)).unbind()
        return Encoding(policy, value, state)


def build_encoder(space: gym.Space[Any], config: ModelConfig, *, with_value: bool) -> Encoder:
    """The encoder that the config asks for; without a value there is nothing to separate."""
    if config.memory != "none":
        torso = build_torso(space, config)
        return SharedEncoder(torso, Memory(config.memory, torso.out_features, config.memory_size))
    is_mlp = choose_torso(space, config.torso, bool(config.conv)) == "mlp"
    is_shared = not is_mlp if config.shared is None else config.shared
    if is_shared or not with_value:
        return SharedEncoder(build_torso(space, config))
    if is_mlp:
        return TwinEncoder(space, config)
    return SeparateEncoder(build_torso(space, config), build_torso(space, config))


def _flattened(obs: Nested) -> Nested:
    """[T, B, …] → [N, …] for every leaf."""
    if isinstance(obs, dict):
        return {key: _flattened(value) for key, value in obs.items()}
    return obs.flatten(0, 1)
