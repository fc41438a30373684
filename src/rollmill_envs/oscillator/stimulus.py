"""How an action reaches the neurons: as a number within the limits, spread over a pulse."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill.types import Array
from rollmill_envs.oscillator.config import OscillatorConfig

Floats = NDArray[np.float64]


def pulse_of(settings: OscillatorConfig) -> Floats:
    """Which part of an action every x is moved by before each integration step of one decision, [P].

    The parts of a direct or rectangular pulse add up to 1, those of a charge-balanced one to 0.
    """
    if settings.pulse == "direct":
        return np.ones(1)
    parts = [np.full(settings.width, 1 / settings.width)]
    if settings.pulse == "charge_balanced":
        parts.append(np.full(settings.recharge, -1 / settings.recharge))
    return np.concatenate([*parts, np.zeros(settings.rest)])


def action_space_of(settings: OscillatorConfig) -> gym.Space[Any]:
    """One number within ± the limit, or one of evenly spaced levels."""
    if settings.levels is not None:
        return gym.spaces.Discrete(settings.levels)
    return gym.spaces.Box(-settings.action_limit, settings.action_limit, (1,), np.float32)


def amplitude_of(action: Array, space: gym.Space[Any], limit: float) -> Floats:
    """Actions as an agent stores them, as amplitudes [K] within ± the limit."""
    if isinstance(space, gym.spaces.Discrete):
        return (2 * limit / (int(space.n) - 1)) * action.astype(np.float64) - limit
    return np.clip(action[:, 0].astype(np.float64), -limit, limit)


def action_of(amplitude: Floats, space: gym.Space[Any], limit: float) -> Array:
    """Amplitudes as an agent would store them: the nearest level where they are discrete."""
    bounded = np.clip(amplitude, -limit, limit)
    if isinstance(space, gym.spaces.Discrete):
        return np.rint((bounded + limit) * ((int(space.n) - 1) / (2 * limit))).astype(np.int64)
    return bounded.astype(np.float32)[:, None]
