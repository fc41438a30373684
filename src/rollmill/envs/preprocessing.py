"""Frame stacking over any group, for environments that don't stack their own frames."""

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
from rollmill.types import Array, lead

_KIND = "frame stack"


class StackedGroup:
    """A group that shows the last `count` observations at once, oldest first; the contract is `EnvGroup`.

    [D] becomes [count·D] and [H, W] becomes [count, H, W]; images with channels grow along the channel axis. An
    episode starts with its first observation repeated.
    """

    def __init__(self, group: EnvGroup, count: int) -> None:
        self.inner = group
        self.size = group.size
        self.broken = group.broken
        self.troubles = group.troubles
        self.action_space = group.action_space
        self.frame_skip = group.frame_skip
        self.frame_rate = group.frame_rate
        self.observation_space = stack_space(group.observation_space, count)
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.obs: Nested = nested.map_leaves(lambda spec: spec.zeros(), lead(self.observation_spec, group.size))
        inner = group.snapshot_size
        self.snapshot_size = packed_size(_KIND, inner, row_size(self.obs)) if inner else 0
        pairs = zip(nested.leaves(self.obs), nested.leaves(group.obs), strict=True)
        self._stacks = [_Stack(target, source, count) for (_, target), (_, source) in pairs]

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

    def snapshot(self, k: int) -> bytes:
        """The stack, and the state of the environment underneath."""
        inner = self.inner.snapshot(k)
        return pack(_KIND, inner, row_bytes(self.obs, k)) if inner else b""

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        inner, stack = unpack(_KIND, data, 2)
        self.inner.restore(k, inner)
        write_row(self.obs, k, stack)

    def render(self, k: int) -> Array:
        """The picture of the group underneath."""
        return self.inner.render(k)

    def info(self, k: int) -> dict[str, Any]:
        """What the group underneath says."""
        return self.inner.info(k)

    def close(self) -> None:
        """Close the group underneath."""
        self.inner.close()


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
