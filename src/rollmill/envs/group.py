"""The vector contract of this project: explicit masked reset, a seed per episode, the true final observation.

group.reset(mask=np.ones(K, bool), seeds=seeds)
while True:
    result = group.step(policy(group.obs), active)       # group.obs now shows what followed, final ones too
    over = result.terminated | result.truncated
    group.reset(over, next_seeds)                        # only now do ended rows show a new episode

A row whose environment fails for good is `broken`: its step doesn't count, and it needs a reset.

An episode continues elsewhere from a snapshot, or by resetting with its seed and playing its actions again:

    fresh.reset(mask_of_k, seeds)
    fresh.restore(k, data)                               # data = group.snapshot(k), earlier or in another process

A gymnasium environment offers snapshots through two methods, on itself or on an outer wrapper of its own:
`snapshot() -> bytes`, the whole state of the running episode, its random generator included, and
`restore(data: bytes) -> None`, called after `reset` with the episode's seed on a fresh instance made with the same
arguments. Gymnasium's own time limit and the observation are handled for it. Snapshots are never executed, so
don't pickle. Without the two methods (or under a foreign wrapper that lacks them) episodes are played again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill.errors import RollmillError
from rollmill.nested import Nested
from rollmill.types import Array, FrameStack


class EnvironmentFailed(RollmillError):
    """The environment's own code raised; the message names the environment, its index and the call."""


class NoPicture(RollmillError):
    """The environment can't be drawn; the message names it."""

    exit_code = 2


class StepResult(NamedTuple):
    """What one step of a group gave; rows of environments that were not active are 0 and False."""

    reward: Array  # float64 [K], raw
    terminated: Array  # bool [K]
    truncated: Array  # bool [K]; both flags may be set, as gymnasium's TimeLimit does


@dataclass(frozen=True)
class Trouble:
    """One failure of an environment's own code; `is_rebuilt`: the row continued as if nothing had happened."""

    index: int  # row of the group
    call: str  # "step" or "reset"
    message: str  # one line: environment, row, call and what was raised
    traceback: str  # "" where nothing was raised: the call returned invalid values
    is_rebuilt: bool


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
    stacks: Mapping[str, FrameStack]  # by path: the leaves of the observation that stack frames
    frame_rate: float  # agent decisions per second of the environment's own time, which is how fast a video plays
    obs: Nested  # [K, ...] in the dtype of the spec, updated in place
    snapshot_size: int  # bytes of one environment's snapshot at most (but see there); 0: the group has none
    broken: NDArray[np.bool_]  # [K], rows that failed for good and must be reset before they are stepped
    troubles: deque[Trouble]  # every failure since it was last emptied

    def reset(self, mask: NDArray[Any], seeds: NDArray[Any]) -> None:
        """Start a new episode with `seeds[k]` in every row k where `mask` (bool [K]) is True; touch no other row."""

    def step(self, action: Array, active: NDArray[Any]) -> StepResult:
        """Step the rows where `active` (bool [K]) is True; where an episode ends, `obs` shows its true final one.

        Stepping a row whose episode has ended, or never began, is a bug of the caller: RuntimeError. A row that breaks
        gives 0, no flags and the observation it showed; stepping it again raises what broke it.
        """

    def snapshot(self, k: int) -> bytes:
        """The whole state of row k's running episode, what it shows and its step counts included.

        b"" if none is available; rarely longer than `snapshot_size`. Then the episode must be played again.
        """

    def restore(self, k: int, data: bytes) -> None:
        """Let row k continue from a snapshot and show what it showed; ValueError if the data is not such a snapshot.

        The row has just been reset with the seed of the snapshot's episode, possibly in another process. After an
        error it must be reset again.
        """

    def render(self, k: int) -> Array:
        """A picture of row k as it is now: uint8 [H, W, 3], both sides even; `NoPicture` if there is none.

        Only of a group that was made for it (`make_group(..., pictures=True)`).
        """

    def info(self, k: int) -> dict[str, Any]:
        """The info dict of row k's last step or reset; {} if there is none."""

    def close(self) -> None:
        """Close the environments."""


def even_sided(picture: Array) -> Array:
    """The picture with an odd last row or column repeated: video codecs halve both sides."""
    height, width = picture.shape[:2]
    return (
        np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge") if height % 2 or width % 2 else picture
    )


def needs_reset(index: int) -> RuntimeError:
    """The error for stepping a row that has no running episode."""
    return RuntimeError(f"environment {index} was stepped without a running episode: reset it first")
