"""The contract of `EnvGroup`, one body for every implementation."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill import nested
from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import AtariConfig, EnvConfig
from rollmill.envs.make import make_group
from rollmill.types import lead

CONFIGS = {
    "native CartPole": EnvConfig(id="CartPole-v1"),
    "gymnasium CartPole": EnvConfig(id="CartPole-v1", args={"sutton_barto_reward": True}),
    "Pendulum": EnvConfig(id="Pendulum-v1", time_limit=9),
    "tracer": EnvConfig(id="probe/tracer"),
    "identity": EnvConfig(id="probe/identity"),
    "multi-identity": EnvConfig(id="probe/multi-identity"),
    "dict": EnvConfig(id="probe/dict"),
    "continuous": EnvConfig(id="probe/continuous", args={"dims": 2}),
    "delayed reward": EnvConfig(id="probe/delayed-reward"),
    "memory cue": EnvConfig(id="probe/memory-cue"),
    "Pong": EnvConfig(id="ALE/Pong-v5", time_limit=12, atari=AtariConfig(noop_max=8, sticky=0.25)),
    "stacked dict": EnvConfig(id="probe/dict", frame_stack=3),
    "stacked CartPole": EnvConfig(id="CartPole-v1", frame_stack=2),
}
HORIZON = 40  # every task above ends an episode within it under the actions drawn here, CartPole included


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


def rows(*flags):
    return np.array(flags, bool)


def snapshot(tree):
    return nested.map_leaves(np.copy, tree)


def assert_equal(left, right):
    for (path, a), (_, b) in zip(nested.leaves(left), nested.leaves(right), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=path)


def play(config, size, index, seed, companions=100):
    """One episode in row `index` among others: its observations, rewards and flags."""
    group = make_group(config, size)
    everyone = np.ones(size, bool)
    seeds = np.arange(companions, companions + size)
    seeds[index] = seed
    group.reset(everyone, seeds)
    actions = np.random.default_rng(seed)
    others = np.random.default_rng(companions)
    story = [snapshot(nested.index(group.obs, index))]
    for _ in range(HORIZON):
        action = random_actions(group.action_space, size, others)
        action[index] = random_actions(group.action_space, 1, actions)[0]
        result = group.step(action, everyone)
        reward, terminated, truncated = (array[index].item() for array in result)
        story.append((snapshot(nested.index(group.obs, index)), reward, terminated, truncated))
        over = result.terminated | result.truncated
        if over[index]:
            break
        group.reset(over, np.arange(size) + companions)
    group.close()
    return story


def test_observations_have_the_shape_and_dtype_of_the_spec(config):
    group = make_group(config, 3)
    group.reset(np.ones(3, bool), np.arange(3))
    group.step(random_actions(group.action_space, 3, np.random.default_rng(0)), np.ones(3, bool))
    expected = dict(nested.leaves(lead(group.observation_spec, 3)))
    for path, leaf in nested.leaves(group.obs):
        assert (leaf.shape, leaf.dtype.name) == (expected[path].shape, expected[path].dtype)
    group.close()


def test_results_are_raw_float64_rewards_and_bool_flags(config):
    group = make_group(config, 2)
    group.reset(np.ones(2, bool), np.arange(2))
    result = group.step(random_actions(group.action_space, 2, np.random.default_rng(0)), np.ones(2, bool))
    assert [a.dtype.name for a in result] == ["float64", "bool", "bool"]
    assert [a.shape for a in result] == [(2,)] * 3
    group.close()


def test_a_masked_reset_touches_only_the_masked_rows(config):
    group = make_group(config, 3)
    everyone = np.ones(3, bool)
    actions = np.random.default_rng(0)
    group.reset(everyone, np.array([1, 2, 1]))
    result = group.step(random_actions(group.action_space, 3, actions), everyone)
    before = snapshot(group.obs)
    group.reset(rows(0, 1, 0), np.array([7, 7, 7]))
    fresh = make_group(config, 1)
    fresh.reset(rows(1), np.array([7]))
    for index in (0, 2):
        assert_equal(nested.index(group.obs, index), nested.index(before, index))
    if config.id == "probe/tracer":  # it counts the episodes of its instance, and this is the second
        fresh.obs[0, 2] += 1
    assert_equal(nested.index(group.obs, 1), nested.index(fresh.obs, 0))
    running = ~(result.terminated | result.truncated) | rows(0, 1, 0)
    group.step(random_actions(group.action_space, 3, actions), running)  # all three can go on
    group.close()


def test_seed_and_actions_reproduce_an_episode_at_any_index_and_size(config):
    alone = play(config, size=1, index=0, seed=5)
    among = play(config, size=4, index=2, seed=5, companions=300)
    assert len(alone) == len(among)
    assert_equal(alone[0], among[0])
    for (obs, *numbers), (other_obs, *other_numbers) in zip(alone[1:], among[1:], strict=True):
        assert numbers == other_numbers
        assert_equal(obs, other_obs)


def test_seeds_differ(config):
    group = make_group(config, 8)
    everyone = np.ones(8, bool)
    group.reset(everyone, np.arange(8))
    seen = [snapshot(group.obs)]
    action = random_actions(group.action_space, 1, np.random.default_rng(0)).repeat(8, axis=0)  # the same for all
    group.step(action, everyone)
    seen.append(snapshot(group.obs))
    stories = {b"".join(leaf[k].tobytes() for tree in seen for _, leaf in nested.leaves(tree)) for k in range(8)}
    assert len(stories) >= 2  # two cues are all that the smallest probes draw from
    group.close()


def test_the_final_observation_stays_until_the_reset_and_stepping_it_is_an_error(config):
    group = make_group(config, 2)
    actions = np.random.default_rng(5)
    group.reset(rows(1, 1), np.array([5, 5]))
    for _ in range(HORIZON):
        action = random_actions(group.action_space, 2, actions)
        action[1] = action[0]  # twins
        result = group.step(action, rows(1, 1))
        if (result.terminated | result.truncated).any():
            break
    assert (result.terminated | result.truncated).all()
    final = snapshot(group.obs)
    assert_equal(nested.index(final, 0), nested.index(final, 1))
    with pytest.raises(RuntimeError, match="environment 1 was stepped without a running episode"):
        group.step(action, rows(0, 1))
    group.reset(rows(1, 0), np.array([8, 8]))
    result = group.step(random_actions(group.action_space, 2, actions), rows(1, 0))
    assert_equal(nested.index(group.obs, 1), nested.index(final, 1))
    assert (result.reward[1], result.terminated[1], result.truncated[1]) == (0.0, False, False)  # it ends only once
    with pytest.raises(RuntimeError, match="environment 1 was stepped"):  # the other row's reset was not its own
        group.step(action, rows(0, 1))
    group.close()


def test_stepping_before_the_first_reset_is_an_error(config):
    group = make_group(config, 2)
    with pytest.raises(RuntimeError, match="without a running episode"):
        group.step(random_actions(group.action_space, 2, np.random.default_rng(0)), rows(1, 1))
    group.close()


def test_inactive_environments_are_not_stepped(config):
    group = make_group(config, 2)
    actions = np.random.default_rng(3)
    group.reset(rows(1, 1), np.array([9, 9]))
    at_start = snapshot(nested.index(group.obs, 0))
    first = random_actions(group.action_space, 2, actions)
    first[1] = first[0]
    result = StepCopy(group.step(first, rows(0, 1)))
    assert_equal(nested.index(group.obs, 0), at_start)
    assert (result.reward[0], result.terminated[0], result.truncated[0]) == (0.0, False, False)
    ahead = snapshot(nested.index(group.obs, 1))
    late = group.step(first, rows(1, 0))  # row 0 now does what row 1 did before it
    assert_equal(nested.index(group.obs, 0), ahead)
    assert (late.reward[0], late.terminated[0], late.truncated[0]) == (
        result.reward[1],
        result.terminated[1],
        result.truncated[1],
    )
    group.close()


class StepCopy:
    """A result that outlives the next call."""

    def __init__(self, result):
        self.reward, self.terminated, self.truncated = (array.copy() for array in result)
