"""The vector contract of this project: explicit masked reset, a seed per episode, the true final observation.

group.reset(mask=np.ones(K, bool), seeds=seeds)
while True:
    result = group.step(policy(group.obs), active)       # group.obs now shows what followed, final ones too
    over = result.terminated | result.truncated
    group.reset(over, next_seeds)                        # only now do ended rows show a new episode
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import gymnasium as gym
from numpy.typing import NDArray

from rollmill.errors import RollmillError
from rollmill.nested import Nested
from rollmill.types import Array


class EnvironmentFailed(RollmillError):
    """The environment's own code raised; the message names the environment, its index and the call."""


class StepResult(NamedTuple):
    """What one step of a group gave; rows of environments that were not active are 0 and False."""

    reward: Array  # float64 [K], raw
    terminated: Array  # bool [K]
    truncated: Array  # bool [K]; both flags may be set, as gymnasium's TimeLimit does


class EnvGroup(Protocol):
    """K environments stepped as one batch.

    `obs` and the arrays of a `StepResult` belong to the group and are overwritten by its next call: copy what must
    last. Actions come as the agent stores them ([K] int64, [K, n] int64 or [K, ...] float32). An episode depends on
    nothing but its seed and its actions: not on the index, the group's size, or what the other rows do.
    """

    size: int
    observation_space: gym.Space[Any]  # of one environment, after preprocessing
    action_space: gym.Space[Any]  # of one environment
    observation_spec: Nested  # of ArraySpec, one environment
    frame_skip: int  # frames per agent decision
    obs: Nested  # [K, ...] in the dtype of the spec, updated in place

    def reset(self, mask: NDArray[Any], seeds: NDArray[Any]) -> None:
        """Start a new episode with `seeds[k]` in every row k where `mask` (bool [K]) is True; touch no other row."""
        ...

    def step(self, action: Array, active: NDArray[Any]) -> StepResult:
        """Step the rows where `active` (bool [K]) is True; where an episode ends, `obs` shows its true final one.

        Stepping a row whose episode has ended, or never began, is a bug of the caller: RuntimeError.
        """
        ...

    def close(self) -> None:
        """Free what the environments hold."""
        ...


def needs_reset(index: int) -> RuntimeError:
    """The error for stepping a row that has no running episode."""
    return RuntimeError(f"environment {index} was stepped without a running episode: reset it first")
