"""The last action and the last reward as parts of the observation, for agents that remember."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill import spaces
from rollmill.envs.group import EnvGroup, StepResult
from rollmill.envs.snapshot_bytes import pack, packed_size, row_bytes, row_size, unpack, write_row
from rollmill.errors import Refused
from rollmill.nested import Nested
from rollmill.types import Array

OBSERVATION, ACTION, REWARD = "observation", "previous_action", "previous_reward"
_KIND = "previous action and reward"


class PreviousGroup:
    """Adds two entries to the observation, which becomes a dict; the contract is `EnvGroup`.

    `previous_action`: one-hot for discrete actions, otherwise the values as the environment took them (clipped);
    `previous_reward`: raw, [1]. Both are zero at the start of an episode. An observation that was not a dict becomes
    the entry `observation`.
    """

    def __init__(self, group: EnvGroup) -> None:
        self.inner = group
        self.size = group.size
        self.broken = group.broken
        self.troubles = group.troubles
        self.action_space = group.action_space
        self.frame_skip = group.frame_skip
        self.frame_rate = group.frame_rate
        action = _action_space(group.action_space)
        self.observation_space = _with_previous(group.observation_space, action)
        self.observation_spec = spaces.observation_spec(self.observation_space)

        self._action = np.zeros((group.size, *action.shape), np.float32)
        self._reward = np.zeros((group.size, 1), np.float32)
        self._added = {ACTION: self._action, REWARD: self._reward}
        # the arrays of the group underneath, which it updates in place
        shown = group.obs if isinstance(group.obs, dict) else {OBSERVATION: group.obs}
        self.obs: Nested = {**shown, **self._added}
        inner = group.snapshot_size
        self.snapshot_size = packed_size(_KIND, inner, row_size(self._added)) if inner else 0
        self._starts = _starts(group.action_space)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Reset the masked rows: nothing came before."""
        self.inner.reset(mask, seeds)
        begun = mask & ~self.broken
        self._action[begun] = 0.0
        self._reward[begun] = 0.0

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Step the active rows and show what was done and what it gave, besides what followed."""
        result = self.inner.step(action, active)
        rows = np.flatnonzero(active & ~self.broken)
        self._reward[rows, 0] = result.reward[rows]
        if self._starts is None:
            taken = spaces.to_environment(self.action_space, action)
            self._action[rows] = taken.reshape(self.size, -1)[rows]
        else:
            self._action[rows] = 0.0
            self._action[rows[:, None], action.reshape(self.size, -1)[rows] + self._starts] = 1.0
        return result

    def snapshot(self, k: int) -> bytes:
        """Both parts, and the state of the group underneath."""
        inner = self.inner.snapshot(k)
        return pack(_KIND, inner, row_bytes(self._added, k)) if inner else b""

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        inner, added = unpack(_KIND, data, 2)
        self.inner.restore(k, inner)
        write_row(self._added, k, added)

    def render(self, k: int) -> Array:
        """The picture of the group underneath."""
        return self.inner.render(k)

    def info(self, k: int) -> dict[str, Any]:
        """What the group underneath says."""
        return self.inner.info(k)

    def close(self) -> None:
        """Close the group underneath."""
        self.inner.close()


def _with_previous(space: gym.Space[Any], action: gym.Space[Any]) -> gym.Space[Any]:
    """The observation space with both parts added."""
    children = spaces.observation_leaf_space(space)
    parts = children if isinstance(children, dict) else {OBSERVATION: space}
    for name in (ACTION, REWARD):
        if name in parts:
            raise Refused(f"env.previous=true: the observation already has a part '{name}'; remove the key")
    return gym.spaces.Dict({**parts, ACTION: action, REWARD: gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)})


def _action_space(space: gym.Space[Any]) -> gym.spaces.Box:
    """How an action is shown: one row of floats."""
    spaces.action_spec(space)  # refuses what can't be acted in
    if isinstance(space, gym.spaces.Box):
        # zero is always within: it means no action yet
        low, high = np.minimum(space.low, 0).ravel(), np.maximum(space.high, 0).ravel()
        return gym.spaces.Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)
    return gym.spaces.Box(0.0, 1.0, (int(_sizes(space).sum()),), np.float32)


def _starts(space: gym.Space[Any]) -> NDArray[np.int64] | None:
    """Where the one-hot part of each choice starts in the row; None for continuous actions."""
    if isinstance(space, gym.spaces.Box):
        return None
    sizes = _sizes(space)
    return np.asarray(np.cumsum(sizes) - sizes)


def _sizes(space: Any) -> NDArray[np.int64]:
    """Number of options of each choice."""
    return np.atleast_1d(np.asarray(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec, np.int64))
