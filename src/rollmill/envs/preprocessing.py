"""Groups around any group that change what an agent sees: stacked frames, and the last action and reward."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill import nested, spaces
from rollmill.envs.group import EnvGroup, StepResult
from rollmill.envs.snapshot_bytes import pack, packed_size, row_bytes, row_size, unpack, write_row
from rollmill.errors import Refused
from rollmill.nested import Nested
from rollmill.types import Array, FrameStack, lead

OBSERVATION, ACTION, REWARD = "observation", "previous_action", "previous_reward"  # what a `PreviousGroup` shows


class WrappedGroup:
    """A group around another one; the contract is `EnvGroup`, of which `reset`, `step` and `obs` are left to do.

    `kept` is what the wrapper itself remembers of each row: arrays [K, …], part of a snapshot of this `kind`.
    """

    def __init__(self, kind: str, group: EnvGroup, observation_space: gym.Space[Any], kept: Nested) -> None:
        self.inner = group
        self.size = group.size
        self.broken = group.broken
        self.troubles = group.troubles
        self.action_space = group.action_space
        self.frame_skip = group.frame_skip
        self.frame_rate = group.frame_rate
        self.stacks = group.stacks
        self.observation_space = observation_space
        self.observation_spec = spaces.observation_spec(observation_space)
        self._kind, self._kept = kind, kept
        inner = group.snapshot_size
        self.snapshot_size = packed_size(kind, inner, row_size(kept)) if inner else 0

    def snapshot(self, k: int) -> bytes:
        """The state of the environment underneath, and what is kept of the row."""
        inner = self.inner.snapshot(k)
        return pack(self._kind, inner, row_bytes(self._kept, k)) if inner else b""

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        inner, kept = unpack(self._kind, data, 2)
        self.inner.restore(k, inner)
        write_row(self._kept, k, kept)

    def render(self, k: int) -> Array:
        """The picture of the group underneath."""
        return self.inner.render(k)

    def info(self, k: int) -> dict[str, Any]:
        """The info of the group underneath."""
        return self.inner.info(k)

    def close(self) -> None:
        """Close the group underneath."""
        self.inner.close()


class StackedGroup(WrappedGroup):
    """A group that shows the last `count` observations at once, oldest first; the contract is `EnvGroup`.

    [D] becomes [count·D] and [H, W] becomes [count, H, W]; images with channels grow along the channel axis. An
    episode starts with its first observation repeated.
    """

    def __init__(self, group: EnvGroup, count: int) -> None:
        space = stack_space(group.observation_space, count)
        shape = lead(spaces.observation_spec(space), group.size)
        self.obs: Nested = nested.map_leaves(lambda spec: spec.zeros(), shape)
        super().__init__("frame stack", group, space, self.obs)
        pairs = list(zip(nested.leaves(self.obs), nested.leaves(group.obs), strict=True))
        self._stacks = [_Stack(target, source, count) for (_, target), (_, source) in pairs]
        self.stacks = {path: FrameStack(count, _growing_axis(source.shape[1:])) for (path, _), (_, source) in pairs}

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Reset the masked rows and fill their stacks with the first observation."""
        self.inner.reset(mask, seeds)
        for stack in self._stacks:
            stack.fill(mask & ~self.broken)

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Step the active rows and push what they show now."""
        result = self.inner.step(action, active)
        for stack in self._stacks:
            stack.push(active & ~self.broken)
        return result


class _Stack:
    """One leaf: views of the stacked array and of its source with the growing axis first after the rows."""

    def __init__(self, target: Array, source: Array, count: int) -> None:
        axis = _growing_axis(source.shape[1:])
        if source.ndim == 3:  # [K, H, W] gets the axis that it grows along
            source = source[:, None]
        self._target = np.moveaxis(target, axis + 1, 1)
        self._source = np.moveaxis(source, axis + 1, 1)
        self._count = count
        self._width = self._source.shape[1]

    def fill(self, rows: NDArray[np.bool_]) -> None:
        first = self._source[rows]
        self._target[rows] = np.concatenate([first] * self._count, axis=1)

    def push(self, rows: NDArray[np.bool_]) -> None:
        kept = self._target[rows, self._width :]  # indexing by a mask copies, so the overlap does no harm
        self._target[rows, : -self._width] = kept
        self._target[rows, -self._width :] = self._source[rows]


def stack_space(space: gym.Space[Any], count: int, path: str = "observation") -> gym.Space[Any]:
    """The space of `count` stacked observations."""
    if isinstance(space, gym.spaces.Dict):
        return gym.spaces.Dict({k: stack_space(sub, count, f"{path}.{k}") for k, sub in space.spaces.items()})
    if isinstance(space, gym.spaces.Tuple):
        return gym.spaces.Tuple([stack_space(sub, count, f"{path}.{i}") for i, sub in enumerate(space.spaces)])
    if not isinstance(space, gym.spaces.Box) or not 1 <= len(space.shape) <= 3:
        raise Refused(f"env.frame_stack={count}: {path} is {space}; only Box with 1 to 3 axes stacks; remove the key")
    axis = _growing_axis(space.shape)
    join = np.stack if len(space.shape) == 2 else np.concatenate
    low, high = (join([bound] * count, axis=axis) for bound in (space.low, space.high))
    assert space.dtype is not None
    return gym.spaces.Box(low, high, dtype=space.dtype.type)


def _growing_axis(shape: tuple[int, ...]) -> int:
    """The axis along which a leaf grows: that of an image's channels."""
    return 2 if spaces.is_channel_last(shape) else 0


class PreviousGroup(WrappedGroup):
    """Adds two entries to the observation, which becomes a dict; the contract is `EnvGroup`.

    `previous_action`: one-hot for discrete actions, otherwise the values as the environment took them (clipped);
    `previous_reward`: raw, [1]. Both are zero at the start of an episode. An observation that was not a dict becomes
    the entry `observation`.
    """

    def __init__(self, group: EnvGroup) -> None:
        action = _action_space(group.action_space)
        self._action = np.zeros((group.size, *action.shape), np.float32)
        self._reward = np.zeros((group.size, 1), np.float32)
        added = {ACTION: self._action, REWARD: self._reward}
        space = _with_previous(group.observation_space, action)
        super().__init__("previous action and reward", group, space, added)
        # the arrays of the group underneath, which it updates in place
        shown = group.obs if isinstance(group.obs, dict) else {OBSERVATION: group.obs}
        self.obs: Nested = {**shown, **added}
        if not isinstance(group.obs, dict):
            self.stacks = {OBSERVATION: group.stacks[""]} if group.stacks else {}
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
    return gym.spaces.Box(0.0, 1.0, (gym.spaces.flatdim(space),), np.float32)


def _starts(space: Any) -> NDArray[np.int64] | None:
    """Where the one-hot part of each choice starts in the row; None for continuous actions."""
    if isinstance(space, gym.spaces.Box):
        return None
    options = np.atleast_1d(np.asarray(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec, np.int64))
    return np.asarray(np.cumsum(options) - options)
