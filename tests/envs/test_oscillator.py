"""The oscillator against its definition: numerics, reward, observation, action, and the defects of the seed's copy."""

from __future__ import annotations

import numpy as np
import pytest
from oscillator_reference import SLOPES, Ensemble

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.envs.single import make_env
from rollmill.errors import Refused
from rollmill_envs.oscillator.kernels import SCRATCH_ROWS, advance_bvp, advance_hindmarsh_rose, total

pytest.importorskip("numba")

ADVANCE = {"oscillator/bvp": advance_bvp, "oscillator/hindmarsh-rose": advance_hindmarsh_rose}
IDS = list(SLOPES)
ONE = np.ones(1, bool)


def started(env_id="oscillator/bvp", seed=3, size=1, time_limit=None, **args):
    group = make_group(EnvConfig(id=env_id, args=args, time_limit=time_limit), size)
    group.reset(np.ones(size, bool), np.full(size, seed))
    return group


def act(group, *values):
    """Step all rows with continuous actions; the result outlives the next step."""
    result = group.step(np.array(values, np.float32)[:, None], np.ones(group.size, bool))
    return type(result)(*(array.copy() for array in result))


@pytest.mark.parametrize("env_id", IDS)
def test_a_thousand_steps_agree_with_plain_numpy(env_id):
    group, plain = started(env_id, seed=3), Ensemble(env_id, seed=3)
    actions = np.random.default_rng(0).uniform(-0.05, 0.05, 1000).astype(np.float32)
    worst = 0.0
    for action in actions:
        act(group, action)
        plain.advance(float(action))
        worst = max(worst, np.abs(group.state[0] - plain.state).max())
    assert worst < 1e-9
    assert np.ptp(plain.x_means) > 0.1  # something happened


@pytest.mark.parametrize("env_id", IDS)
def test_the_integration_converges_to_scipys_at_fourth_order(env_id):
    """Halving the step must divide the error by about 2⁴ = 16."""
    integrate = pytest.importorskip("scipy.integrate")
    start = Ensemble(env_id, seed=1, neurons=20)
    shape, current, coupling = start.state.shape, start.current, 0.2
    duration = 4.0

    def slopes(_, flat):
        return SLOPES[env_id](flat.reshape(shape), current, coupling).ravel()

    solution = integrate.solve_ivp(slopes, (0, duration), start.state.ravel(), "DOP853", rtol=1e-13, atol=1e-13)
    truth = solution.y[:, -1].reshape(shape)
    errors = []
    for step in (0.1, 0.05, 0.025, 0.0125):
        state, scratch = start.state.copy(), np.zeros((SCRATCH_ROWS, shape[1]))
        for _ in range(round(duration / step)):
            ADVANCE[env_id](state, current, coupling, step, scratch)
        errors.append(np.abs(state - truth).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert errors[-1] < 1e-6
    assert (np.abs(orders - 4) < 0.5).all(), orders


@pytest.mark.parametrize("size", [1, 7, 8, 9, 1000])
def test_the_sum_by_lanes_is_a_sum(size):
    values = np.random.default_rng(size).normal(size=size)
    assert total(values) == pytest.approx(values.sum(), abs=1e-12)


def test_the_free_ensemble_beats_as_published():
    """ENVIRONMENTS: std X ≈ 1.07 and mean ≈ −0.26 once it has synchronised."""
    group = started(time_limit=8000)
    group.is_muted = True
    means = []
    for _ in range(6000):
        act(group, 0.0)
        means.append(group.fields[0, 0, -1])
    assert np.std(means[3000:]) == pytest.approx(1.07, abs=0.05)
    assert np.mean(means[3000:]) == pytest.approx(-0.26, abs=0.03)


def test_an_episode_starts_after_250_uncontrolled_steps_that_fill_the_window():
    group, plain = started(seed=11), Ensemble("oscillator/bvp", seed=11)
    assert group.obs.shape == (1, 250)
    assert group.obs.dtype == np.float32
    assert len(plain.y_means) == 250
    np.testing.assert_allclose(group.obs[0], plain.y_means, atol=1e-6)


def test_observation_and_reward_of_a_step_by_hand():
    """Reward = −(X − mean of the last 250 X)² − 2·|a|; every x is moved by a before the integration."""
    group, plain = started(seed=4), Ensemble("oscillator/bvp", seed=4)
    for action in (0.25, -0.5):
        result = act(group, action)
        plain.advance(action)
        expected = -((plain.x_means[-1] - np.mean(plain.x_means[-250:])) ** 2) - 2 * abs(action)
        assert result.reward[0] == pytest.approx(expected, abs=1e-9)
        np.testing.assert_allclose(group.obs[0], plain.y_means[-250:], atol=1e-6)
    assert group.observation_space.low.min() == np.float32(-1.5)
    assert group.observation_space.high.max() == np.float32(1.5)


def test_the_bursting_variant_by_hand():
    """Reward = −2·(X + 0.4)² − 0.5·|a|; 150 values within ±2, actions within ±0.5, 5000 steps."""
    group, plain = started("oscillator/hindmarsh-rose", seed=4), Ensemble("oscillator/hindmarsh-rose", seed=4)
    result = act(group, 0.25)
    plain.advance(0.25)
    assert result.reward[0] == pytest.approx(-2 * (plain.x_means[-1] + 0.4) ** 2 - 0.5 * 0.25, abs=1e-9)
    np.testing.assert_allclose(group.obs[0], plain.x_means[-150:], atol=1e-6)
    assert (group.observation_space.shape, group.observation_space.high.max()) == ((150,), 2.0)
    assert (group.action_space.low.item(), group.action_space.high.item()) == (-0.5, 0.5)
    assert group.time_limit == 5000


def test_actions_are_clipped_to_the_limits_and_cost_what_was_applied():
    group, other = started(), started()
    beyond, at = act(group, 7.0), act(other, 1.0)
    assert beyond.reward[0] == at.reward[0]
    assert group.info(0) == other.info(0)
    assert group.info(0)["action"] == 1.0


def test_the_info_of_a_step():
    group = started()
    act(group, 0.1)
    said = group.info(0)
    assert said["X"] == pytest.approx(group.state[0, 0].mean())
    assert said["Y"] == pytest.approx(group.obs[0, -1])
    assert (said["coupling"], said["action"]) == (0.03, pytest.approx(0.1))


# The seed's defects


def test_the_observation_stored_with_an_action_is_the_one_that_led_to_it():
    """The seed stored the new observation with the action that produced it: a step must show what follows."""
    group = started()
    before = group.obs.copy()
    act(group, 0.5)
    np.testing.assert_array_equal(group.obs[0, :-1], before[0, 1:])  # one value older
    assert group.obs[0, -1] != before[0, -1]


def test_the_time_limit_truncates_and_never_terminates():
    group = started(time_limit=3)
    flags = [(r.terminated[0], r.truncated[0]) for r in (act(group, 0.0) for _ in range(3))]
    assert flags == [(False, False), (False, False), (False, True)]
    assert started().time_limit == 10_000


def test_after_the_time_limit_an_episode_must_be_reset_and_begins_again():
    group = started(seed=5, time_limit=2)
    first = group.obs.copy()
    act(group, 1.0)
    act(group, 1.0)
    with pytest.raises(RuntimeError, match="without a running episode"):
        act(group, 0.0)
    group.reset(ONE, np.array([5]))
    np.testing.assert_array_equal(group.obs, first)


def test_two_environments_in_one_process_do_not_influence_each_other():
    """The seed kept the parameters in globals: the second environment changed the first."""
    alone = started(seed=7)
    for _ in range(20):
        act(alone, 0.1)
    first = started(seed=7)
    others = started(seed=7, coupling=0.4, neurons=50, window=60), started("oscillator/hindmarsh-rose", seed=7)
    for _ in range(20):
        act(first, 0.1)
        for other in others:
            act(other, -0.3)
    np.testing.assert_array_equal(first.state, alone.state)
    np.testing.assert_array_equal(first.obs, alone.obs)


def test_seeds_make_different_ensembles_and_the_same_seed_the_same():
    group = make_group(EnvConfig(id="oscillator/bvp"), 3)
    group.reset(np.ones(3, bool), np.array([1, 2, 1]))
    assert (group.obs[0] != group.obs[1]).all()
    np.testing.assert_array_equal(group.obs[0], group.obs[2])
    np.testing.assert_array_equal(group.state[0], group.state[2])


@pytest.mark.parametrize("env_id", IDS)
def test_it_is_a_gymnasium_environment(env_id):
    from gymnasium.utils.env_checker import check_env

    env = make_env(env_id, neurons=40)
    check_env(env, skip_render_check=True)
    assert env.render().shape == (240, 480, 3)


def test_without_numba_the_pip_line_is_named(monkeypatch):
    import rollmill_envs.oscillator as family

    monkeypatch.setattr(family, "find_spec", lambda name: None)
    assert family.names() == []
    with pytest.raises(Refused, match=r'pip install "rollmill\[native\]"'):
        make_group(EnvConfig(id="oscillator/bvp"), 1)
