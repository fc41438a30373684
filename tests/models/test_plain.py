"""Acting without torch agrees with the network."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.algorithms.policy import PolicyContext, StochasticPolicy
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network
from rollmill.models.plain import plain_network

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (5,)), gym.spaces.Discrete(3)


def make(**model):
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(**model), seed=4)
    with torch.no_grad():  # initial policies are nearly uniform, which would hide a wrong one
        network.policy.weight.mul_(300)
    return network


@pytest.mark.parametrize("model", [{}, {"hidden": (16, 8, 4)}, {"activation": "relu"}], ids=str)
def test_it_agrees_with_torch(model):
    network = make(**model)
    plain = plain_network(network, 6)
    assert plain is not None
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(6, 5)).astype(np.float32)
    noise = network.distribution.draw_noise(rng, (6,))
    with torch.no_grad():
        output = network(torch.from_numpy(obs)[None], {}, None)
    for given in (noise, None):
        action, log_prob, value = plain.decide(obs, given)
        params = output.params[0]
        wanted = network.distribution.mode(params if given is None else params + torch.from_numpy(noise))
        assert action.tolist() == wanted.tolist()
        wanted_log_prob = network.distribution.log_prob(params, wanted)
        np.testing.assert_allclose(log_prob, wanted_log_prob, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(value, output.value[0], rtol=1e-5, atol=1e-6)
    assert len(set(plain.decide(obs, noise)[0].tolist())) > 1, "a constant policy would prove nothing"


def test_it_sees_weights_that_are_loaded_later():
    network, other = make(), build_network(OBSERVATIONS, ACTIONS, ModelConfig(), seed=9)
    plain = plain_network(network, 4)
    obs = np.ones((4, 5), np.float32)
    before = plain.decide(obs, None)[2].copy()
    network.load_state_dict(other.state_dict())
    np.testing.assert_array_equal(plain.decide(obs, None)[2], plain_network(other, 4).decide(obs, None)[2])
    assert not np.allclose(before, plain.decide(obs, None)[2])


@pytest.mark.parametrize(
    "model",
    [
        {"normalise_observations": True},
        {"memory": "gru"},
        {"shared": True},
        {"activation": "elu"},
        {"hidden": (512, 512)},
    ],
    ids=str,
)
def test_what_it_can_not_do_is_left_to_torch(model):
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(**model), seed=4)
    assert plain_network(network, 8) is None


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_torch_is_asked_for_exactly_the_rows_of_the_group(size):
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(shared=True), seed=4)
    obs = np.random.default_rng(1).normal(size=(size, 5)).astype(np.float32)
    asked = []
    network.register_forward_pre_hook(lambda module, arguments: asked.append(arguments[0].shape))
    decision = StochasticPolicy(network, PolicyContext(None, size)).act(obs, {}, np.zeros(size, bool), None)
    assert asked == [(1, size, 5)]
    with torch.inference_mode():
        expected = network(torch.from_numpy(obs)[None], {}, torch.zeros(1, size, dtype=torch.bool))
    np.testing.assert_array_equal(decision.records["value"], expected.value[0])


def test_many_actions_are_left_to_torch():
    network = build_network(OBSERVATIONS, gym.spaces.Discrete(4000), ModelConfig(), seed=4)
    assert plain_network(network, 4) is None, "the policy head alone is a product large enough for several threads"
