"""Restores the state of a group: from snapshots, otherwise by replaying the running episodes."""

from __future__ import annotations

from contextlib import suppress

import numpy as np

from rollmill import nested
from rollmill.actors.snapshots import stored_snapshot
from rollmill.envs.group import EnvGroup
from rollmill.envs.snapshot_bytes import row_bytes
from rollmill.nested import Nested
from rollmill.spaces import ActionScale
from rollmill.types import Array, ResumePoint


def restore_rows(
    group: EnvGroup, point: ResumePoint, seeds: Array, wanted: Array, scale: ActionScale | None = None
) -> Array:
    """Restore the wanted rows, which have just been reset with `seeds`; True where it succeeded.

    It succeeded if the environment's observation is then, byte for byte, the saved one.
    """
    snapshots = [
        stored_snapshot(row) if is_wanted else b"" for row, is_wanted in zip(point.snapshot, wanted, strict=True)
    ]
    has_snapshot = np.array([bool(snapshot) for snapshot in snapshots])
    for k, snapshot in enumerate(snapshots):
        if snapshot:
            with suppress(ValueError):  # the observation will differ, and the episode is replayed
                group.restore(k, snapshot)
    restored = has_snapshot & _same_rows(group.obs, point.obs)
    missing = wanted & ~restored & np.array([actions is not None for actions in point.actions])
    if missing.any():
        if (missing & has_snapshot).any():
            group.reset(missing & has_snapshot, seeds)
        restored |= _by_replay(group, point, missing, scale)
    return restored & ~group.broken


def _by_replay(group: EnvGroup, point: ResumePoint, rows: Array, scale: ActionScale | None) -> Array:
    """Play the recorded actions of the given rows, which have just been reset."""
    recorded = {int(k): actions for k in np.flatnonzero(rows) if (actions := point.actions[k]) is not None}
    lengths = np.array([len(recorded.get(k, ())) for k in range(group.size)])
    example = next(iter(recorded.values()))
    action = np.zeros((group.size, *example.shape[1:]), example.dtype)
    playing, returns = rows.copy(), np.zeros(group.size)
    for t in range(int(lengths.max())):
        active = playing & (lengths > t)
        for k in np.flatnonzero(active):
            action[k] = recorded[int(k)][t]
        result = group.step(action if scale is None else scale(action), active)
        returns += result.reward
        playing &= ~(result.terminated | result.truncated | group.broken)
    has_same_score: Array = (returns == point.episode_return) & (lengths == point.episode_length)
    return playing & has_same_score & _same_rows(group.obs, point.obs)


def _same_rows(shown: Nested, saved: Nested) -> Array:
    """Which rows of two nested arrays are equal byte for byte; NaN equals itself."""
    size = len(nested.first_leaf(shown))
    return np.array([row_bytes(shown, k) == row_bytes(saved, k) for k in range(size)])
