"""The last action and reward are shown with the observation that followed them, and zeros with the first."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import test_group_contract as contract
import test_restore_contract as restoring
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill import nested
from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import make_group
from rollmill.envs.preprocessing import PreviousGroup, StackedGroup
from rollmill.errors import Refused

CONFIGS = {
    "CartPole": EnvConfig(id="CartPole-v1", previous=True),
    "Pendulum": EnvConfig(id="Pendulum-v1", time_limit=9, previous=True),
    "multi-identity": EnvConfig(id="probe/multi-identity", previous=True),
    "stacked dict": EnvConfig(id="probe/dict", frame_stack=3, previous=True),
    "stacked tracer": EnvConfig(id="probe/tracer", frame_stack=2, previous=True),
}
WITH_SNAPSHOTS = ("CartPole", "stacked tracer")
CLAIMS = [
    contract.test_observations_have_the_shape_and_dtype_of_the_spec,
    contract.test_results_are_raw_float64_rewards_and_bool_flags,
    contract.test_seed_and_actions_reproduce_an_episode_at_any_index_and_size,
    contract.test_seeds_differ,
    contract.test_the_final_observation_stays_until_the_reset_and_stepping_it_is_an_error,
    contract.test_stepping_before_the_first_reset_is_an_error,
    contract.test_inactive_environments_are_not_stepped,
]


class Counter(gym.Env):
    """The observation is the seed plus the steps, the reward half of that; three steps; raises on action `bad`."""

    observation_space = gym.spaces.Box(0, 255, (1,), np.float32)

    def __init__(self, action_space, bad=None):
        self.action_space, self.bad = action_space, bad

    def reset(self, *, seed=None, options=None):
        self.now, self.count = float(seed), 0
        return np.array([self.now], np.float32), {}

    def step(self, action):
        if self.bad is not None and np.array_equal(action, self.bad):
            raise OSError("broken pipe")
        self.now, self.count = self.now + 1, self.count + 1
        return np.array([self.now], np.float32), self.now / 2, self.count == 3, False, {"count": self.count}


def counting(action_space, size=2, **args):
    group = PreviousGroup(GymGroup("counter", lambda: Counter(action_space, **args), size))
    group.reset(np.ones(size, bool), np.arange(1, size + 1) * 10)
    return group


def shown(group, k):
    obs = group.obs
    return obs["observation"][k].tolist(), obs["previous_action"][k].tolist(), obs["previous_reward"][k].tolist()


def step(group, actions, *active):
    return group.step(np.array(actions), np.array(active, bool))


def test_the_last_action_is_part_of_what_followed_until_the_reset():
    group = counting(gym.spaces.Discrete(3))
    assert shown(group, 0) == ([10], [0, 0, 0], [0])
    step(group, [2, 1], 1, 1)
    assert shown(group, 0) == ([11], [0, 0, 1], [5.5])  # 11 / 2
    assert shown(group, 1) == ([21], [0, 1, 0], [10.5])
    step(group, [0, 0], 1, 0)
    assert shown(group, 0) == ([12], [1, 0, 0], [6])
    assert shown(group, 1) == ([21], [0, 1, 0], [10.5])  # it was not active
    assert step(group, [1, 0], 1, 0).terminated.tolist() == [True, False]
    assert shown(group, 0) == ([13], [0, 1, 0], [6.5])  # the true final one
    group.reset(np.array([True, False]), np.array([50, 60]))
    assert shown(group, 0) == ([50], [0, 0, 0], [0])
    assert shown(group, 1) == ([21], [0, 1, 0], [10.5])


def test_several_choices_are_shown_one_after_the_other():
    group = counting(gym.spaces.MultiDiscrete([3, 2, 3]))
    step(group, [[2, 0, 1], [0, 1, 2]], 1, 1)
    assert group.obs["previous_action"].tolist() == [[0, 0, 1, 1, 0, 0, 1, 0], [1, 0, 0, 0, 1, 0, 0, 1]]


def test_a_choice_that_counts_from_elsewhere_is_shown_as_the_agent_stores_it():
    group = counting(gym.spaces.Discrete(3, start=7))
    step(group, [0, 2], 1, 1)
    assert group.obs["previous_action"].tolist() == [[1, 0, 0], [0, 0, 1]]


def test_values_are_shown_as_the_environment_took_them_and_zero_is_within_the_bounds():
    group = counting(gym.spaces.Box(np.array([[1, -3]], np.float32), np.array([[2, 4]], np.float32)))
    step(group, np.array([[[1.5, 9]], [[0, -1]]], np.float32), 1, 1)
    assert group.obs["previous_action"].tolist() == [[1.5, 4], [1, -1]]  # clipped to 1..2 and -3..4
    space = group.observation_space["previous_action"]
    assert (space.low.tolist(), space.high.tolist()) == ([0, -3], [2, 4])


def test_a_dict_keeps_its_keys_and_a_tuple_gets_those_of_its_spec():
    group = make_group(CONFIGS["stacked dict"], 1)
    assert sorted(group.obs) == ["body", "image", "previous_action", "previous_reward"]
    env = Counter(gym.spaces.Discrete(2))
    env.observation_space = gym.spaces.Tuple((gym.spaces.Discrete(4), gym.spaces.Discrete(5)))
    group = PreviousGroup(GymGroup("pair", lambda: env, 1))
    assert list(group.observation_spec) == ["0", "1", "previous_action", "previous_reward"]


def test_a_part_of_that_name_is_refused():
    env = Counter(gym.spaces.Discrete(2))
    env.observation_space = gym.spaces.Dict({"previous_reward": Counter.observation_space})
    with pytest.raises(Refused, match=r"env.previous=true: .* already has a part 'previous_reward'; remove"):
        PreviousGroup(GymGroup("twice", lambda: env, 1))


def test_a_row_that_breaks_shows_what_it_showed():
    group = counting(gym.spaces.Discrete(3), bad=2)
    step(group, [1, 1], 1, 1)
    before = shown(group, 1)
    step(group, [0, 2], 1, 1)
    assert group.broken.tolist() == [False, True]
    assert shown(group, 1) == before
    assert shown(group, 0)[1] == [1, 0, 0]


def test_the_rest_comes_from_the_group_underneath():
    group = counting(gym.spaces.Discrete(2))
    step(group, [0, 1], 1, 0)
    assert [group.info(k) for k in range(2)] == [{"count": 1}, {}]
    assert (group.frame_rate, group.frame_skip) == (group.inner.frame_rate, group.inner.frame_skip)
    picture = PreviousGroup(GymGroup("drawn", lambda: gym.make("CartPole-v1", render_mode="rgb_array"), 1))
    picture.reset(np.ones(1, bool), np.zeros(1, int))
    np.testing.assert_array_equal(picture.render(0), picture.inner.render(0))
    picture.close()


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.__name__.removeprefix("test_"))
@pytest.mark.parametrize("name", CONFIGS)
def test_the_contract_of_groups(name, claim):
    claim(CONFIGS[name])


def test_a_masked_reset_touches_only_the_masked_rows():
    contract.test_a_masked_reset_touches_only_the_masked_rows(CONFIGS["CartPole"])


@pytest.mark.parametrize("name", WITH_SNAPSHOTS)
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), past=st.integers(0, 40))
def test_a_snapshot_continues_identically_in_a_fresh_group(name, seed, past):
    restoring.assert_equal_futures(CONFIGS[name], seed, past, 15, by_snapshot=True)


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"stacked tracer"}))  # it counts its instance's episodes
@settings(max_examples=5)
@given(seed=st.integers(0, 2**31), past=st.integers(0, 40))
def test_seed_and_actions_continue_identically_in_a_fresh_group(name, seed, past):
    restoring.assert_equal_futures(CONFIGS[name], seed, past, 10, by_snapshot=False)


def test_a_snapshot_of_the_group_underneath_or_a_spoilt_one_is_a_value_error():
    group = make_group(CONFIGS["CartPole"], 1)
    group.reset(np.ones(1, bool), np.zeros(1, int))
    good = group.snapshot(0)
    assert len(good) == group.snapshot_size
    for bad in (b"", good[:-1], good[:-1] + b"?", group.inner.snapshot(0)):
        with pytest.raises(ValueError, match="snapshot"):
            group.restore(0, bad)
    group.restore(0, good)


def test_without_snapshots_underneath_there_are_none():
    group = make_group(CONFIGS["multi-identity"], 1)
    group.reset(np.ones(1, bool), np.zeros(1, int))
    assert (group.snapshot_size, group.snapshot(0)) == (0, b"")


def test_observations_lie_in_the_space():
    for config in CONFIGS.values():
        group = make_group(config, 2)
        group.reset(np.ones(2, bool), np.arange(2))
        for _ in range(2):
            for name in ("previous_action", "previous_reward"):
                assert all(group.observation_space[name].contains(row) for row in group.obs[name])
            result = group.step(random_actions(group.action_space, 2, np.random.default_rng(0)), np.ones(2, bool))
            if (result.terminated | result.truncated).any():
                break
        group.close()


def test_it_is_outside_the_frame_stack():
    group = make_group(CONFIGS["stacked tracer"], 2)
    assert isinstance(group.inner, StackedGroup)
    assert {path: leaf.shape for path, leaf in nested.leaves(group.obs)}["previous_reward"] == (2, 1)
