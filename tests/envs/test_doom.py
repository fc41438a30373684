"""Doom scenarios, with the real engine."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import psutil
import pytest

pytest.importorskip("vizdoom")

from test_group_contract import (  # noqa: F401  # the contract's own tests, with the `config` of this file
    assert_equal,
    rows,
    test_a_masked_reset_touches_only_the_masked_rows,
    test_inactive_environments_are_not_stepped,
    test_observations_have_the_shape_and_dtype_of_the_spec,
    test_results_are_raw_float64_rewards_and_bool_flags,
    test_seed_and_actions_reproduce_an_episode_at_any_index_and_size,
    test_seeds_differ,
    test_stepping_before_the_first_reset_is_an_error,
    test_the_final_observation_stays_until_the_reset_and_stepping_it_is_an_error,
)

from rollmill.doctor.env_check import check_group, random_actions
from rollmill.doctor.restore_trial import EXACT, resume_grade
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill_envs.doom import names
from rollmill_envs.doom.actions import Groups, combined_actions, flat_actions
from rollmill_envs.doom.launcher import segments_of

IDLE, LEFT, RIGHT, ATTACK = range(4)  # of doom/basic
SMALL = {"width": 32, "height": 24}
CONFIGS = {
    "image": EnvConfig(id="doom/basic", time_limit=9, args=SMALL),
    "dict": EnvConfig(
        id="doom/health_gathering_supreme",
        time_limit=9,
        args={**SMALL, "grey": True, "resize": "area", "variables": ["HEALTH", "AMMO2"], "actions": "groups"},
    ),
}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS])
def config(request):
    return CONFIGS[request.param]


@pytest.fixture
def group_of():
    """Makes groups of one or more and closes them."""
    groups = []

    def make(name, size=1, pictures=False, time_limit=None, **args):
        env = EnvConfig(id=f"doom/{name}", args=args, time_limit=time_limit)
        groups.append(make_group(env, size, pictures=pictures))
        return groups[-1]

    yield make
    for group in groups:
        group.close()


def begin(group, seed=1):
    group.reset(np.ones(group.size, bool), np.full(group.size, seed))


def step(group, action):
    result = group.step(np.full(group.size, action), np.ones(group.size, bool))
    return float(result.reward[0]), bool(result.terminated[0]), bool(result.truncated[0])


def test_an_idle_episode_of_basic_is_truncated_after_300_tics_and_costs_a_point_each(group_of):
    group = group_of("basic")
    begin(group)
    results = [step(group, IDLE) for _ in range(75)]  # 75 decisions of 4 tics
    assert results[:74] == [(-4.0, False, False)] * 74
    assert results[74] == (-4.0, False, True)


def test_the_last_decision_gets_only_the_tics_that_are_left(group_of):
    group = group_of("basic", tics=10)
    begin(group)
    assert [step(group, IDLE) for _ in range(3)] == [(-4.0, False, False), (-4.0, False, False), (-2.0, False, True)]


def test_a_time_limit_shows_the_true_successor(group_of):
    """What the limit cuts off must look like the same moment of an episode that goes on."""
    cut, free = group_of("basic", tics=12), group_of("basic")
    for group in (cut, free):
        begin(group, seed=3)
        for _ in range(2):
            step(group, RIGHT)
    before = cut.obs.copy()
    assert step(cut, RIGHT)[1:] == (False, True)
    assert step(free, RIGHT)[1:] == (False, False)
    np.testing.assert_array_equal(cut.obs, free.obs)
    assert (cut.obs != before).any(), "it moved"


def test_a_kill_in_basic_ends_the_episode_with_its_reward(group_of):
    """106 for the monster, −5 for every shot, −1 per tic."""
    group = group_of("basic")
    for seed in range(60):
        begin(group, seed)
        results = []
        while not results or not any(results[-1][1:]):
            results.append(step(group, ATTACK if len(results) % 8 == 0 else IDLE))
        if results[-1][1]:
            break
    reward, terminated, truncated = results[-1]
    assert terminated
    assert not truncated
    shots = (len(results) + 7) // 8
    assert 90 < reward <= 101
    assert sum(r for r, _, _ in results) == pytest.approx(106 - 5 * shots - group.info(0)["tics"], abs=6)


def test_the_agents_time_limit_counts_decisions(group_of):
    group = group_of("basic", time_limit=2)
    begin(group)
    assert [step(group, IDLE)[2] for _ in range(2)] == [False, True]


def test_health_gathering_has_sample_factorys_conventions(group_of):
    """0.01 per tic, 1 for more health, nothing for death, five actions; the file says 1, nothing, −100 and four."""
    group = group_of("health_gathering_supreme", variables=("HEALTH",))
    assert group.action_space.n == 5
    gains = 0
    begin(group, seed=2)
    draw = np.random.default_rng(0)
    for _ in range(525):
        before = float(group.obs["variables"][0, 0])
        reward, terminated, _ = step(group, draw.choice([1, 2, 3, 3, 3]))
        health = float(group.obs["variables"][0, 0])
        if terminated:
            assert reward == pytest.approx(0.04)
            break
        assert reward == pytest.approx(0.04 + (health > before))
        gains += health > before
    assert terminated
    assert gains >= 1, "the walk found no medikit: choose another seed"
    own = group_of("health_gathering_supreme", conventions="scenario")
    begin(own)
    assert own.action_space.n == 4
    assert step(own, 0)[0] == 4.0


def test_rewards_of_the_engine_can_be_set_by_name(group_of):
    group = group_of("basic", rewards={"living": -0.5})
    begin(group)
    assert step(group, IDLE)[0] == -2.0


def test_variables_are_observed_with_the_image(group_of):
    group = group_of("basic", variables=("AMMO2", "HEALTH"))
    begin(group)
    assert group.obs["image"].shape == (1, 72, 128, 3)
    assert group.obs["variables"].tolist() == [[50.0, 100.0]]
    for _ in range(3):
        step(group, ATTACK)
    assert group.obs["variables"][0, 0] < 50
    assert group.info(0) == {"tics": 12, "AMMO2": group.obs["variables"][0, 0], "HEALTH": 100.0}


def test_the_image_is_the_screen_made_smaller(group_of):
    whole = group_of("basic", width=160, height=120)
    half = group_of("basic", width=80, height=60, resize="area")
    grey = group_of("basic", width=160, height=120, grey=True)
    for group in (whole, half, grey):
        begin(group, seed=4)
    screen = whole.obs[0].astype(float)
    means = screen.reshape(60, 2, 80, 2, 3).mean((1, 3))
    assert np.abs(half.obs[0] - means).max() <= 0.5
    assert np.abs(grey.obs[0] - screen @ [0.299, 0.587, 0.114]).max() <= 1
    assert screen.std() > 10, "it is not black"


def test_pictures_are_large_coloured_and_don_t_change_what_is_observed(group_of):
    plain, drawn = group_of("basic", **SMALL), group_of("basic", pictures=True, **SMALL)
    for group in (plain, drawn):
        begin(group, seed=6)
    first = drawn.render(0)
    assert (first.shape, first.dtype) == ((480, 640, 3), np.uint8)
    assert len(np.unique(first.reshape(-1, 3), axis=0)) > 50
    for group in (plain, drawn):
        for _ in range(6):
            step(group, LEFT)
    np.testing.assert_array_equal(plain.obs, drawn.obs)
    assert (drawn.render(0) != first).any()
    assert drawn.frame_rate == 35 / 4


def test_a_grouped_action_presses_buttons_of_several_groups():
    groups = Groups(["ATTACK", "TURN_RIGHT", "MOVE_FORWARD", "TURN_LEFT", "SELECT_WEAPON1", "SELECT_WEAPON2"])
    assert groups.buttons == ("ATTACK", "TURN_LEFT", "TURN_RIGHT", "MOVE_FORWARD", "SELECT_WEAPON1", "SELECT_WEAPON2")
    assert groups.space.nvec.tolist() == [2, 3, 2, 3]
    assert groups.presses(np.array([1, 2, 0, 1])) == [1, 0, 1, 0, 1, 0]
    turning = Groups(["TURN_LEFT_RIGHT_DELTA"])
    assert [turning.presses(np.array([i])) for i in (0, 5, 10)] == [[-10.0], [0.0], [10.0]]


def test_flat_actions_press_one_button_and_combinations_several():
    flat = flat_actions(["MOVE_LEFT", "ATTACK"])
    assert [flat.presses(np.int64(i)) for i in range(3)] == [[0, 0], [1, 0], [0, 1]]
    combined = combined_actions([["ATTACK"], ["ATTACK", "MOVE_LEFT"]])
    assert combined.buttons == ("ATTACK", "MOVE_LEFT")
    assert [combined.presses(np.int64(i)) for i in range(2)] == [[1, 0], [1, 1]]


def test_an_engine_that_dies_is_replaced_and_its_episode_continues_unchanged(group_of):
    group, twin = group_of("basic", **SMALL), group_of("basic", **SMALL)
    for each in (group, twin):
        begin(each)
        for _ in range(5):
            step(each, RIGHT)
    engines = [p for p in psutil.Process().children() if p.name() == "vizdoom"]
    assert len(engines) == 2
    oldest = min(engines, key=lambda process: process.create_time())
    os.kill(oldest.pid, signal.SIGKILL)
    oldest.wait(5)
    for each in (group, twin):
        step(each, RIGHT)
    (trouble,) = group.troubles
    assert trouble.is_rebuilt
    np.testing.assert_array_equal(group.obs, twin.obs)


def test_an_episode_is_played_again_exactly():
    assert resume_grade(EnvConfig(id="doom/basic", args=SMALL), seconds=5) == EXACT


def test_closing_leaves_no_process_segment_or_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    group = make_group(EnvConfig(id="doom/basic", args=SMALL), 2)
    begin(group)
    (engine, _) = (p for p in psutil.Process().children() if p.name() == "vizdoom")
    games = [instance.env._engine.game for instance in group._instances]
    segments = [path for game in games for path in segments_of(game.get_instance_id())]  # others may play beside us
    assert not any(map(os.path.exists, segments)), "the segments have no name any more"
    group.close()
    assert not engine.is_running() or engine.status() == psutil.STATUS_ZOMBIE
    deadline = time.monotonic() + 5
    while os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("env_id", "args", "message"),
    [
        ("doom/basik", {}, "env.id=doom/basik: no such environment; did you mean 'doom/basic'?"),
        ("doom/doom2", {}, "env.id=doom/doom2 needs doom2.wad, which is not free; give its path as env.args.game"),
        ("doom/basic", {"gray": True}, "unknown key 'env.args.gray'|unknown key 'gray'"),
        ("doom/basic", {"buttons": ["ATACK"]}, "env.args.buttons: the engine has no 'ATACK'; did you mean 'ATTACK'"),
        ("doom/basic", {"variables": ["HEALHT"]}, "env.args.variables: .* did you mean 'HEALTH'"),
        (
            "doom/basic",
            {"resolution": "160x12"},
            "env.args.resolution: the engine has no '160x12'; did you mean '160x1",
        ),
        ("doom/basic", {"rewards": {"kil": 1.0}}, "env.args.rewards.kil: .* did you mean 'kill'"),
        ("doom/basic", {"bots": 1}, "env.args.bots=1: doom/basic is a game for one"),
        ("doom/basic", {"buttons": ["TURN_LEFT_RIGHT_DELTA"]}, "takes a number; set env.args.actions=groups"),
        ("doom/basic", {"combinations": []}, "env.args.combinations"),
        ("doom/basic", {"game": "nowhere.wad"}, "env.args.game=nowhere.wad: no such file"),
    ],
)
def test_bad_settings_are_refused_in_one_line(env_id, args, message):
    with pytest.raises(Refused, match=message) as refusal:
        make_group(EnvConfig(id=env_id, args=args), 1)
    assert "\n" not in str(refusal.value)


FEW = ("doom/basic", "doom/health_gathering_supreme", "doom/cig", "doom/freedoom1")  # one of each kind


@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param(name, marks=pytest.mark.slow if name in FEW else pytest.mark.prove)
        for name in names()
        if name not in ("doom/doom", "doom/doom2")
    ],
)
def test_every_scenario_plays_and_repeats_itself(env_id):
    config = EnvConfig(id=env_id, args={**SMALL, "tics": 200})
    check_group(config)
    group = make_group(config, 2)
    draw = np.random.default_rng(0)
    group.reset(rows(1, 0), np.array([7, 7]))  # row 0 has a past when the two begin the same episode
    group.step(random_actions(group.action_space, 2, draw), rows(1, 0))
    group.reset(rows(1, 1), np.array([5, 5]))
    for _ in range(25):
        assert_equal(group.obs[0], group.obs[1])
        action = random_actions(group.action_space, 1, draw).repeat(2, axis=0)
        result = group.step(action, rows(1, 1))
        assert result.reward[0] == result.reward[1]
        if (result.terminated | result.truncated).any():
            break
    assert_equal(group.obs[0], group.obs[1])
    group.close()
