"""Each probe means what its docstring says."""

from __future__ import annotations

import numpy as np
import pytest

from rollmill_envs.probe import tracer
from rollmill_envs.probe.probes import PROBES, Continuous, DelayedReward, Identity, MemoryCue, MultiIdentity, NestedDict
from rollmill_envs.probe.tracer import Trace, Tracer

SEEDS = range(60)


def returns(env, policy):
    """The return of one episode per seed under `policy(observation)`."""
    totals = []
    for seed in SEEDS:
        obs, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(policy(obs))
            total += reward
            over = terminated or truncated
        totals.append(total)
    return np.array(totals)


def test_the_tracer_says_where_every_number_belongs():
    env = Tracer()
    seed = 2**31 - 2  # = 32767 · 65536 + 65534: the largest that an episode gets
    while tracer.plan(seed)[0] < 3:
        seed -= 1
    env.reset(seed=1)
    obs, _ = env.reset(seed=seed)
    assert tracer.decode(obs) == Trace(seed, episode=1, step=0, action=0)
    obs, reward, *_ = env.step(np.array([17], np.float32))
    assert reward == 17 * 64 + 1
    assert tracer.decode_reward(np.float32(reward)) == (17, 1)
    assert tracer.decode(obs) == Trace(seed, episode=1, step=1, action=17)
    obs, reward, *_ = env.step(np.array([-tracer.MAX_ACTION], np.float32))
    assert tracer.decode_reward(np.float32(reward)) == (-65536, 2)
    assert tracer.decode(obs) == Trace(seed, episode=1, step=2, action=-65536)


def test_tracer_episodes_end_as_planned_by_their_seed():
    env, plans = Tracer(max_length=4), set()
    for seed in SEEDS:
        length, truncates = tracer.plan(seed, 4)
        env.reset(seed=seed)
        flags = [env.step(np.zeros(1, np.float32))[2:4] for _ in range(length)]
        assert flags == [(False, False)] * (length - 1) + [(not truncates, truncates)]
        plans.add((length, truncates))
    assert plans == {(length, end) for length in (1, 2, 3, 4) for end in (False, True)}


def test_identity_pays_for_the_light_that_is_on():
    assert (returns(Identity(), np.argmax) == 10).all()
    assert (returns(Identity(), lambda obs: (np.argmax(obs) + 1) % 4) == 0).all()


@pytest.mark.parametrize("truncates", [False, True])
def test_identity_ends_after_ten_steps_in_the_way_asked_for(truncates):
    env = Identity(truncates=truncates)
    env.reset(seed=0)
    flags = [env.step(0)[2:4] for _ in range(10)]
    assert flags == [(False, False)] * 9 + [(not truncates, truncates)]


def test_multi_identity_pays_a_share_for_each_right_component():
    both = returns(MultiIdentity(), lambda obs: np.array([obs[:3].argmax(), obs[3:].argmax()]))
    one = returns(MultiIdentity(), lambda obs: np.array([obs[:3].argmax(), (obs[3:].argmax() + 1) % 4]))
    assert (both == 10).all()
    assert (one == 5).all()  # 10 · ½


def test_the_dict_task_needs_image_and_vector():
    def right(obs):
        return int(obs["image"][0, 0, -1] == 255)

    def positive(obs):
        return int(obs["body"]["vector"][0] > 0)

    env = NestedDict()
    assert (returns(env, lambda obs: 2 * right(obs) + positive(obs)) == 10).all()
    # 600 rounds, each right with probability ½: 5 ± 0.2 per episode
    assert 4 < returns(env, lambda obs: 2 * right(obs)).mean() < 6
    assert 4 < returns(env, positive).mean() < 6


def test_continuous_pays_minus_the_squared_distance():
    env = Continuous(dims=2)
    assert (returns(env, lambda obs: obs) == 0).all()
    obs, _ = env.reset(seed=0)
    reward = env.step(obs + np.array([0.5, -1.0], np.float32))[1]
    assert reward == pytest.approx(-1.25, abs=1e-6)  # −(0.25 + 1)


def test_delayed_reward_pays_at_the_end_for_the_first_action():
    env = DelayedReward(length=3)
    obs, _ = env.reset(seed=0)
    right = int(obs[0] > 0)
    steps = [env.step(action) for action in (right, 1 - right, 1 - right)]
    assert [(reward, terminated) for _, reward, terminated, *_ in steps] == [(0, False), (0, False), (1, True)]
    np.testing.assert_allclose([o for o, *_ in steps], [[0, 1 / 3], [0, 2 / 3], [0, 1]], rtol=1e-6)
    env.reset(seed=0)
    assert [env.step(action)[1] for action in (1 - right, right, right)] == [0, 0, 0]


def test_memory_cue_can_be_solved_with_memory_and_not_without():
    class Remember:
        def __call__(self, obs):
            self.cue = obs[0] or self.cue
            return int(self.cue > 0)

    remember = Remember()
    remember.cue = 0
    env = MemoryCue(length=4)
    assert (returns(env, remember) == 1).all()
    # what follows is the same for either cue, so whatever is done at the junction is right for half of the seeds
    seen = set()
    for seed in SEEDS:
        env.reset(seed=seed)
        corridor = [env.step(0)[0] for _ in range(4)]
        seen.add(np.array(corridor).tobytes())
    assert seen == {np.array([[0, 0], [0, 0], [0, 0], [0, 1]], np.float32).tobytes()}
    assert abs(returns(env, lambda obs: 1).mean()) < 0.4  # 0 ± 0.13


def test_memory_cue_takes_its_turn_after_the_corridor():
    env = MemoryCue(length=4)
    env.reset(seed=0)
    assert [env.step(0)[2] for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("probe", PROBES.values())
def test_observations_lie_in_their_space(probe):
    env = probe()
    obs, _ = env.reset(seed=0)
    env.action_space.seed(0)
    over = False
    while not over:
        assert env.observation_space.contains(obs)
        obs, _, terminated, truncated, _ = env.step(env.action_space.sample())
        over = terminated or truncated
    assert env.observation_space.contains(obs)
