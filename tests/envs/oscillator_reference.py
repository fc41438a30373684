"""The oscillator written plainly: one ensemble, numpy, straight from the definition."""

from __future__ import annotations

import numpy as np


def bvp(state, current, coupling):
    x, y = state
    return np.stack([x - x**3 / 3 - y + current + coupling * x.mean(), 0.1 * (x - 0.8 * y + 0.7)])


def hindmarsh_rose(state, current, coupling):
    x, y, z = state
    dx = y - x**3 + 3 * x**2 - z + current + coupling * x.mean()
    return np.stack([dx, 1 - 5 * x**2 - y, 0.006 * (4 * (x + 1.56) - z)])


SLOPES = {"oscillator/bvp": bvp, "oscillator/hindmarsh-rose": hindmarsh_rose}


def runge_kutta(slopes, state, step):
    first = slopes(state)
    second = slopes(state + step / 2 * first)
    third = slopes(state + step / 2 * second)
    fourth = slopes(state + step * third)
    return state + step / 6 * (first + 2 * second + 2 * third + fourth)


class Ensemble:
    """N neurons with the draws of an episode's seed, in the order that the docs give."""

    def __init__(self, env_id, seed, neurons=1000, coupling=None):
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed)))
        if env_id == "oscillator/bvp":
            self.step, self.coupling, window = 0.2, 0.03, 250
            self.current = draw.normal(0.6, 0.1, neurons)
            self.state = np.stack([draw.uniform(-1, 1, neurons), draw.uniform(-1, 1, neurons)])
        else:
            self.step, self.coupling, window = 0.05, 0.2, 150
            self.current = draw.normal(3.0, 0.02, neurons)
            starts = ((-1, 1), (-1, 1), (2.2, 3.0))
            self.state = np.stack([draw.uniform(low, high, neurons) for low, high in starts])
        self.coupling = coupling or self.coupling
        self.env_id, self.window = env_id, window
        self.x_means, self.y_means = [], []
        for _ in range(window):
            self.advance(0.0)

    def advance(self, kick, coupling=None):
        """Move every x, then integrate one step."""
        self.state[0] += kick
        coupling = self.coupling if coupling is None else coupling
        slopes = SLOPES[self.env_id]
        self.state = runge_kutta(lambda state: slopes(state, self.current, coupling), self.state, self.step)
        self.x_means.append(self.state[0].mean())
        self.y_means.append(self.state[1].mean())
