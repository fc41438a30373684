"""Atari: the same pictures as ale-py's own vector environment, and episodes that depend on seed and actions alone."""

from __future__ import annotations

import subprocess
import sys

import ale_py
import numpy as np
import pytest

from rollmill.envs.config import AtariConfig, EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill_envs.atari.atari_group import AtariGame, AtariGroup

ON = np.ones(1, bool)


def game(rom="Pong", time_limit=None, stack=4, **options):
    return AtariGame(rom, AtariConfig(**options), time_limit, np.zeros((stack, 84, 84), np.uint8))


def vector_env(rom, **options):
    defaults = {"noop_max": 0, "use_fire_reset": False, "reward_clipping": False, "num_threads": 1}
    return ale_py.AtariVectorEnv(rom, 1, **(defaults | options))


@pytest.mark.parametrize(
    ("rom", "fire", "skip"), [("pong", False, 4), ("breakout", True, 4), ("breakout", False, 3), ("pong", False, 1)]
)
def test_frames_and_rewards_equal_ale_pys_vector_environment(rom, fire, skip):
    ours = game(rom, noop_max=0, fire_reset=fire, frame_skip=skip)
    theirs = vector_env(rom, use_fire_reset=fire, frameskip=skip)
    ours.reset(seed=3)
    first, _ = theirs.reset(seed=np.array([0]))  # their seed is that of the emulator, ours is always 0
    np.testing.assert_array_equal(ours.stack[-1], first[0, -1])
    draw = np.random.default_rng(0)
    compared = 0
    earned = 0.0
    for _ in range(400):
        action = int(draw.integers(len(ours.actions)))
        reward, terminated, _ = ours.step(action)
        obs, their_reward, their_end, _, _ = theirs.step(np.array([action]))
        assert (reward, terminated) == (their_reward[0], their_end[0])
        if terminated:  # their last picture mixes in a frame of the decision before; ours is the true last frame
            break
        np.testing.assert_array_equal(ours.stack[-1], obs[0, -1])
        if compared >= 3:  # their stack starts with zeros, ours with the first frame
            np.testing.assert_array_equal(ours.stack, obs[0])
        compared += 1
        earned += abs(reward)
    assert compared > 100
    assert earned > 0 or skip == 1
    theirs.close()


def test_an_episode_starts_with_its_first_frame_repeated():
    pong = game()
    pong.reset(seed=1)
    for frame in pong.stack[:-1]:
        np.testing.assert_array_equal(frame, pong.stack[-1])
    assert pong.stack.any()


def test_noops_come_from_the_seed_and_stay_within_their_bound():
    pong = game(noop_max=5)
    counts = set()
    for seed in range(40):
        pong.reset(seed)
        counts.add(pong.snapshot().frames)
    assert counts == {1, 2, 3, 4, 5}


def test_sticky_actions_repeat_the_last_one_as_often_as_asked():
    # FIRE and NOOP alternate over single frames: a frame plays the wrong action exactly when the last one stuck
    breakout = game("Breakout", noop_max=0, sticky=0.25, frame_skip=1)
    breakout.reset(seed=0)
    stuck = before = 0
    for t in range(2000):
        breakout.step(t % 2)
        assert breakout._last_action in (before, breakout.actions[t % 2])
        before = breakout._last_action
        stuck += before != breakout.actions[t % 2]
    # sticking shows only when the last action differs: by symmetry s = 1/4 · (1 − s), so s = 1/5, 400 ± 18 of 2000
    assert 330 < stuck < 470


def test_a_snapshot_continues_identically_in_a_fresh_instance():
    options = {"sticky": 0.25, "noop_max": 10}
    original = game("Breakout", time_limit=60, **options)
    original.reset(seed=11)
    draw = np.random.default_rng(0)
    for _ in range(30):
        original.step(int(draw.integers(4)))
    kept, stack = original.snapshot(), original.stack.copy()
    copy = game("Breakout", time_limit=60, **options)
    copy.restore(kept)
    np.testing.assert_array_equal(copy.stack, original.stack)
    for t in range(30):
        action = int(draw.integers(4))
        result = original.step(action)
        assert copy.step(action) == result
        np.testing.assert_array_equal(copy.stack, original.stack)
        assert result[2] == (t == 29)  # both count on to the same limit: 30 + 30 decisions
    np.testing.assert_array_equal(kept.stack, stack)  # the snapshot is no view of what went on


def test_a_snapshot_taken_just_before_a_life_is_lost_still_sees_the_loss():
    original, copy = (game("Breakout", one_life=True, noop_max=0) for _ in range(2))
    original.reset(seed=0)
    over = False
    while not over:  # the ball is served, missed and lost
        kept = original.snapshot()
        over = original.step(1)[1]
    copy.restore(kept)
    assert copy.step(1)[1]


@pytest.mark.parametrize("noop_max", [0, 30])
def test_a_reset_leaves_nothing_of_the_episode_before(noop_max):
    used, fresh = (game(noop_max=noop_max, sticky=0.25) for _ in range(2))
    used.reset(seed=1)
    for _ in range(20):
        used.step(2)
    used.reset(seed=5)
    fresh.reset(seed=5)
    kept, expected = used.snapshot()._asdict(), fresh.snapshot()._asdict()
    np.testing.assert_array_equal(kept.pop("stack"), expected.pop("stack"))
    assert kept == expected


def test_one_life_ends_the_episode_at_the_first_loss_and_the_next_is_a_fresh_game():
    # in Breakout a ball that is served and never hit is lost; there are 5 lives
    short, whole = game("Breakout", one_life=True, noop_max=0), game("Breakout", noop_max=0)
    short.reset(seed=0)
    whole.reset(seed=0)
    for _ in range(200):
        lives = whole.snapshot().lives
        ended, whole_ended = short.step(1)[1], whole.step(1)[1]
        assert ended == (whole.snapshot().lives < lives)
        if ended:
            break
    assert ended
    assert not whole_ended
    assert short.snapshot().lives == 4
    short.reset(seed=0)
    assert short.snapshot().lives == 5


def test_the_frame_cap_truncates_and_counts_no_ops():
    pong = game(max_frames=20, noop_max=1)  # 1 + 4 · 5 = 21 ≥ 20, 1 + 4 · 4 = 17 < 20
    pong.reset(seed=0)
    flags = [pong.step(0)[1:] for _ in range(5)]
    assert flags == [(False, False)] * 4 + [(False, True)]


def test_the_time_limit_truncates():
    pong = game(time_limit=3)
    pong.reset(seed=0)
    assert [pong.step(0)[2] for _ in range(3)] == [False, False, True]


def test_config_options_reach_the_group():
    config = EnvConfig(id="Pong", frame_stack=2, atari=AtariConfig(size=42, full_actions=True, frame_skip=2))
    group = make_group(config, 1)
    assert isinstance(group, AtariGroup)
    assert group.observation_spec.shape == (2, 42, 42)
    assert group.action_space.n == 18
    assert group.frame_skip == 2
    group.reset(ON, np.array([0]))
    assert group.obs.any()
    assert make_group(EnvConfig(id="Pong"), 1).action_space.n == 6


@pytest.mark.parametrize("env_id", ["ALE/MsPacman-v5", "MsPacman", "ms_pacman", "MsPacmanNoFrameskip-v4"])
def test_every_spelling_of_a_game_is_the_same_game(env_id):
    group = make_group(EnvConfig(id=env_id, atari=AtariConfig(noop_max=0)), 1)
    group.reset(ON, np.array([0]))
    assert group.action_space.n == 9
    assert group.games[0].snapshot().lives == 3


def test_an_unknown_game_is_refused_with_the_nearest():
    with pytest.raises(Refused, match=r"env.id=ALE/Pongg-v5: no such Atari game; did you mean 'Pong'\?"):
        make_group(EnvConfig(id="ALE/Pongg-v5"))


@pytest.mark.parametrize("missing", ["ale_py", "cv2"])
def test_a_missing_package_is_refused_with_the_extra(missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(Refused) as refusal:
        make_group(EnvConfig(id="ALE/Pong-v5"))
    assert str(refusal.value) == "env.id=ALE/Pong-v5 needs the extra 'atari': pip install \"rollmill[atari]\""


def test_the_emulator_prints_nothing():
    code = (
        "import numpy as np; from rollmill.envs.config import EnvConfig; from rollmill.envs.make import make_group;"
        "g = make_group(EnvConfig(id='Pong'), 1); g.reset(np.ones(1, bool), np.array([0]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")
