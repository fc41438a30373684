"""Snapshots of environments in rows of fixed width: four bytes of length, then the snapshot; length 0 means none."""

from __future__ import annotations

import struct

import numpy as np

from rollmill.envs.group import EnvGroup
from rollmill.types import Array

_LENGTH = struct.Struct("<I")


def snapshot_row(snapshot_size: int) -> int:
    """The width of a row for snapshots of at most `snapshot_size` bytes; 0 where there are none."""
    return snapshot_size + _LENGTH.size if snapshot_size else 0


def take_snapshots(group: EnvGroup, wanted: Array, rows: Array) -> None:
    """Fill the rows of the wanted environments; one that doesn't fit is left out, and its episode will be replayed."""
    for k in range(group.size):
        data = group.snapshot(k) if wanted[k] else b""
        if len(data) + _LENGTH.size > rows.shape[1]:
            data = b""
        rows[k, : _LENGTH.size] = np.frombuffer(_LENGTH.pack(len(data)), np.uint8)
        rows[k, _LENGTH.size : _LENGTH.size + len(data)] = np.frombuffer(data, np.uint8)


def stored_snapshot(row: Array) -> bytes:
    """The snapshot in a row, empty if there is none."""
    if row.size < _LENGTH.size:
        return b""
    (length,) = _LENGTH.unpack(row[: _LENGTH.size].tobytes())
    return row[_LENGTH.size : _LENGTH.size + length].tobytes()
