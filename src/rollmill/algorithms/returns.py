"""Returns and advantages as pure functions of time-major arrays [T, B].

`terminated` ends the future; `truncated` only ends the episode: there the value of the true successor is in
`next_value`, like everywhere else. The two are never merged.
"""

from __future__ import annotations

import numpy as np

from rollmill.types import Array


def gae(
    reward: Array, value: Array, next_value: Array, terminated: Array, truncated: Array, gamma: float, gae_lambda: float
) -> Array:
    """Generalised advantage estimation (Schulman et al. 2016).

    delta[t] = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]
    A[t]     = delta[t] + gamma * lambda * (1 - ended[t]) * A[t+1],   ended = terminated or truncated, A[T] = 0

    next_value[t] is the value of the state that really followed step t, also where the episode was cut.
    """
    delta = reward + gamma * next_value * ~terminated - value
    decay = (gamma * gae_lambda * ~(terminated | truncated)).astype(delta.dtype)
    return _accumulated(delta, decay)


def vtrace(
    reward: Array,
    value: Array,
    next_value: Array,
    terminated: Array,
    truncated: Array,
    log_ratio: Array,
    gamma: float,
    gae_lambda: float,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and advantages (Espeholt et al. 2018, with the lambda of their remark 2).

    log_ratio = log pi(a|x) - log mu(a|x) of the learner's policy pi and the behaviour mu, and with

    rho[t] = min(rho_bar, ratio[t]),   c[t] = lambda * min(c_bar, ratio[t])
    delta[t] = reward[t] + gamma * next_value[t] * (1 - terminated[t]) - value[t]

    the targets v and the advantages A are

    v[t] - value[t] = rho[t] * delta[t] + gamma * c[t] * (1 - ended[t]) * (v[t+1] - value[t+1]),   v[T] = value[T]
    A[t]            = delta[t] + gamma * lambda * (1 - ended[t]) * (v[t+1] - value[t+1])

    The paper's advantage is rho[t] * A[t] for lambda = 1, its only lambda there. Here rho is left to the ratio of the
    loss, or it would count twice; and lambda also weighs the last summand, so that for pi = mu both v - value and A
    are those of `gae`. At a step with ratio zero, v = value.
    """
    continues = ~(terminated | truncated)
    delta = reward + gamma * next_value * ~terminated - value
    decay = (gamma * gae_lambda * continues).astype(delta.dtype)
    ratio = np.exp(log_ratio)
    correction = _accumulated(np.minimum(ratio, rho_bar) * delta, np.minimum(ratio, c_bar) * decay)
    advantage = delta
    advantage[:-1] += decay[:-1] * correction[1:]
    return value + correction, advantage


def _accumulated(delta: Array, decay: Array) -> Array:
    """x[t] = delta[t] + decay[t] * x[t+1], with x[T] = 0.

    In log2 T strides instead of T steps: once x[t] holds the sum over n steps, x[t+n] holds that over the n after them.
    """
    result, weight = delta.copy(), decay.copy()
    reach, most = 1, np.finfo(decay.dtype).max
    while reach < len(delta):
        result[:-reach] += weight[:-reach] * result[reach:]
        weight[:-reach] *= weight[reach:]
        np.minimum(weight, most, out=weight)  # or infinity would meet the zero of an episode's end
        reach *= 2
    return result


def running_returns(reward: Array, reset: Array, before: Array, gamma: float) -> Array:
    """Discounted sum of the rewards up to each step of its episode, [T, B].

    R[t] = reward[t] + gamma * (1 - reset[t]) * R[t-1], with R[-1] = before; reset[t]: step t is an episode's first.
    """
    decay = gamma * ~reset
    delta = reward.astype(np.float64)
    delta[0] += decay[0] * before
    return _accumulated(delta[::-1], decay[::-1])[::-1]


def reward_to_go(reward: Array, gamma: float, reset_on_reward: bool = False) -> Array:
    """Discounted sum of the rewards from each step to the end of one episode [T].

    R[t] = reward[t] + gamma * R[t+1];  with `reset_on_reward` the sum restarts at every non-zero reward, which is
    where a point of Pong ends.
    """
    result = np.empty(len(reward), np.float64)
    total = 0.0
    for t in reversed(range(len(reward))):
        total = float(reward[t]) + (0.0 if reset_on_reward and reward[t] != 0 else gamma * total)
        result[t] = total
    return result


def successor_values(value: Array, last_value: Array, truncated: Array, final_value: Array) -> Array:
    """The value of the true successor of every step, [T, B].

    Inside an unroll it is the value of the next row; after the last row `last_value` [B]; and where an episode was
    cut, `final_value` (one number per True in `truncated`, in row-major order). Terminated steps keep whatever is
    there: `gae` multiplies them by zero.
    """
    following = np.concatenate([value[1:], last_value[None]])
    following[truncated] = final_value
    return following


def explained_variance(prediction: Array, target: Array) -> float:
    """1 - Var(target - prediction) / Var(target); 1 is perfect, 0 no better than a constant."""
    variance = float(np.var(target))
    return float("nan") if variance == 0 else 1.0 - float(np.var(target - prediction)) / variance
