"""The state of an Atari game as plain data, and that as bytes."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import numpy as np

from rollmill.envs.snapshot_bytes import pack, packed_size, unpack
from rollmill.types import Array

_SLACK = 1024  # bytes: the emulator writes numbers as text, so its states differ by some tens of bytes
_NUMBERS = 512  # bytes: generator and counters as JSON are about 260


class AtariSnapshot(NamedTuple):
    """Everything a game needs to continue exactly from here, in another process too; plain data."""

    emulator: bytes
    stack: Array  # uint8 [N, size, size]
    generator: dict[str, Any]
    last_action: int
    frames: int
    decisions: int
    lives: int
    is_running: bool


def to_bytes(rom: str, snapshot: AtariSnapshot) -> bytes:
    """The snapshot as bytes; only the same game accepts them."""
    emulator, stack, *numbers = snapshot
    return pack(f"Atari {rom}", emulator, stack.tobytes(), json.dumps(numbers).encode())


def from_bytes(rom: str, data: bytes, shape: tuple[int, ...]) -> AtariSnapshot:
    """The snapshot again, with a stack of this shape; ValueError if the data is not a snapshot of it."""
    emulator, stack, numbers = unpack(f"Atari {rom}", data, 3)
    return AtariSnapshot(emulator, np.frombuffer(stack, np.uint8).reshape(shape), *json.loads(numbers))


def encoded_size(rom: str, emulator_bytes: int, stack_bytes: int) -> int:
    """Bytes that a snapshot takes at most, given the length of one emulator state."""
    return packed_size(f"Atari {rom}", emulator_bytes + _SLACK, stack_bytes, _NUMBERS)
