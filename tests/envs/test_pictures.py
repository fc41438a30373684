"""Pictures, info and single environments: what groups offer besides playing."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import NoPicture, even_sided
from rollmill.envs.make import make_group
from rollmill.envs.player import base_group
from rollmill.envs.single import make_env
from rollmill.errors import Refused

ONE = np.ones(1, bool)


class Drawn(gym.Env):
    """Draws its step count, in a picture of odd sides, if its render mode says so."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, render_mode=None):
        self.render_mode = render_mode
        self.observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self._steps = 0
        return np.zeros(1, np.float32), {"steps": 0}

    def step(self, action):
        self._steps += 1
        return np.zeros(1, np.float32), 0.0, False, False, {"steps": self._steps}

    def render(self):
        return None if self.render_mode is None else np.full((5, 3, 3), self._steps, np.uint8)


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setattr("rollmill.envs.make.load_object", lambda *_: Drawn)
    return EnvConfig(id="here:Drawn", group_size=1)


@pytest.mark.parametrize(
    ("config", "shape", "rate"),
    [
        (EnvConfig(id="CartPole-v1"), (400, 600, 3), 50),
        (EnvConfig(id="ALE/Pong-v5"), (210, 160, 3), 15),
        (EnvConfig(id="CartPole-v1", frame_stack=2, previous=True), (400, 600, 3), 50),
    ],
)
def test_a_picture_changes_during_the_game(config, shape, rate):
    group = make_group(config, 1, pictures=True)
    group.reset(ONE, np.array([3]))
    before = group.render(0).copy()
    for t in range(20):
        group.step(np.array([t % 2]), ONE)
    assert before.shape == shape
    assert before.dtype == np.uint8
    assert group.frame_rate == rate
    assert (group.render(0) != before).any()


def test_the_episodes_of_a_group_with_pictures_are_those_without():
    plain, pictured = (make_group(EnvConfig(id="CartPole-v1"), 2, pictures=pictures) for pictures in (False, True))
    everyone, seeds = np.ones(2, bool), np.array([5, 6])
    for group in (plain, pictured):
        group.reset(everyone, seeds)
    for action in ([0, 1], [1, 1], [0, 0]):
        for group in (plain, pictured):
            group.step(np.array(action), everyone)
    np.testing.assert_array_equal(plain.obs, pictured.obs)


def test_your_own_environment_gets_a_render_mode_and_its_sides_become_even(drawn):
    group = make_group(drawn, pictures=True)
    group.reset(ONE, np.array([0]))
    group.step(np.zeros(1, np.int64), ONE)
    assert group.render(0).shape == (6, 4, 3)
    assert (group.render(0) == 1).all()
    assert group.frame_rate == 7
    assert group.info(0) == {"steps": 1}


def test_without_a_render_mode_it_has_no_picture(drawn):
    group = make_group(drawn)
    group.reset(ONE, np.array([0]))
    with pytest.raises(NoPicture, match="render\\(\\) gives nothing"):
        group.render(0)


def test_an_environment_that_cannot_draw_is_named():
    group = make_group(EnvConfig(id="probe/identity"), 1, pictures=True)
    group.reset(ONE, np.array([0]))
    with pytest.raises(NoPicture, match="probe/identity"):
        group.render(0)


def test_even_sides_repeat_the_edge():
    picture = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    padded = even_sided(picture)
    assert padded.shape == (4, 4, 3)
    np.testing.assert_array_equal(padded[:3, :3], picture)
    np.testing.assert_array_equal(padded[3, 3], picture[2, 2])


def test_the_base_of_a_stacked_group_is_the_one_that_steps():
    group = make_group(EnvConfig(id="CartPole-v1", frame_stack=3), 2)
    assert type(base_group(group)).__name__ == "CartPoleGroup"


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pong"])
def test_a_group_of_one_is_a_gymnasium_environment(env_id):
    env = make_env(env_id)
    check_env(env, skip_render_check=True)
    first, _ = env.reset(seed=4)
    again, _ = env.reset(seed=4)
    np.testing.assert_array_equal(first, again)
    other, _ = env.reset()
    assert (env.reset()[0] != other).any() or env_id == "Pong"
    assert env.render().shape[2] == 3
    env.close()


def test_an_unknown_native_environment_is_refused_with_the_nearest():
    with pytest.raises(Refused, match="did you mean 'oscillator/bvp'"):
        make_env("oscillator/bpv")
