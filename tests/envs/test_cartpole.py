"""The native CartPole is gymnasium's CartPole, to the last bit."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill_envs.cartpole import CartPoleGroup


def balance(obs, noise):
    """A controller that mostly keeps the pole up, so that truncations occur beside falls."""
    return ((obs[:, 2] + 0.3 * obs[:, 3] + 0.05 * obs[:, 0] + 0.1 * obs[:, 1] + noise) > 0).astype(np.int64)


@pytest.mark.parametrize(("env_id", "limit"), [("CartPole-v1", 500), ("CartPole-v0", 200)])
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.filterwarnings("ignore:.*out of date")
def test_it_is_bit_equal_to_gymnasium_through_falls_truncations_and_masked_resets(env_id, limit, size):
    group = CartPoleGroup(size, limit)
    peers = [gym.make(env_id) for _ in range(size)]
    draw = np.random.default_rng(size)
    seeds = draw.integers(2**31, size=size)
    falls = truncations = 0
    over = np.ones(size, bool)
    for step in range(1500):
        group.reset(over, seeds)
        for k in np.flatnonzero(over):
            observation, _ = peers[k].reset(seed=int(seeds[k]))
            np.testing.assert_array_equal(group.obs[k], observation)
        seeds = draw.integers(2**31, size=size)
        # environment 0 is steady and reaches the limit; the others are pushed around and fall now and then
        noise = draw.normal(0, [0.02] + [0.6] * (size - 1)) if step < 1000 else draw.normal(0, 2.0, size)
        action = balance(group.obs, noise)
        active = draw.random(size) < 0.9
        result = group.step(action, active)
        for k in np.flatnonzero(active):
            observation, reward, terminated, truncated, _ = peers[k].step(action[k])
            np.testing.assert_array_equal(group.obs[k], observation)
            assert (result.reward[k], result.terminated[k], result.truncated[k]) == (reward, terminated, truncated)
        falls += result.terminated.sum()
        truncations += result.truncated.sum()
        over = result.terminated | result.truncated
        state = np.array([peer.unwrapped.state for peer in peers]).T
        np.testing.assert_array_equal(group._state, state)  # float64: the observation would hide the last 29 bits
    assert falls > 5
    assert truncations >= 1


def test_spaces_equal_gymnasiums():
    group, peer = CartPoleGroup(2), gym.make("CartPole-v1")
    assert group.observation_space == peer.observation_space
    assert group.action_space == peer.action_space


def test_a_truncation_flag_does_not_linger_while_other_rows_are_old():
    # limit 4; row 0 starts two steps after row 1, so row 1 is cut first, while row 0 stays below the limit
    group = CartPoleGroup(2, time_limit=4)
    group.reset(np.array([True, True]), np.array([0, 1]))
    action, everyone = np.array([0, 1]), np.ones(2, bool)
    for _ in range(2):
        group.step(action, np.array([False, True]))
    group.step(action, everyone)
    assert group.step(action, everyone).truncated.tolist() == [False, True]
    group.reset(np.array([False, True]), np.array([0, 2]))
    assert group.step(action, everyone).truncated.tolist() == [False, False]
    assert group.step(action, everyone).truncated.tolist() == [True, False]
