"""A run's files brought back to a checkpoint, so that they continue from there without gaps or repeats."""

from __future__ import annotations

import csv
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from rollmill.events import EpisodesEnded, Progress
from rollmill.persist.writing import tail, write_atomically

Piece = tuple[bytes, bool]  # a line or record, and whether it stays


def trim(run: Path, env_steps: int) -> None:
    """Drop what was written after the checkpoint made at `env_steps`, and what a killed writer left unfinished.

    Call it before the observers are made. Logs stay whole; they say what happened, also to the part that was lost.
    """
    for name in ("metrics.csv", "episodes.csv", "evaluations.csv"):
        _sift(run / name, lambda file: _csv_lines(file, env_steps))
    _sift(run / "metrics.jsonl", lambda file: _json_lines(file, env_steps))
    for path in sorted((run / "tensorboard").glob("events.out.tfevents.*")):
        _sift(path, lambda file: _records(file, env_steps))
    for path in (run / "logs").glob("*.log"):
        if "".join(tail(path, 1)):  # the last line was cut short: the next begins a line of its own
            with path.open("ab") as file:
                file.write(b"\n")


def last_episodes(run: Path, size: int = 100) -> EpisodesEnded:
    """The last episodes in episodes.csv, oldest first; none if there is no such file. Damaged rows are left out."""
    path, episodes = run / "episodes.csv", []
    # A line is shorter than 200 bytes. The first is the header or cut, the last is empty or not finished.
    if lines := tail(path, 200 * (size + 2))[1:-1]:
        with path.open(encoding="utf-8", errors="replace") as file:
            rows = csv.DictReader([file.readline(), *lines[-size:]])
        for row in rows:
            with suppress(ValueError, KeyError, TypeError):
                episodes.append((float(row["return"]), int(row["length"]), row["truncated"] == "1"))
    returns, lengths, truncated = zip(*episodes, strict=True) if episodes else ((), (), ())
    return EpisodesEnded(Progress(), returns, lengths, truncated)


def _sift(path: Path, split: Callable[[BinaryIO], Iterable[Piece]]) -> None:
    """Keep the pieces that are to stay; cutting off an end, the usual case, needs no room on a full disk."""
    if not path.is_file():
        return
    end, has_gap, is_scattered = 0, False, False
    with path.open("rb") as file:
        for piece, stays in split(file):
            is_scattered |= stays and has_gap
            has_gap |= not stays
            end += 0 if has_gap else len(piece)
    if is_scattered:
        with path.open("rb") as file:
            write_atomically(path, b"".join(piece for piece, stays in split(file) if stays))
    elif end < path.stat().st_size:
        os.truncate(path, end)


def _json_lines(file: BinaryIO, env_steps: int) -> Iterator[Piece]:
    for line in file:
        try:
            row = json.loads(line)
            yield line, line.endswith(b"\n") and row["env_steps"] <= env_steps
        except (ValueError, TypeError, KeyError):  # torn, or zeros after a power cut
            yield line, False


def _csv_lines(file: BinaryIO, env_steps: int) -> Iterator[Piece]:
    header = file.readline()
    columns = header.decode(errors="replace").rstrip("\n").split(",")
    if not header.endswith(b"\n") or "env_steps" not in columns:  # killed while it began
        yield header, False
        yield from ((line, False) for line in file)
        return
    yield header, True
    place = columns.index("env_steps")
    for line in file:
        # Every value is a number, so a comma always parts two of them.
        values = line.rstrip(b"\n").split(b",")
        try:
            yield line, line.endswith(b"\n") and len(values) == len(columns) and int(values[place]) <= env_steps
        except ValueError:
            yield line, False


def _records(file: BinaryIO, env_steps: int) -> Iterator[Piece]:
    """TensorBoard's framing: length (uint64), its checksum (uint32), data, checksum of the data (uint32)."""
    # Imported here: 0.35 s that only a resumed run with TensorBoard pays.
    from google.protobuf.message import DecodeError
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.summary.writer.record_writer import masked_crc32c

    while head := file.read(12):
        if len(head) < 12 or struct.unpack("<I", head[8:])[0] != masked_crc32c(head[:8]):
            return  # where the next one begins can't be known
        (length,) = struct.unpack("<Q", head[:8])
        body = file.read(length + 4)
        if len(body) < length + 4:
            return
        try:
            step = Record.FromString(body[:-4]).step
        except DecodeError:
            return
        yield head + body, step <= env_steps
