"""The integration of coupled neurons as compiled loops: K ensembles of N neurons in one call, row by row.

Bonhoeffer–van der Pol:  x' = x − x³/3 − y + I + ε·X,           y' = 0.1·(x − 0.8·y + 0.7)
Hindmarsh–Rose:          x' = y − x³ + 3x² − z + I + ε·X,        y' = 1 − 5x² − y,    z' = 0.006·(4·(x + 1.56) − z)

with X the mean of all x, at every stage of the classical Runge–Kutta method. All in float64. Sums go through eight
lanes, because a plain sum can't be vectorised without changing its order; so a row's numbers are the same on every
machine, at every place in a group. All compiled functions are in this file: numba's cache checks no other.
"""

from __future__ import annotations

from typing import Any

from rollmill.native import compiled

BVP, HINDMARSH_ROSE = 0, 1
SCRATCH_ROWS = 6  # for the stages of three variables and the sum of their slopes


@compiled
def total(values: Any) -> float:
    """The sum of an array, in a fixed order that vectorises."""
    size = values.shape[0]
    whole = size - size % 8
    a = b = c = d = e = f = g = h = 0.0
    for i in range(0, whole, 8):
        a += values[i]
        b += values[i + 1]
        c += values[i + 2]
        d += values[i + 3]
        e += values[i + 4]
        f += values[i + 5]
        g += values[i + 6]
        h += values[i + 7]
    for i in range(whole, size):
        a += values[i]
    return ((a + b) + (c + d)) + ((e + f) + (g + h))


@compiled
def bvp_slopes(x: float, y: float, current: float) -> tuple[float, float]:
    """The derivatives of one neuron; `current` includes the coupling."""
    return x - x * x * x * (1.0 / 3.0) - y + current, 0.1 * (x - 0.8 * y + 0.7)


@compiled
def hindmarsh_rose_slopes(x: float, y: float, z: float, current: float) -> tuple[float, float, float]:
    """The derivatives of one neuron; `current` includes the coupling."""
    square = x * x
    return y - square * x + 3.0 * square - z + current, 1.0 - 5.0 * square - y, 0.006 * (4.0 * (x + 1.56) - z)


@compiled
def advance_bvp(state: Any, current: Any, coupling: float, step: float, scratch: Any) -> None:
    """One step of one ensemble: state [2, N], current [N], scratch [SCRATCH_ROWS, N]."""
    x, y = state[0], state[1]
    u, v, sum_u, sum_v = scratch[0], scratch[1], scratch[2], scratch[3]
    size = x.shape[0]
    field = coupling * (total(x) / size)
    for i in range(size):
        du, dv = bvp_slopes(x[i], y[i], current[i] + field)
        sum_u[i], sum_v[i] = du, dv
        u[i], v[i] = x[i] + 0.5 * step * du, y[i] + 0.5 * step * dv
    for reach in (0.5 * step, step):  # the second and the third stage, and how far each continues from the start
        field = coupling * (total(u) / size)
        for i in range(size):
            du, dv = bvp_slopes(u[i], v[i], current[i] + field)
            sum_u[i] += 2.0 * du
            sum_v[i] += 2.0 * dv
            u[i], v[i] = x[i] + reach * du, y[i] + reach * dv
    field = coupling * (total(u) / size)
    for i in range(size):
        du, dv = bvp_slopes(u[i], v[i], current[i] + field)
        x[i] += step / 6.0 * (sum_u[i] + du)
        y[i] += step / 6.0 * (sum_v[i] + dv)


@compiled
def advance_hindmarsh_rose(state: Any, current: Any, coupling: float, step: float, scratch: Any) -> None:
    """One step of one ensemble: state [3, N], current [N], scratch [SCRATCH_ROWS, N]."""
    x, y, z = state[0], state[1], state[2]
    u, v, w, sum_u, sum_v, sum_w = scratch[0], scratch[1], scratch[2], scratch[3], scratch[4], scratch[5]
    size = x.shape[0]
    field = coupling * (total(x) / size)
    for i in range(size):
        du, dv, dw = hindmarsh_rose_slopes(x[i], y[i], z[i], current[i] + field)
        sum_u[i], sum_v[i], sum_w[i] = du, dv, dw
        u[i], v[i], w[i] = x[i] + 0.5 * step * du, y[i] + 0.5 * step * dv, z[i] + 0.5 * step * dw
    for reach in (0.5 * step, step):
        field = coupling * (total(u) / size)
        for i in range(size):
            du, dv, dw = hindmarsh_rose_slopes(u[i], v[i], w[i], current[i] + field)
            sum_u[i] += 2.0 * du
            sum_v[i] += 2.0 * dv
            sum_w[i] += 2.0 * dw
            u[i], v[i], w[i] = x[i] + reach * du, y[i] + reach * dv, z[i] + reach * dw
    field = coupling * (total(u) / size)
    for i in range(size):
        du, dv, dw = hindmarsh_rose_slopes(u[i], v[i], w[i], current[i] + field)
        x[i] += step / 6.0 * (sum_u[i] + du)
        y[i] += step / 6.0 * (sum_v[i] + dv)
        z[i] += step / 6.0 * (sum_w[i] + dw)


@compiled
def coupling_at(path: Any, spacing: float, clock: int) -> float:
    """ε at an integration step: linear between the knots of its path, constant outside of them."""
    place = max(clock, 0) / spacing
    last = path.shape[0] - 1
    if place >= last:
        return path[last]  # type: ignore[no-any-return]
    knot = int(place)
    share = place - knot
    return path[knot] * (1.0 - share) + path[knot + 1] * share  # type: ignore[no-any-return]


@compiled
def advance_rows(
    model: int,
    active: Any,  # bool [K]
    state: Any,  # [K, variables, N]
    current: Any,  # [K, N]
    paths: Any,  # [K, knots], of ε
    spacing: float,  # integration steps between two knots
    clock: Any,  # int64 [K], integration steps of the episode; negative while it warms up
    step: float,
    amplitude: Any,  # [K], the action
    pulse: Any,  # [P], which part of the action every x is moved by before each of P integration steps
    fields: Any,  # [K, 2, window]: the last means of x and of y, oldest first
    target: float,  # NaN: the mean of the window
    reward: Any,  # [K], out: minus the squared deviation of X from the target, mean over the P steps
    scratch: Any,
) -> None:
    """Apply one action to every active ensemble."""
    size, window = state.shape[2], fields.shape[2]
    for k in range(active.shape[0]):
        if not active[k]:
            continue
        x, deviation = state[k, 0], 0.0
        x_means, y_means = fields[k, 0], fields[k, 1]
        for p in range(pulse.shape[0]):
            kick = amplitude[k] * pulse[p]
            if kick != 0.0:
                for i in range(size):
                    x[i] += kick
            coupling = coupling_at(paths[k], spacing, clock[k])
            if model == BVP:
                advance_bvp(state[k], current[k], coupling, step, scratch)
            else:
                advance_hindmarsh_rose(state[k], current[k], coupling, step, scratch)
            clock[k] += 1
            for j in range(window - 1):
                x_means[j] = x_means[j + 1]
                y_means[j] = y_means[j + 1]
            x_mean = total(x) / size
            x_means[window - 1] = x_mean
            y_means[window - 1] = total(state[k, 1]) / size
            wanted = total(x_means) / window if target != target else target  # only NaN differs from itself
            deviation += (x_mean - wanted) ** 2
        reward[k] = -deviation / pulse.shape[0]
