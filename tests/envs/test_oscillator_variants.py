"""Every setting of the oscillator, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from oscillator_reference import Ensemble

from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused
from rollmill_envs.oscillator.config import BvpConfig
from rollmill_envs.oscillator.stimulus import pulse_of

pytest.importorskip("numba")

ONE = np.ones(1, bool)


def started(seed=3, time_limit=None, **args):
    group = make_group(EnvConfig(id="oscillator/bvp", args={"neurons": 100, **args}, time_limit=time_limit), 1)
    group.reset(ONE, np.array([seed]))
    return group


def act(group, value):
    return group.step(np.array([[value]], np.float32), ONE)


def test_a_coupling_range_is_drawn_uniformly_per_episode():
    group = started(coupling=[0.03, 0.5], window=2, neurons=4)
    drawn = []
    for seed in range(300):
        group.reset(ONE, np.array([seed]))
        drawn.append(group.info(0)["coupling"])
    assert 0.03 <= min(drawn) < 0.05
    assert 0.48 < max(drawn) <= 0.5
    assert np.mean(drawn) == pytest.approx(0.265, abs=0.03)


def test_linear_drift_goes_from_low_to_high_over_the_episode():
    group = started(coupling=[0.1, 0.3], drift="linear", time_limit=100)
    plain = Ensemble("oscillator/bvp", 3, neurons=100, coupling=0.1)  # warm-up at the start's coupling
    for t in range(100):
        act(group, 0.0)
        plain.advance(0.0, 0.1 + 0.2 * t / 100)
        assert group.info(0)["coupling"] == pytest.approx(0.1 + 0.2 * (t + 1) / 100)
    np.testing.assert_allclose(group.state[0], plain.state, atol=1e-9)


def test_a_random_walk_stays_in_its_range_moves_and_is_the_seeds():
    def path(seed):
        group = started(seed, coupling=[0.03, 0.5], drift="walk", walk=0.5, neurons=2, window=2)
        seen = []
        for _ in range(3000):
            act(group, 0.0)
            seen.append(group.info(0)["coupling"])
        return np.array(seen)

    first, again, other = path(1), path(1), path(2)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first >= 0.03).all()
    assert (first <= 0.5).all()
    assert np.ptp(first) > 0.1
    assert np.abs(np.diff(first)).max() < 0.47 / 250 * 5  # no jumps: 5 deviations of half the range in 250 steps


def test_a_rectangular_pulse_spreads_the_action_over_its_width():
    """Width 4: a quarter of the action before each of 4 steps, then 2 steps of rest; one decision is 6 steps."""
    group = started(pulse="rectangular", width=4, rest=2)
    plain = Ensemble("oscillator/bvp", 3, neurons=100)
    result = act(group, 0.8)
    deviations = []
    for kick in (0.2, 0.2, 0.2, 0.2, 0.0, 0.0):
        plain.advance(kick * float(np.float32(0.8)) / 0.8)
        deviations.append((plain.x_means[-1] - np.mean(plain.x_means[-250:])) ** 2)
    np.testing.assert_allclose(group.state[0], plain.state, atol=1e-12)
    np.testing.assert_allclose(group.obs[0], plain.y_means[-250:], atol=1e-6)
    assert result.reward[0] == pytest.approx(-np.mean(deviations) - 2 * 0.8)
    assert group.frame_skip == 6
    assert group.time_limit == 1667  # 10 000 integration steps, rounded up


@pytest.mark.parametrize(("width", "recharge"), [(1, 2), (3, 7), (5, 20), (7, 99)])
def test_a_charge_balanced_pulse_takes_back_what_it_gave(width, recharge):
    parts = pulse_of(BvpConfig(pulse="charge_balanced", width=width, recharge=recharge, rest=3))
    assert abs(parts.sum()) < 1e-15 * len(parts)
    assert len(parts) == width + recharge + 3
    assert parts[0] == 1 / width
    assert 0 < -parts[width] < parts[0]  # the opposite pulse is longer, so it is weaker
    np.testing.assert_array_equal(parts[-3:], 0)


def test_a_charge_balanced_pulse_reaches_the_neurons_as_it_is():
    group = started(pulse="charge_balanced", width=2, recharge=6)
    plain = Ensemble("oscillator/bvp", 3, neurons=100)
    for action in (0.5, -0.25):
        act(group, action)
        for kick in [action / 2] * 2 + [-action / 6] * 6:
            plain.advance(kick)
    np.testing.assert_allclose(group.state[0], plain.state, atol=1e-9)


def test_levels_are_evenly_spaced_actions():
    """21 levels within ±1: level 10 is 0, level 3 is −1 + 3 · 0.1 = −0.7."""
    group, plain = started(levels=21), started()
    assert group.action_space.n == 21
    for level, amplitude in ((0, -1.0), (3, -0.7), (10, 0.0), (20, 1.0)):
        group.step(np.array([level]), ONE)
        assert group.info(0)["action"] == pytest.approx(amplitude, abs=1e-15)
        act(plain, amplitude)
    np.testing.assert_allclose(group.state, plain.state, atol=1e-6)


def test_reward_coefficients_and_target_are_settings():
    group, plain = started(deviation_weight=3.0, action_weight=0.25, target=0.5), Ensemble("oscillator/bvp", 3, 100)
    result = act(group, 0.5)
    plain.advance(0.5)
    assert result.reward[0] == pytest.approx(-3 * (plain.x_means[-1] - 0.5) ** 2 - 0.25 * 0.5)


def test_window_warm_up_and_the_observed_variable_are_settings():
    group, plain = started(window=40, warm_up=250, observe="x"), Ensemble("oscillator/bvp", 3, 100)
    np.testing.assert_allclose(group.obs[0], plain.x_means[-40:], atol=1e-6)


def test_a_range_of_warm_ups_is_drawn_per_episode():
    """Each row is integrated as long as its own draw says, and no other row is touched by it."""
    args = {"neurons": 30, "window": 40}
    group = make_group(EnvConfig(id="oscillator/bvp", args={**args, "warm_up": [40, 60]}), 50)
    group.reset(np.ones(50, bool), np.arange(50))
    lengths = set()
    for k in range(50):
        stories = []
        for warm_up in range(40, 61):
            fixed = make_group(EnvConfig(id="oscillator/bvp", args={**args, "warm_up": warm_up}), 1)
            fixed.reset(ONE, np.array([k]))
            stories.append(fixed.state[0].tobytes())
        lengths.add(stories.index(group.state[k].tobytes()))
    assert min(lengths) <= 2
    assert max(lengths) >= 18
    assert len(lengths) > 10


def test_staggered_episodes_end_early_by_their_seed():
    """Up to 0.8 of 50 steps early: lengths from 11 to 50."""
    group = make_group(
        EnvConfig(id="oscillator/bvp", args={"neurons": 2, "window": 2, "stagger": 0.8}, time_limit=50), 200
    )

    def lengths(seeds):
        everyone = np.ones(200, bool)
        group.reset(everyone, seeds)
        found, active = np.zeros(200, int), everyone
        while active.any():
            result = group.step(np.zeros((200, 1), np.float32), active)
            found += active
            active = active & ~result.truncated
        return found

    first, other = lengths(np.arange(200)), lengths(np.arange(200)[::-1].copy())
    np.testing.assert_array_equal(first, other[::-1])
    assert 11 <= first.min() <= 14
    assert 47 <= first.max() <= 50
    assert len(set(first)) > 20


def test_a_muted_group_ignores_every_action():
    group, plain = started(), started()
    group.is_muted = True
    muted, zero = act(group, 1.0).reward[0], act(plain, 0.0).reward[0]
    assert muted == zero
    np.testing.assert_array_equal(group.state, plain.state)


def test_neurons_that_diverge_are_reported_with_a_remedy():
    from rollmill.envs.group import EnvironmentFailed

    group = started()
    group.state[:] = 1e200
    with pytest.raises(EnvironmentFailed, match=r"environment 0.*lower env\.args\.step"):
        act(group, 0.0)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ({"neuron": 10}, "unknown key 'neuron': did you mean 'neurons'?"),
        ({"neurons": 0}, "neurons: 0 is out of range: must be ≥ 1"),
        ({"step": 0.9}, "step: 0.9 is out of range: must be ≤ 0.5"),
        ({"coupling": [0.5, 0.1]}, "coupling=[0.5, 0.1]: the lower end comes first"),
        ({"drift": "linear"}, "drift=linear needs a range"),
        ({"drift": "linaer", "coupling": [0.1, 0.2]}, "did you mean 'linear'?"),
        ({"walk": 0.3}, "walk=0.3 is not read while drift=none"),
        ({"warm_up": 10}, "warm_up=10 doesn't fill window=250"),
        ({"warm_up": [250, 100]}, "warm_up=[250, 100]: the lower end comes first"),
        ({"pulse": "square"}, "pulse: 'square' is unknown"),
        ({"width": 3}, "width=3 is not read while pulse=direct"),
        ({"pulse": "charge_balanced", "width": 5, "recharge": 5}, "recharge=5 must be longer than width=5"),
        ({"levels": 1}, "levels: 1 is out of range"),
        ({"target": "median"}, "target"),
        ({"frozen": "no/such/run"}, "no/such/run"),
    ],
)
def test_bad_settings_are_refused_in_one_line(args, message):
    with pytest.raises(Refused) as refusal:
        make_group(EnvConfig(id="oscillator/bvp", args=args), 1)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_unknown_ensemble_is_refused_with_the_nearest():
    with pytest.raises(Refused, match="did you mean 'oscillator/bvp'"):
        make_group(EnvConfig(id="oscillator/bpv"), 1)
