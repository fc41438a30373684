"""Classical controllers as baselines; they read the true means of x and y, and have gains for each model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.player import Player, base_group
from rollmill.types import Array
from rollmill_envs.oscillator.stimulus import Floats, action_of

_GAINS = {"oscillator/bvp": 0.02, "oscillator/hindmarsh-rose": 0.4}
_DELAYED = {"oscillator/bvp": (0.3, 4), "oscillator/hindmarsh-rose": (0.05, 80)}  # gain, delay in integration steps


class Feedback:
    """A player whose action follows from the last means of x and of y, [K, 2, window]."""

    def __init__(self, rule: Callable[[Floats], Floats]) -> None:
        self._rule = rule

    def __call__(self, group: EnvGroup, reset: NDArray[np.bool_]) -> Array:
        """Decide for all rows."""
        base = base_group(group)
        fields, settings = base.fields, base.settings  # type: ignore[attr-defined]
        return action_of(self._rule(fields), base.action_space, settings.action_limit)


def mean_field(gain: float) -> Player:
    """Proportional feedback: a = −gain·(X − mean of the last X)."""
    return Feedback(lambda fields: -gain * (fields[:, 0, -1] - fields[:, 0].mean(-1)))


def delayed(gain: float, delay: int) -> Player:
    """Linear delayed feedback (Rosenblum and Pikovsky, 2004): a = gain·(Y(t − delay) − Y(t))."""

    def rule(fields: Floats) -> Floats:
        past = max(fields.shape[2] - 1 - delay, 0)  # the oldest value there is, in a window that is shorter
        return gain * (fields[:, 1, past] - fields[:, 1, -1])

    return Feedback(rule)


def zero() -> Player:
    """No action at all: the ensemble left to itself."""
    return Feedback(lambda fields: np.zeros(len(fields)))


SCRIPTS: Mapping[str, Callable[[EnvConfig, int], Player]] = {
    "mean-field": lambda config, size: mean_field(_GAINS[config.id]),
    "delayed": lambda config, size: delayed(*_DELAYED[config.id]),
    "zero": lambda config, size: zero(),
}
