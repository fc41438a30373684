"""Returns by hand arithmetic, and against an independent implementation."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.algorithms.returns import explained_variance, gae, reward_to_go, successor_values


def column(*numbers, dtype=np.float64):
    return np.array(numbers, dtype)[:, None]


NEVER = column(False, False, False, dtype=bool)


def test_gae_of_three_steps_by_hand():
    # gamma = 0.5, lambda = 0.5, so decay = 0.25; values 1, 2, 3, then 4
    # delta2 = 3 + 0.5·4 - 3 = 2        A2 = 2
    # delta1 = 2 + 0.5·3 - 2 = 1.5      A1 = 1.5 + 0.25·2 = 2
    # delta0 = 1 + 0.5·2 - 1 = 1        A0 = 1 + 0.25·2 = 1.5
    advantage = gae(column(1, 2, 3), column(1, 2, 3), column(2, 3, 4), NEVER, NEVER, 0.5, 0.5)
    assert advantage[:, 0].tolist() == [1.5, 2.0, 2.0]


def test_a_terminated_step_has_no_future():
    # step 1 terminates: delta1 = 2 - 2 = 0, A1 = 0 and nothing of step 2 flows back; the value of 99 is not used
    # delta0 = 1 + 0.5·2 - 1 = 1, A0 = 1 + 0.25·0 = 1
    terminated = column(False, True, False, dtype=bool)
    advantage = gae(column(1, 2, 3), column(1, 2, 3), column(2, 99, 4), terminated, NEVER, 0.5, 0.5)
    assert advantage[:, 0].tolist() == [1.0, 0.0, 2.0]


def test_a_truncated_step_keeps_the_value_of_its_true_successor():
    # step 1 is cut; its true successor is worth 10: delta1 = 2 + 0.5·10 - 2 = 5, A1 = 5 (the carry is cut)
    # A0 = 1 + 0.25·5 = 2.25
    truncated = column(False, True, False, dtype=bool)
    following = successor_values(column(1, 2, 3), np.array([4.0]), truncated, np.array([10.0]))
    assert following[:, 0].tolist() == [2, 10, 4]
    advantage = gae(column(1, 2, 3), column(1, 2, 3), following, NEVER, truncated, 0.5, 0.5)
    assert advantage[:, 0].tolist() == [2.25, 5.0, 2.0]


def test_an_endless_constant_reward_is_worth_reward_over_one_minus_gamma():
    # Cut every 5 steps by a time limit, with exact values V = 1 / (1 - gamma) = 10 everywhere: all advantages are 0.
    gamma, steps = 0.9, 20
    value = np.full((steps, 2), 10.0)
    truncated = np.zeros((steps, 2), bool)
    truncated[4::5] = True
    following = successor_values(value, np.full(2, 10.0), truncated, np.full(int(truncated.sum()), 10.0))
    advantage = gae(np.ones((steps, 2)), value, following, np.zeros_like(truncated), truncated, gamma, 0.95)
    np.testing.assert_allclose(advantage, 0, atol=1e-12)


def test_lambda_one_is_the_discounted_return_minus_the_value():
    rewards, value = column(1, 2, 3), column(5, 6, 7)
    # G2 = 3 + 0.5·8 = 7, G1 = 2 + 3.5 = 5.5, G0 = 1 + 2.75 = 3.75
    advantage = gae(rewards, value, column(6, 7, 8), NEVER, NEVER, 0.5, 1.0)
    np.testing.assert_allclose(advantage[:, 0] + value[:, 0], [3.75, 5.5, 7.0])


def independent_gae(reward, value, last_value, final_value, terminated, truncated, gamma, lam):
    """Written from the definition, as a sum over future deltas, one column and one step at a time."""
    steps, columns = reward.shape
    result = np.zeros((steps, columns))
    for b in range(columns):
        for t in range(steps):
            weight = 1.0
            for s in range(t, steps):
                if terminated[s, b]:
                    successor = 0.0
                elif truncated[s, b]:
                    successor = final_value[s, b]
                else:
                    successor = value[s + 1, b] if s + 1 < steps else last_value[b]
                result[t, b] += weight * (reward[s, b] + gamma * successor - value[s, b])
                if terminated[s, b] or truncated[s, b]:
                    break
                weight *= gamma * lam
    return result


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_gae_agrees_with_the_sum_over_deltas(seed, steps, columns, gamma, lam):
    rng = np.random.default_rng(seed)
    reward, value, final_value = rng.normal(size=(3, steps, columns))
    last_value = rng.normal(size=columns)
    terminated = rng.random((steps, columns)) < 0.2
    truncated = (rng.random((steps, columns)) < 0.2) & ~terminated
    following = successor_values(value, last_value, truncated, final_value[truncated])
    ours = gae(reward, value, following, terminated, truncated, gamma, lam)
    theirs = independent_gae(reward, value, last_value, final_value, terminated, truncated, gamma, lam)
    np.testing.assert_allclose(ours, theirs, atol=1e-10)


def test_reward_to_go_by_hand():
    # R2 = 4, R1 = 2 + 0.5·4 = 4, R0 = 1 + 0.5·4 = 3
    assert reward_to_go(np.array([1.0, 2.0, 4.0]), 0.5).tolist() == [3.0, 4.0, 4.0]


def test_reward_to_go_restarts_at_a_point():
    # 0, +1, 0, -1: the point at step 1 doesn't hear of the one at step 3
    assert reward_to_go(np.array([0.0, 1.0, 0.0, -1.0]), 0.5, reset_on_reward=True).tolist() == [0.5, 1.0, -0.5, -1.0]


def test_explained_variance_of_a_perfect_and_a_constant_prediction():
    target = np.array([1.0, 2.0, 3.0])
    assert explained_variance(target, target) == 1.0
    assert explained_variance(np.full(3, 7.0), target) == 0.0
    assert np.isnan(explained_variance(target, np.ones(3)))
