"""V-trace by hand arithmetic, by the paper's sum of products, and against other people's implementations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.algorithms.returns import gae, successor_values, vtrace

# Made once by the libraries and versions that each case names; see `source` there.
BY_OTHERS = json.loads((Path(__file__).parent / "vtrace_by_others.json").read_text())


def column(*numbers, dtype=np.float64):
    return np.array(numbers, dtype)[:, None]


NEVER = column(False, False, False, dtype=bool)
RATIOS = np.log(column(2, 0.5, 0.25))


def three_steps(following=(2, 3, 4), terminated=NEVER, truncated=NEVER, log_ratio=RATIOS, gae_lambda=1.0, **bounds):
    """Rewards 1, 2, 3 and values 1, 2, 3, then 4, with gamma = 0.5."""
    targets, advantage = vtrace(
        column(1, 2, 3),
        column(1, 2, 3),
        column(*following),
        terminated,
        truncated,
        log_ratio,
        0.5,
        gae_lambda,
        **bounds,
    )
    return targets[:, 0].tolist(), advantage[:, 0].tolist()


def test_three_steps_by_hand():
    # ratios 2, 0.5, 0.25, so rho = c = 1, 0.5, 0.25; delta = reward + 0.5 · next value - value = 1, 1.5, 2
    # v2 - V2 = 0.25 · 2                      = 0.5        v2 = 3.5
    # v1 - V1 = 0.5 · 1.5 + 0.5 · 0.5 · 0.5   = 0.875      v1 = 2.875
    # v0 - V0 = 1 · 1 + 0.5 · 1 · 0.875       = 1.4375     v0 = 2.4375
    # A2 = 3 + 0.5 · 4 - 3 = 2;   A1 = 2 + 0.5 · 3.5 - 2 = 1.75;   A0 = 1 + 0.5 · 2.875 - 1 = 1.4375
    assert three_steps() == ([2.4375, 2.875, 3.5], [1.4375, 1.75, 2.0])


def test_the_two_bounds_are_two():
    # rho_bar = 2: rho = 2, 0.5, 0.25; c_bar = 0.25: c = 0.25, 0.25, 0.25
    # v2 - V2 = 0.5;  v1 - V1 = 0.75 + 0.5 · 0.25 · 0.5 = 0.8125;  v0 - V0 = 2 · 1 + 0.5 · 0.25 · 0.8125 = 2.1015625
    targets, _ = three_steps(rho_bar=2.0, c_bar=0.25)
    assert targets == [3.1015625, 2.8125, 3.5]


def test_lambda_shortens_both_targets_and_advantages():
    # lambda = 0.5: v2 - V2 = 0.5;  v1 - V1 = 0.75 + 0.5 · 0.25 · 0.5 = 0.8125;  v0 - V0 = 1 + 0.5 · 0.5 · 0.8125
    # A2 = 2;  A1 = 1.5 + 0.25 · 0.5 = 1.625;  A0 = 1 + 0.25 · 0.8125 = 1.203125
    targets, advantage = three_steps(gae_lambda=0.5)
    assert targets == [2.203125, 2.8125, 3.5]
    assert advantage == [1.203125, 1.625, 2.0]


def test_a_terminated_step_has_no_future():
    # step 1 terminates, and 99 is not looked at: delta1 = 2 - 2 = 0, v1 = 2, A1 = 0
    # v0 - V0 = 1 + 0.5 · 1 · 0 = 1, A0 = 1 + 0.5 · 2 - 1 = 1; step 2 is another episode, as before
    targets, advantage = three_steps((2, 99, 4), terminated=column(False, True, False, dtype=bool))
    assert targets == [2.0, 2.0, 3.5]
    assert advantage == [1.0, 0.0, 2.0]


def test_a_truncated_step_keeps_the_value_of_its_true_successor():
    # step 1 is cut before a state worth 10: delta1 = 2 + 0.5 · 10 - 2 = 5, v1 - V1 = 0.5 · 5 = 2.5, A1 = 5
    # v0 - V0 = 1 + 0.5 · 1 · 2.5 = 2.25, A0 = 1 + 0.5 · 4.5 - 1 = 2.25; nothing of step 2 flows back
    targets, advantage = three_steps((2, 10, 4), truncated=column(False, True, False, dtype=bool))
    assert targets == [3.25, 4.5, 3.5]
    assert advantage == [2.25, 5.0, 2.0]


def test_the_end_of_an_unroll_bootstraps_from_what_follows_it():
    # what follows is worth 40 instead of 4: delta2 grows by 0.5 · 36 = 18, v2 by 0.25 · 18 = 4.5
    (_, _, target), (_, _, advantage) = three_steps((2, 3, 40))
    assert (target, advantage) == (3.5 + 4.5, 2.0 + 18.0)


def test_exact_values_of_an_endless_reward_stay_whatever_the_ratios():
    # reward 1 for ever is worth 1 / (1 - 0.9) = 10; cut every 5 steps by a time limit, all errors are 0
    value, truncated = np.full((20, 2), 10.0), np.zeros((20, 2), bool)
    truncated[4::5] = True
    following = successor_values(value, np.full(2, 10.0), truncated, np.full(int(truncated.sum()), 10.0))
    log_ratio = np.random.default_rng(0).normal(size=(20, 2))
    targets, advantage = vtrace(
        np.ones((20, 2)), value, following, np.zeros_like(truncated), truncated, log_ratio, 0.9, 0.95
    )
    np.testing.assert_allclose(targets, 10, rtol=1e-12)
    np.testing.assert_allclose(advantage, 0, atol=1e-12)


def test_a_step_of_ratio_zero_says_nothing_and_passes_nothing_on():
    # step 1 sat out: v1 = V1 whatever its reward, and step 0 sees nothing but V1: v0 - V0 = 1, A0 = 1
    log_ratio = column(0.0, -np.inf, 0.0)
    targets, advantage = three_steps(log_ratio=log_ratio)
    assert targets == [2.0, 2.0, 5.0]
    assert (advantage[0], advantage[2]) == (1.0, 2.0)


def test_equal_policies_give_n_step_returns():
    # lambda = 1, all ratios 1: G2 = 3 + 0.5 · 4 = 5, G1 = 2 + 0.5 · 5 = 4.5, G0 = 1 + 0.5 · 4.5 = 3.25
    targets, advantage = three_steps(log_ratio=column(0, 0, 0))
    assert targets == [3.25, 4.5, 5.0]
    assert advantage == [2.25, 2.5, 2.0]


def experience(seed, steps=8, columns=3):
    """Random arguments up to the ratios, with ends of both kinds."""
    rng = np.random.default_rng(seed)
    terminated = rng.random((steps, columns)) < 0.15
    truncated = (rng.random((steps, columns)) < 0.15) & ~terminated
    reward, value, following = (rng.normal(size=(steps, columns)) for _ in range(3))
    following[:-1] = np.where(truncated[:-1], following[:-1], value[1:])
    return (reward, value, following, terminated, truncated), rng.normal(size=(steps, columns))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equal_policies_give_the_advantages_of_gae(seed, gae_lambda):
    arguments, _ = experience(seed)
    targets, advantage = vtrace(*arguments, np.zeros_like(arguments[0]), 0.9, gae_lambda)
    wanted = gae(*arguments, 0.9, gae_lambda)
    np.testing.assert_array_equal(targets, arguments[1] + wanted)
    np.testing.assert_allclose(advantage, wanted, rtol=1e-6, atol=1e-6)  # its sums have another order


def test_ratios_that_multiply_beyond_all_bounds_reach_no_further_than_their_episode():
    steps = 128
    nothing, ended = np.zeros((steps, 1), np.float32), np.zeros((steps, 1), bool)
    reward, terminated = nothing.copy(), ended.copy()
    reward[0], terminated[120] = 1, True
    tenfold = np.full((steps, 1), np.log(10), np.float32)
    with np.errstate(over="ignore"):  # 9.4 to the 120th
        found = vtrace(reward, nothing, nothing, terminated, ended, tenfold, 0.99, 0.95, rho_bar=1.0, c_bar=10.0)
    for numbers in found:
        np.testing.assert_array_equal(numbers, reward)


def by_the_papers_sum(arguments, log_ratio, gamma, gae_lambda, rho_bar, c_bar):
    """v[s] = V[s] + sum over t of gamma^(t-s) · (product of c[s] … c[t-1]) · rho[t] · delta[t], until the episode ends.

    The advantage is the q - V of section 4.2, with lambda between v[s+1] and V of the successor.
    """
    reward, value, following, terminated, truncated = arguments
    steps, columns = reward.shape
    ratio = np.exp(log_ratio)
    targets = value.copy()
    for b in range(columns):
        for s in range(steps):
            for t in range(s, steps):
                product = np.prod([gae_lambda * min(c_bar, ratio[i, b]) for i in range(s, t)])
                future = 0.0 if terminated[t, b] else gamma * following[t, b]
                error = min(rho_bar, ratio[t, b]) * (reward[t, b] + future - value[t, b])
                targets[s, b] += gamma ** (t - s) * product * error
                if terminated[t, b] or truncated[t, b]:
                    break
    advantage = np.zeros_like(value)
    for b in range(columns):
        for s in range(steps):
            successor = following[s, b]
            if s + 1 < steps and not truncated[s, b]:
                successor = gae_lambda * targets[s + 1, b] + (1 - gae_lambda) * following[s, b]
            future = 0.0 if terminated[s, b] else gamma * successor
            advantage[s, b] = reward[s, b] + future - value[s, b]
    return targets, advantage


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([0.5, 0.95, 1.0]), st.sampled_from([(1.0, 1.0), (2.0, 0.7), (0.5, 1.5)]))
def test_the_recursion_equals_the_sum_of_products(seed, gae_lambda, bounds):
    arguments, log_ratio = experience(seed)
    found = vtrace(*arguments, log_ratio, 0.9, gae_lambda, *bounds)
    wanted = by_the_papers_sum(arguments, log_ratio, 0.9, gae_lambda, *bounds)
    np.testing.assert_allclose(found, wanted, atol=1e-10)


@pytest.mark.parametrize("case", BY_OTHERS, ids=lambda case: case["source"].split()[0])
def test_others_find_the_same(case):
    fields = ("reward", "value", "next_value", "terminated", "truncated", "log_ratio")
    arguments = [np.array(case[field]) for field in fields]
    assert arguments[3].any()
    targets, advantage = vtrace(*arguments, **case["settings"])
    np.testing.assert_allclose(targets, case["targets"], atol=1e-9)
    # they weigh the advantage with rho, which here the ratio of the loss does
    rho = np.minimum(np.exp(arguments[-1]), case["settings"]["rho_bar"])
    np.testing.assert_allclose(rho * advantage, case["weighted_advantage"], atol=1e-9)


def test_arguments_stay_as_they_are_and_float32_stays_float32():
    arguments, log_ratio = experience(1)
    inputs = [array.astype(np.float32) if array.dtype == np.float64 else array for array in (*arguments, log_ratio)]
    copies = [array.copy() for array in inputs]
    targets, advantage = vtrace(*inputs, 0.9, 0.95)
    assert targets.dtype == advantage.dtype == np.float32
    for array, copy in zip(inputs, copies, strict=True):
        np.testing.assert_array_equal(array, copy)
