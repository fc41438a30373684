"""Rewards in units of the deviation of running returns, as VecNormalize has it, but once per update."""

from __future__ import annotations

import json

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.algorithms.appo import APPOConfig
from rollmill.algorithms.ppo import PPOConfig, PPOUpdate
from rollmill.algorithms.returns import running_returns
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network
from rollmill.models.weights import in_units_of_rewards, weights_of

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


def make_update(gamma=0.9):
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=5, with_reward_statistics=True)
    config = PPOConfig(normalise_rewards=True, gamma=gamma)
    return PPOUpdate(network, build_optimizers(network, config.optimizer_of), config), network


def make_batch(rng, environments, steps=6, first=False):
    columns = len(environments)
    reset = torch.from_numpy(rng.random((steps + 1, columns)) < 0.3)
    if first:
        reset[0] = True
    return {
        "reward": torch.from_numpy(rng.normal(3, 2, (steps, columns)).astype(np.float32)),
        "reset": reset,
        "environment": torch.tensor(environments),
    }


def test_running_returns_are_discounted_sums_that_begin_with_each_episode():
    # gamma ½; column 0 continues from 8: 1 + 4 = 5, 1 + 2.5 = 3.5, then an episode begins: 1, 1 + ½
    # column 1 begins an episode at once: 2, 2 + 1, 2 + 1.5, 2 + 1.75
    reward = np.array([[1, 2]] * 4, np.float32)
    reset = np.array([[False, True], [False, False], [True, False], [False, False]])
    found = running_returns(reward, reset, np.array([8.0, 100.0]), 0.5)
    assert found.T.tolist() == [[5, 3.5, 1, 1.5], [2, 3, 3.5, 3.75]]


def test_rewards_are_divided_by_the_deviation_of_all_running_returns_so_far():
    """Against a plain loop over steps: an environment may be missing, or twice in a batch, one unroll after another."""
    rng, gamma = np.random.default_rng(0), 0.9
    update, network = make_update(gamma)
    running, seen = np.zeros(4), []
    for environments in ([0, 1, 2, 3], [0, 2, 3], [1, 1, 3, 0], [3, 2, 1, 0, 3, 3]):
        batch = make_batch(rng, environments)
        for column, environment in enumerate(environments):
            for t in range(6):
                if batch["reset"][t, column]:
                    running[environment] = 0.0
                running[environment] = gamma * running[environment] + float(batch["reward"][t, column])
                seen.append(running[environment])
        scaled, metrics = update._rewards(batch)
        deviation = np.sqrt(np.var(seen) + 1e-8)
        np.testing.assert_allclose(scaled["reward"], batch["reward"] / deviation, rtol=1e-5)
        assert metrics["return_deviation"] == pytest.approx(deviation, rel=1e-6)
    assert float(network.reward_statistics.count) == len(seen)


def test_a_huge_reward_is_clipped_to_ten():
    update, _ = make_update()
    batch = make_batch(np.random.default_rng(1), list(range(64)), steps=32, first=True)
    batch["reward"][3, 5] = -1e6
    assert float(update._rewards(batch)[0]["reward"].min()) == -10


def test_what_is_carried_over_survives_a_checkpoint_to_the_bit():
    rng = np.random.default_rng(2)
    first, second = make_batch(rng, [0, 1, 2]), make_batch(rng, [0, 1, 2])
    update, network = make_update()
    update._rewards(first)
    resumed, other = make_update()
    other.load_state_dict(network.state_dict())
    resumed.restore(*json.loads(json.dumps(update.capture())))
    expected = update._rewards(second)[0]["reward"]
    assert torch.equal(resumed._rewards(second)[0]["reward"], expected)
    forgetful, other = make_update()
    other.load_state_dict({**network.state_dict()})
    assert not torch.equal(forgetful._rewards(second)[0]["reward"], expected)


def test_the_statistics_are_part_of_the_hash_and_only_where_they_are_used():
    _, network = make_update()
    assert "reward_statistics.var" in weights_of(network)
    plain = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=5)
    assert not any(name.startswith("reward_statistics") for name in weights_of(plain))


def test_weights_go_to_a_network_without_statistics_in_units_of_rewards():
    # a deviation of 3 of the old run's returns: values of 2 there are values of 6 in rewards; a mean changes nothing
    _, network = make_update()
    plain = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=5)
    network.reward_statistics.count.fill_(10)
    network.reward_statistics.mean.fill_(7)
    network.reward_statistics.var.fill_(9)
    obs = torch.zeros(1, 4, 3)
    before = network(obs, {}, None).value
    moved = in_units_of_rewards(weights_of(network), weights_of(plain))
    plain.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in moved.items()})
    torch.testing.assert_close(plain(obs, {}, None).value, 3 * before)


def test_rewards_and_returns_are_not_normalised_both():
    with pytest.raises(ValueError, match=r"algorithm.normalise_rewards=true and algorithm.normalise_returns=true"):
        APPOConfig(normalise_rewards=True, normalise_returns=True)
