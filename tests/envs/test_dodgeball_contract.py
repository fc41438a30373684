"""The contracts of every group, for drone dodgeball: seeds, rows, final observations, snapshots, replays."""

from __future__ import annotations

import numpy as np
import pytest
from test_group_contract import (  # noqa: F401  # collected here too, with the configs below
    test_a_masked_reset_touches_only_the_masked_rows,
    test_inactive_environments_are_not_stepped,
    test_observations_have_the_shape_and_dtype_of_the_spec,
    test_results_are_raw_float64_rewards_and_bool_flags,
    test_seed_and_actions_reproduce_an_episode_at_any_index_and_size,
    test_seeds_differ,
    test_stepping_before_the_first_reset_is_an_error,
    test_the_final_observation_stays_until_the_reset_and_stepping_it_is_an_error,
)
from test_restore_contract import Play, assert_equal_futures, bits

from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.envs.player import base_group

CONFIGS = {
    "box": EnvConfig(id="dodgeball/box", time_limit=30),
    "forest": EnvConfig(id="dodgeball/forest", time_limit=30, args={"launchers": 3, "launch_interval": 0.2}),
    "vector": EnvConfig(id="dodgeball/box", time_limit=30, args={"rays": False, "flatten": True}),
    "stacked": EnvConfig(id="dodgeball/box", time_limit=30, frame_stack=2),
}


@pytest.fixture(params=CONFIGS)
def config(request):
    return CONFIGS[request.param]


@pytest.mark.parametrize("by_snapshot", [True, False])
def test_an_episode_continues_identically_in_a_fresh_group(config, by_snapshot):
    # limits of 30, 20 + 60 steps of three rows: each ends twice or more
    assert assert_equal_futures(config, 3, 20, 60, by_snapshot) >= 6


def test_an_ended_episode_is_restored_as_ended(config):
    play = Play(config)
    for _ in range(30):
        action = random_actions(play.group.action_space, 3, np.random.default_rng(0))
        play.group.step(action, ~base_group(play.group).scene.ended)
    assert base_group(play.group).scene.ended.all()
    other = Play(config)
    other.group.restore(0, play.group.snapshot(0))
    with pytest.raises(RuntimeError, match="environment 0 was stepped without a running episode"):
        other.group.step(action, np.arange(3) == 0)


def test_what_is_not_a_snapshot_is_a_value_error_and_changes_nothing():
    play = Play(CONFIGS["box"])
    good = play.group.snapshot(0)
    flipped = bytearray(good)
    flipped[len(good) // 2] ^= 1
    before = bits(play.group)
    for data in (b"", good[:-1], good + b"\0", bytes(flipped), Play(CONFIGS["forest"]).group.snapshot(0)):
        with pytest.raises(ValueError, match=r"snapshot|bytes"):
            play.group.restore(1, data)
    assert bits(play.group) == before


def test_the_final_picture_of_an_episode_follows_from_seed_and_actions_alone(config):
    """Two groups with different neighbours show the same balls, which come from the row's own generator."""
    stories = []
    for index, size in ((0, 1), (2, 3)):
        group = make_group(config, size)
        group.reset(np.ones(size, bool), np.full(size, 11) if size == 1 else np.array([5, 6, 11]))
        draw = np.random.default_rng(1)
        for _ in range(25):
            action = random_actions(group.action_space, 1, draw).repeat(size, 0)
            group.step(action, np.arange(size) == index)
        scene = base_group(group).scene
        stories.append([array[index].tobytes() for array in scene])
    assert stories[0] == stories[1]
