"""Snapshots as bytes: a checksum, then the parts. Damaged data and snapshots of another kind are refused."""

from __future__ import annotations

import struct
from zlib import crc32

import numpy as np

from rollmill import nested
from rollmill.nested import Nested

# checksum of all that follows, number of parts; then the length of each part, then the parts
_HEADER = struct.Struct("<II")


def pack(kind: str, *parts: bytes) -> bytes:
    """The parts as one block of bytes; `kind` names the environment that made the snapshot."""
    every = (kind.encode(), *parts)
    lengths = struct.pack(f"<{len(every)}I", *map(len, every))
    body = b"".join((_HEADER.pack(0, len(every))[4:], lengths, *every))
    return crc32(body).to_bytes(4, "little") + body


def unpack(kind: str, data: bytes, count: int) -> list[bytes]:
    """The parts again; ValueError unless the data is whole, of this kind and of `count` parts."""
    if len(data) < _HEADER.size or crc32(memoryview(data)[4:]) != int.from_bytes(data[:4], "little"):
        raise ValueError(f"{len(data)} bytes that are not a snapshot: the checksum is wrong")
    _, found = _HEADER.unpack_from(data)
    if found != count + 1:
        raise ValueError(f"a snapshot of {found - 1} parts where {kind} has {count}")
    start = _HEADER.size + 4 * found
    parts = []
    for length in struct.unpack_from(f"<{found}I", data, _HEADER.size):
        parts.append(data[start : start + length])
        start += length
    if parts[0] != kind.encode():
        raise ValueError(f"a snapshot of {parts[0].decode(errors='replace')} where one of {kind} is needed")
    return parts[1:]


def packed_size(kind: str, *lengths: int) -> int:
    """Length of what `pack` returns for parts of these lengths."""
    return _HEADER.size + 4 * (len(lengths) + 1) + len(kind.encode()) + sum(lengths)


def row_bytes(obs: Nested, k: int) -> bytes:
    """The observation of row k as raw bytes."""
    return b"".join(leaf[k].tobytes() for _, leaf in nested.leaves(obs))


def row_size(obs: Nested) -> int:
    """How long `row_bytes` is."""
    return sum(leaf[0].nbytes for _, leaf in nested.leaves(obs))


def write_row(obs: Nested, k: int, data: bytes) -> None:
    """Let row k show what `row_bytes` kept."""
    if len(data) != row_size(obs):
        raise ValueError(f"an observation of {len(data)} bytes where there are {row_size(obs)}")
    start = 0
    for _, leaf in nested.leaves(obs):
        row = leaf[k]
        leaf[k] = np.frombuffer(data, leaf.dtype, row.size, start).reshape(row.shape)
        start += row.nbytes
