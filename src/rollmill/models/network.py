"""The whole network: normaliser, encoder, policy head and value head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill import nested
from rollmill.models import initialise
from rollmill.models.config import ModelConfig
from rollmill.models.custom import build_custom
from rollmill.models.distributions import ActionDistribution, DiagonalGaussian, distribution_for
from rollmill.models.encoders import Encoder, build_encoder
from rollmill.models.normaliser import ObservationNormaliser, RunningStatistics
from rollmill.nested import Nested
from rollmill.spaces import ActionScale, action_scale


class Model(nn.Module):
    """What every algorithm's network has: policy and value, Q-values, an actor with critics.

    A base class and not a protocol, because it must be a torch module. Only the policy and the update rule of a recipe
    call its `forward`.
    """

    state_spec: Nested  # layout of the recurrent state of one environment; {} without memory
    scale: ActionScale | None = None  # from its actions to the environment's; None: they are the same

    @property
    def is_recurrent(self) -> bool:
        """Whether it has a state from one step to the next."""
        return bool(self.state_spec)

    def initial_state(self, batch: int) -> Nested:
        """The state before an episode's first step, [batch, …]; {} without memory."""
        return {}

    def parameter_groups(self) -> Mapping[str, list[nn.Parameter]]:
        """The trainable parameters by group. Each group has its own optimiser."""
        return {"all": [parameter for parameter in self.parameters() if parameter.requires_grad]}

    def published(self) -> Mapping[str, Tensor]:
        """The parameters and buffers that actors need, by name in `state_dict`; critics can be left out."""
        return self.state_dict()


class NetworkOutput(NamedTuple):
    """A network's outputs for T × B steps."""

    params: Tensor  # [T, B, P], parameters of the action distribution
    value: Tensor | None  # [T, B]; None for a network without value head
    state: Nested  # [B, …] after the last step; {} without memory


class PolicyHead(nn.Linear):
    """The policy's last layer; for a Gaussian it gives the mean, and the deviation is a parameter of its own."""

    log_std: Tensor | None

    def __init__(self, features: int, distribution: ActionDistribution, initial_log_std: float) -> None:
        if isinstance(distribution, DiagonalGaussian):
            super().__init__(features, distribution.size)
            self.log_std = nn.Parameter(torch.full((distribution.size,), initial_log_std))
        else:
            super().__init__(features, distribution.parameter_count)
            self.log_std = None

    def forward(self, features: Tensor) -> Tensor:
        """[N, F] → [N, P]."""
        outputs = F.linear(features, self.weight, self.bias)
        log_std = self.log_std
        return outputs if log_std is None else torch.cat((outputs, log_std.expand_as(outputs)), -1)


class Network(Model):
    """Policy and value of every step of [T, B] observations; the same for acting (T = 1) and for learning."""

    def __init__(
        self,
        encoder: Encoder,
        policy: PolicyHead,
        value: nn.Linear | None,
        normaliser: ObservationNormaliser | None,
        distribution: ActionDistribution,
        setting: str,
        return_statistics: RunningStatistics | None = None,
        reward_statistics: RunningStatistics | None = None,
        scale: ActionScale | None = None,
    ) -> None:
        super().__init__()
        self.normaliser = normaliser
        self.encoder = encoder
        self.policy = policy
        self.value = value
        self.return_statistics = return_statistics  # in whose units an algorithm may let the value head predict
        self.reward_statistics = reward_statistics  # of running returns, by whose deviation rewards may be divided
        self.distribution = distribution
        self.scale = scale  # from its actions to the environment's; None: they are the same
        self.setting = setting  # how refusals name this model
        self.is_custom = False  # the encoder is a user's
        self.state_spec = encoder.state_spec

    def forward(self, obs: Nested, state: Nested, reset: Tensor | None) -> NetworkOutput:
        """Observations [T, B, …], the state before the first of them, and where episodes begin.

        Without memory `reset` has no effect and may be None.
        """
        leaf = obs if isinstance(obs, Tensor) else nested.first_leaf(obs)
        steps, batch = leaf.shape[:2]
        if self.normaliser is not None:
            obs = self.normaliser(obs)
        policy_features, value_features, state = self.encoder(obs, state, reset)
        params = self.policy(policy_features).view(steps, batch, -1)
        value_head = self.value
        value = None if value_head is None else value_head(value_features).view(steps, batch)
        return NetworkOutput(params, value, state)

    def initial_state(self, batch: int) -> Nested:
        """The state before an episode's first step, [batch, …]; {} without memory."""
        return self.encoder.initial_state(batch)

    def arrange(self, obs: Nested) -> Nested:
        """The same observations [N, …] in the encoder's memory format; worth it for data that is read several times."""
        return self.encoder.arrange(obs)

    @torch.no_grad()
    def observe_returns(self, returns: Tensor) -> None:
        """Update the return statistics with value targets [N], without changing the values in reward units.

        The value head is corrected as in PopArt (van Hasselt et al. 2016). Otherwise values would grow with the
        deviation, the targets that they are part of with them, and the deviation with those.
        """
        statistics, value = self.return_statistics, self.value
        assert statistics is not None
        assert value is not None
        old_mean, old = statistics.mean.clone(), statistics.deviation
        statistics.update(returns.unsqueeze(0))
        mean, deviation = statistics.mean, statistics.deviation
        value.weight.mul_((old / deviation).float())
        value.bias.copy_((value.bias * old + old_mean - mean) / deviation)

    def observe(self, obs: Nested) -> None:
        """Update the observation statistics with observations [T, B, …]."""
        if self.normaliser is not None:
            self.normaliser.update(obs)
        self.encoder.observe(obs)


def build_network(
    observation_space: gym.Space[Any],
    action_space: gym.Space[Any],
    config: ModelConfig,
    *,
    seed: int,
    with_value: bool = True,
    with_return_statistics: bool = False,
    with_reward_statistics: bool = False,
    zero_last_layer: bool = False,
) -> Network:
    """The freshly initialised network; all its randomness comes from `seed`.

    `zero_last_layer` is the algorithm's default, which the config may override.
    """
    distribution = distribution_for(action_space)
    with initialise.reproducible(seed):
        if config.is_custom:
            encoder: Encoder = build_custom(observation_space, action_space, config)
        else:
            encoder = build_encoder(observation_space, config, with_value=with_value)
        network = Network(
            encoder,
            PolicyHead(encoder.out_features, distribution, config.initial_log_std),
            nn.Linear(encoder.out_features, 1) if with_value else None,
            ObservationNormaliser(observation_space) if config.normalise_observations else None,
            distribution,
            config.setting,
            RunningStatistics(()) if with_return_statistics else None,
            RunningStatistics(()) if with_reward_statistics else None,
            action_scale(action_space) if config.rescale_actions else None,
        )
        if config.initialisation == "orthogonal":
            generator = torch.Generator().manual_seed(seed)
            if not config.is_custom:  # a user's model initialises itself
                initialise.orthogonal(network.encoder, initialise.HIDDEN_GAIN, generator)
            initialise.orthogonal(network.policy, initialise.POLICY_GAIN, generator)
            if network.value is not None:
                initialise.orthogonal(network.value, initialise.VALUE_GAIN, generator)
    if zero_last_layer if config.zero_last_layer is None else config.zero_last_layer:
        nn.init.zeros_(network.policy.weight)
        nn.init.zeros_(network.policy.bias)
    network.is_custom = config.is_custom
    return network


def shorten_lookups(network: Network) -> None:
    """Make parts and parameters plain attributes too: a decision for 8 environments takes a fifth less time.

    Only for the network of a policy: `torch.func.functional_call` would not replace such parameters.

    Torch finds them only by a fallback after an ordinary look-up has failed. Moving, loading and copying a module keep
    its parameters in place, so both ways lead to the same tensor; buffers are replaced when moved and are left alone.
    """
    if network.is_custom:  # a user's model may rely on torch's look-up
        return
    for part in network.modules():
        vars(part).update(part._modules)
        vars(part).update(part._parameters)
