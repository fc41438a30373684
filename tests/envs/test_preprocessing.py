"""Frame stacks hold the last frames of their own episode, oldest first."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import make_group
from rollmill.envs.preprocessing import PreviousGroup, StackedGroup
from rollmill.errors import Refused


class Counter(gym.Env):
    """Every number of the observation is seed + step; the episode ends after 3 steps."""

    def __init__(self, shape):
        self.observation_space = gym.spaces.Box(0, 255, shape, np.uint8)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.seed, self.count = seed, 0
        return self.frame(), {}

    def step(self, action):
        self.count += 1
        return self.frame(), 0.0, self.count == 3, False, {}

    def frame(self):
        return np.full(self.observation_space.shape, self.seed + self.count, np.uint8)


def stacked(shape, size=2, count=3):
    return StackedGroup(GymGroup("counter", lambda: Counter(shape), size), count)


class Pair(gym.Env):
    """Two leaves with different axes; the counter's numbers in both."""

    def __init__(self):
        self.parts = {"vector": Counter((2,)), "image": Counter((5, 4, 2))}
        self.observation_space = gym.spaces.Dict({name: part.observation_space for name, part in self.parts.items()})
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {name: part.reset(seed=seed)[0] for name, part in self.parts.items()}, {}

    def step(self, action):
        ends = {name: part.step(action) for name, part in self.parts.items()}
        return {name: end[0] for name, end in ends.items()}, *ends["image"][1:]


MADE = {
    "vector": lambda: stacked((2,)),
    "image": lambda: stacked((5, 4)),
    "channels last": lambda: stacked((5, 4, 2)),
    "dict": lambda: StackedGroup(GymGroup("pair", Pair, 2), 3),
    "with the previous action": lambda: PreviousGroup(stacked((2,))),
    "Pong": lambda: make_group(EnvConfig(id="Pong", group_size=2, time_limit=4)),
}


@pytest.mark.parametrize("name", MADE)
def test_stacks_are_declared_so_that_each_frame_can_be_kept_once(name):
    group = MADE[name]()
    assert group.stacks
    kept = {path: [[], []] for path in group.stacks}  # per environment: the frames of its running episode
    generator, over = np.random.default_rng(1), np.ones(2, bool)
    for _ in range(9):
        group.reset(over, np.array([3, 40]))
        for k in np.flatnonzero(over):
            for path, stack in group.stacks.items():
                kept[path][k] = [stack.newest(dict(nested.leaves(group.obs))[path], 1)[k].copy()] * stack.count
        result = group.step(generator.integers(2, size=2), np.ones(2, bool))
        for path, leaf in nested.leaves(group.obs):
            if (stack := group.stacks.get(path)) is not None:
                for k in range(2):
                    kept[path][k].append(stack.newest(leaf, 1)[k].copy())
                    np.testing.assert_array_equal(stack.join(kept[path][k][-stack.count :]), leaf[k])
        over = result.terminated | result.truncated
    group.close()


def test_nothing_is_declared_without_stacks():
    assert not make_group(EnvConfig(id="CartPole-v1")).stacks
    assert not make_group(EnvConfig(id="Pong", group_size=1, frame_stack=1)).stacks


def step(group, *active):
    return group.step(np.zeros(group.size, np.int64), np.array(active, bool))


@pytest.mark.parametrize(
    ("shape", "expected", "axis"),
    [
        ((2,), (6,), 0),
        ((5, 4), (3, 5, 4), 0),
        ((2, 5, 4), (6, 5, 4), 0),  # channels first
        ((5, 4, 2), (5, 4, 6), 2),  # channels last
    ],
)
def test_each_kind_of_leaf_grows_along_its_own_axis(shape, expected, axis):
    group = stacked(shape)
    assert group.observation_space.shape == group.observation_spec.shape == expected
    group.reset(np.ones(2, bool), np.array([10, 20]))
    step(group, 1, 1)
    step(group, 1, 1)
    width = expected[axis] // 3
    for k, first in enumerate((10, 20)):
        frames = np.moveaxis(group.obs[k], axis, 0).reshape(3, width, -1)
        np.testing.assert_array_equal(frames[:, 0, 0], [first, first + 1, first + 2])
        assert (frames == frames[:, :1, :1]).all()


def test_an_episode_starts_with_its_first_frame_repeated_and_ends_with_its_last():
    group = stacked((1,))
    group.reset(np.ones(2, bool), np.array([10, 20]))
    assert group.obs.tolist() == [[10, 10, 10], [20, 20, 20]]
    step(group, 1, 1)
    step(group, 1, 0)
    assert group.obs.tolist() == [[10, 11, 12], [20, 20, 21]]
    assert step(group, 1, 0).terminated.tolist() == [True, False]
    assert group.obs.tolist() == [[11, 12, 13], [20, 20, 21]]  # the true final stack
    group.reset(np.array([True, False]), np.array([50, 60]))
    assert group.obs.tolist() == [[50, 50, 50], [20, 20, 21]]


def test_bounds_are_stacked_with_the_frames():
    low, high = np.array([0, 1], np.float32), np.array([5, 6], np.float32)
    env = Counter((2,))
    env.observation_space = gym.spaces.Box(low, high)
    space = StackedGroup(GymGroup("counter", lambda: env, 1), 2).observation_space
    assert (space.low.tolist(), space.high.tolist()) == ([0, 1, 0, 1], [5, 6, 5, 6])


def test_what_can_not_be_stacked_is_refused():
    group = GymGroup("Taxi-v4", lambda: gym.make("Taxi-v4"), 1)
    with pytest.raises(Refused, match=r"env.frame_stack=4: observation is Discrete\(500\); .* remove the key"):
        StackedGroup(group, 4)
