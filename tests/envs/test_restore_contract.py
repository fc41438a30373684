"""An episode continues elsewhere bit for bit, from a snapshot or by its seed and actions; one body for every group."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill import nested
from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import AtariConfig, EnvConfig
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import make_group
from rollmill.envs.preprocessing import StackedGroup

SIZE = 3
FAST = {
    "native CartPole": EnvConfig(id="CartPole-v1"),
    "CartPole's limit": EnvConfig(id="CartPole-v1", time_limit=11),
    "stacked CartPole": EnvConfig(id="CartPole-v1", frame_stack=3),
    "gymnasium CartPole": EnvConfig(id="CartPole-v1", args={"sutton_barto_reward": True}),
    "Pendulum": EnvConfig(id="Pendulum-v1", time_limit=9),
    "tracer": EnvConfig(id="probe/tracer"),
    "tracer's limit": EnvConfig(id="probe/tracer", time_limit=5),
    "stacked tracer": EnvConfig(id="probe/tracer", frame_stack=2),
    "identity": EnvConfig(id="probe/identity"),
    "multi-identity": EnvConfig(id="probe/multi-identity"),
    "dict": EnvConfig(id="probe/dict"),
    "stacked dict": EnvConfig(id="probe/dict", frame_stack=3),
    "continuous": EnvConfig(id="probe/continuous", args={"dims": 2}),
    "delayed reward": EnvConfig(id="probe/delayed-reward"),
    "memory cue": EnvConfig(id="probe/memory-cue"),
}
GAMES = {
    "Pong, sticky": EnvConfig(id="ALE/Pong-v5", time_limit=60, atari=AtariConfig(sticky=0.25)),
    "Breakout, one life": EnvConfig(id="Breakout", atari=AtariConfig(one_life=True, fire_reset=True, sticky=0.1)),
    "Seaquest, frame cap": EnvConfig(id="Seaquest", frame_stack=2, atari=AtariConfig(max_frames=120, size=42)),
}
TRACERS = {"tracer", "tracer's limit", "stacked tracer"}
WITH_SNAPSHOTS = {"native CartPole", "CartPole's limit", "stacked CartPole"} | TRACERS


def one(k):
    return np.arange(SIZE) == k


def bits(group, rows=slice(None)):
    return [leaf[rows].tobytes() for _, leaf in nested.leaves(group.obs)]


class Play:
    """A group in play, its episodes seeded one after the other and their actions recorded."""

    def __init__(self, config):
        self.group = make_group(config, SIZE)
        self.seeds = np.arange(SIZE) * 1000
        self.actions = [[] for _ in range(SIZE)]
        self.group.reset(np.ones(SIZE, bool), self.seeds)

    def step(self, action):
        """All that comes of it, as bytes; ended rows begin their next episode."""
        for k in range(SIZE):
            self.actions[k].append(action[k].copy())
        result = self.group.step(action, np.ones(SIZE, bool))
        story = [array.tobytes() for array in result] + bits(self.group)
        ended = result.terminated | result.truncated
        self.seeds += ended
        self.group.reset(ended, self.seeds)
        for k in np.flatnonzero(ended):
            self.actions[k].clear()
        return story + bits(self.group), ended


def restored(play, config, by_snapshot):
    """A fresh group in the state of the other, restored as a resumed run does it."""
    other = Play(config)
    other.seeds = play.seeds.copy()
    other.group.reset(np.ones(SIZE, bool), other.seeds)
    for k in range(SIZE):
        if by_snapshot:
            data = play.group.snapshot(k)
            assert 0 < len(data) <= play.group.snapshot_size
            other.group.restore(k, data)
        else:
            for action in play.actions[k]:
                other.group.step(np.stack([action] * SIZE), one(k))
        other.actions[k] = list(play.actions[k])
    return other


def assert_equal_futures(config, seed, past, future, by_snapshot):
    draw = np.random.default_rng(seed)
    play = Play(config)
    for _ in range(past):
        play.step(random_actions(play.group.action_space, SIZE, draw))
    other = restored(play, config, by_snapshot)
    assert bits(other.group) == bits(play.group)
    ends = 0
    for _ in range(future):
        action = random_actions(play.group.action_space, SIZE, draw)
        story, ended = play.step(action)
        assert other.step(action)[0] == story
        ends += ended.sum()
    play.group.close()
    other.group.close()
    return ends


@pytest.mark.parametrize("name", FAST)
def test_only_these_groups_have_snapshots(name):
    group = make_group(FAST[name], 1)
    assert (group.snapshot_size > 0) == (name in WITH_SNAPSHOTS)
    assert not group.broken.any()
    assert not group.troubles
    group.close()


@pytest.mark.parametrize("name", sorted(WITH_SNAPSHOTS))
@settings(max_examples=25)
@given(seed=st.integers(0, 2**31), past=st.integers(0, 40))
def test_a_snapshot_continues_identically_in_a_fresh_group(name, seed, past):
    assert_equal_futures(FAST[name], seed, past, 25, by_snapshot=True)


@pytest.mark.parametrize("name", sorted(FAST.keys() - TRACERS))  # a tracer counts its own resets
@settings(max_examples=10)
@given(seed=st.integers(0, 2**31), past=st.integers(0, 40))
def test_seed_and_actions_continue_identically_in_a_fresh_group(name, seed, past):
    assert_equal_futures(FAST[name], seed, past, 15, by_snapshot=False)


@pytest.mark.parametrize("name", ["CartPole's limit", "tracer's limit", "tracer", "stacked tracer"])
def test_a_restored_episode_ends_when_the_original_would_have(name):
    # 25 steps of 3 episodes that last 12 at most (11, 5, 12, 12): each ends twice or more
    assert assert_equal_futures(FAST[name], 3, 8, 25, by_snapshot=True) >= 6


@pytest.mark.parametrize("by_snapshot", [True, False])
@pytest.mark.parametrize("name", GAMES)
def test_games_continue_identically_in_a_fresh_group(name, by_snapshot):
    # limits of 60 decisions and 120 frames, and a served ball that a random player misses, are all crossed
    assert assert_equal_futures(GAMES[name], 5, 23, 60, by_snapshot) >= 1


def test_a_game_continues_identically_in_another_process(tmp_path):
    config = GAMES["Pong, sticky"]
    group = make_group(config, 1)
    on = np.ones(1, bool)
    group.reset(on, np.array([7]))
    for t in range(20):
        group.step(np.array([t % 6]), on)
    (tmp_path / "snapshot").write_bytes(group.snapshot(0))
    code = f"""
import numpy as np, hashlib, pathlib
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
group = make_group(EnvConfig.model_validate_json({config.model_dump_json()!r}), 1)
on = np.ones(1, bool)
group.reset(on, np.array([7]))
group.restore(0, pathlib.Path({str(tmp_path / "snapshot")!r}).read_bytes())
for t in range(30):
    group.step(np.array([t % 5]), on)
print(hashlib.sha256(group.snapshot(0)).hexdigest())
"""
    for t in range(30):
        group.step(np.array([t % 5]), on)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == hashlib.sha256(group.snapshot(0)).hexdigest()


@pytest.mark.parametrize("name", ["native CartPole", "stacked CartPole", "tracer", "Pong, sticky"])
def test_a_snapshot_may_go_into_another_row_and_leaves_the_others_alone(name):
    config = (FAST | GAMES)[name]
    draw = np.random.default_rng(1)
    play = Play(config)
    for _ in range(7):
        play.step(random_actions(play.group.action_space, SIZE, draw))
    before = bits(play.group, [0, 2])
    data = play.group.snapshot(0)
    play.group.reset(one(1), play.seeds[[0, 0, 0]])
    play.group.restore(1, data)
    assert bits(play.group, [0, 2]) == before
    assert bits(play.group, 1) == bits(play.group, 0)
    for _ in range(5):
        action = random_actions(play.group.action_space, SIZE, draw)
        action[1] = action[0]
        result = play.group.step(action, np.ones(SIZE, bool))
        assert bits(play.group, 1) == bits(play.group, 0)
        assert result.reward[0] == result.reward[1]
        if (result.terminated | result.truncated).any():
            break
    play.group.close()


@pytest.mark.parametrize("name", ["native CartPole", "stacked CartPole", "tracer", "Pong, sticky"])
def test_what_is_not_a_snapshot_is_a_value_error(name):
    play = Play((FAST | GAMES)[name])
    good = play.group.snapshot(0)
    draw = np.random.default_rng(0)
    bad = [b"", b"\0" * 8, b"\0" * len(good), good[:-1], good + b"\0", good[: len(good) // 2]]
    for place in draw.integers(len(good), size=20):
        flipped = bytearray(good)
        flipped[place] ^= 1 << draw.integers(8)
        bad.append(bytes(flipped))
    bad += [Play(FAST[other]).group.snapshot(0) for other in ("native CartPole", "tracer") if other != name]
    before = bits(play.group)
    for data in bad:
        with pytest.raises(ValueError, match=r"snapshot|bytes"):
            play.group.restore(1, data)
    assert bits(play.group) == before
    play.group.restore(1, good)
    play.group.close()


def test_a_game_refuses_the_snapshot_of_another_game():
    pong, breakout = (make_group(EnvConfig(id=name), 1) for name in ("Pong", "Breakout"))
    pong.reset(np.ones(1, bool), np.zeros(1, int))
    with pytest.raises(ValueError, match="a snapshot of Atari pong where one of Atari breakout is needed"):
        breakout.restore(0, pong.snapshot(0))


def test_a_group_without_snapshots_gives_none_and_takes_none():
    for config in (FAST["identity"], FAST["stacked dict"]):
        play = Play(config)
        assert play.group.snapshot(0) == b""
        with pytest.raises(ValueError, match="not a snapshot"):
            play.group.restore(0, b"")


class Walk(gym.Env):
    """A random walk with a hidden position; its own snapshots, of growing length."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.trail = 0, b""
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += int(self.np_random.integers(10))
        self.trail += b"."
        return np.array([self.place % 7 == 0], np.float32), float(self.place), False, False, {}

    def snapshot(self):
        state = self.np_random.bit_generator.state["state"]
        return f"{self.place},{state['state']},{state['inc']},".encode() + self.trail

    def restore(self, data):
        place, state, inc, trail = data.split(b",")
        self.place, self.trail = int(place), trail
        whole = self.np_random.bit_generator.state
        whole["state"] = {"state": int(state), "inc": int(inc)}
        self.np_random.bit_generator.state = whole


def walk_group(*wrappers, stack=1):
    def construct():
        env = Walk()
        for wrap in wrappers:
            env = wrap(env)
        return env

    group = GymGroup("walk", construct, 1)
    group = StackedGroup(group, stack) if stack > 1 else group
    group.reset(np.ones(1, bool), np.array([3]))
    return group


def walk(group, steps):
    story = []
    for _ in range(steps):
        result = group.step(np.zeros(1, np.int64), np.ones(1, bool))
        story.append((group.obs.tobytes(), *(array[0].item() for array in result)))
    return story


@pytest.mark.parametrize("stack", [1, 4])
def test_an_environments_own_snapshot_is_used_and_the_time_limit_counts_on(stack):
    limits = [lambda env: gym.wrappers.TimeLimit(env, 20), gym.wrappers.OrderEnforcing]
    group, other = walk_group(*limits, stack=stack), walk_group(*limits, stack=stack)
    walk(group, 8)
    other.restore(0, group.snapshot(0))
    assert other.obs.tobytes() == group.obs.tobytes()
    story = walk(group, 12)  # 8 + 12 = 20
    assert walk(other, 12) == story
    assert [truncated for *_, truncated in story] == [False] * 11 + [True]


def test_a_snapshot_that_outgrows_its_size_is_whole_nevertheless():
    group, other = walk_group(), walk_group()
    walk(group, 500)
    assert len(group.snapshot(0)) > group.snapshot_size
    other.restore(0, group.snapshot(0))
    assert walk(other, 5) == walk(group, 5)


def test_a_wrapper_with_a_state_of_its_own_hides_the_snapshots():
    assert walk_group().snapshot_size > 0
    assert walk_group(lambda env: gym.wrappers.DelayObservation(env, 2)).snapshot_size == 0


def test_an_environment_whose_snapshot_raises_is_played_again_instead(monkeypatch):
    group = walk_group()
    walk(group, 3)
    monkeypatch.setattr(Walk, "snapshot", lambda self: 1 / 0)
    assert group.snapshot(0) == b""
    assert len(walk(group, 3)) == 3
    assert walk_group().snapshot_size == 0
    monkeypatch.undo()
    monkeypatch.setattr(Walk, "restore", lambda self, data: 1 / 0)
    data = group.snapshot(0)
    with pytest.raises(ValueError, match=r"environment 0 raised in restore\(\): ZeroDivisionError"):
        walk_group().restore(0, data)
