"""The flight log: every free choice of a run, in the order in which the learner made it.

Asynchronous training has one degree of freedom: which unrolls, made with which weights, an update consumes and in which
order. All else follows from the seed. So a file of a few dozen bytes per unroll is enough to run the whole training
again, one step after the other, to the same bits (`rollmill retrace`). Every unroll is logged with checksums
of its contents, so that a divergence is found at the first unroll that differs.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Mapping, Sequence
from itertools import chain, count
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rollmill import nested
from rollmill.errors import Refused
from rollmill.fields import Fields
from rollmill.flight.records import (
    CHECKSUMS,
    MAGIC,
    NAME,
    AttemptEntry,
    Consumed,
    HashEntry,
    Note,
    UpdateEntry,
    chained,
    read_flight,
)
from rollmill.models.weights import parameters_sha256
from rollmill.nested import Nested
from rollmill.types import Array, Metrics, Ticket

__all__ = ["NAME", "Flight", "FlightWriter", "NoFlight", "checksums", "learned_checksum"]


class Flight(Protocol):
    """Receives the learner's choices: to log them, or to compare them with a log."""

    pending: tuple[Consumed, ...]  # what was consumed since the last update

    def consumed(self, update: int, unrolls: Sequence[tuple[Ticket, int, Mapping[str, Nested]]]) -> None:
        """What an update learns from will depend on these unrolls too (ticket, incarnation of the actor, arrays)."""

    def updating(self, update: int) -> None:
        """The update is about to begin; all that it depends on was consumed."""

    def updated(self, update: int, metrics: Metrics, weights: Mapping[str, Array]) -> None:
        """The update is made."""

    def note(self, kind: str, update: int, **facts: Any) -> None:
        """A rare event happened."""


def checksums(unroll: Mapping[str, Nested], fields: Fields) -> tuple[int, ...]:
    """The checksums of an unroll, in the order of CHECKSUMS.

    Of the observations only the last is covered: the others affect what the policy records, and reading all of them
    would cost more than everything else here.
    """
    length = int(unroll["length"])
    sums = dict.fromkeys(CHECKSUMS, 0)
    for field in fields.checksummed:
        for _, leaf in nested.leaves(unroll[field.name]):
            used = leaf[:length] if field.axis == "steps" else leaf[length] if field.axis == "rows" else leaf
            sums[field.checksum] = _crc(used, sums[field.checksum])
    return tuple(sums.values())


def learned_checksum(metrics: Metrics) -> int:
    """Checksum of an update's metrics: losses and norms depend on every bit of its parameters."""
    names = sorted(metrics)
    return zlib.crc32(
        np.array([metrics[name] for name in names], np.float64).tobytes(), zlib.crc32("|".join(names).encode())
    )


def _crc(array: Array, value: int) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B") if array.size else b"", value)


class NoFlight:
    """No log is kept."""

    pending: tuple[Consumed, ...] = ()

    def updating(self, update: int) -> None:
        """Nothing."""

    def consumed(self, update: int, unrolls: Sequence[tuple[Ticket, int, Mapping[str, Nested]]]) -> None:
        """Nothing."""

    def updated(self, update: int, metrics: Metrics, weights: Mapping[str, Array]) -> None:
        """Nothing."""

    def note(self, kind: str, update: int, **facts: Any) -> None:
        """Nothing."""


class FlightWriter:
    """Appends to the flight log of a run; each record is written completely before the next update begins.

    A full disk ends the log but not the run; `complaint` is the message about it.
    """

    def __init__(self, path: Path, hash_every: int, fields: Fields) -> None:
        self._hash_every, self._fields = hash_every, fields
        self.pending: tuple[Consumed, ...] = ()  # unrolls of the update that comes next
        self._crc = 0
        self._file: int | None = None
        self.complaint: str | None = None
        self.gap: str | None = None  # what was lost before this process began
        self.mark: int | None = None  # of this process: the checksum of its `begun`, once it is written
        self.bytes = 0  # of the whole file, with what earlier processes of the run have written
        self.cpu_seconds = 0.0  # of this thread, spent here
        try:
            self._open(path)
        except Refused as refusal:
            self.complaint = str(refusal)
        except OSError as error:
            self._give_up(error)

    def consumed(self, update: int, unrolls: Sequence[tuple[Ticket, int, Mapping[str, Nested]]]) -> None:
        """Keep what the update learns from; it is written with the result."""
        begun = time.thread_time()
        self.pending += tuple(
            Consumed(ticket, incarnation, checksums(arrays, self._fields)) for ticket, incarnation, arrays in unrolls
        )
        self.cpu_seconds += time.thread_time() - begun

    def updating(self, update: int) -> None:
        """Nothing."""

    def updated(self, update: int, metrics: Metrics, weights: Mapping[str, Array]) -> None:
        """Log the update, and at intervals a hash of all parameters."""
        begun = time.thread_time()
        records = [UpdateEntry(update, learned_checksum(metrics), self.pending).pack()]
        self.pending = ()
        if update % self._hash_every == 0:
            records.append(HashEntry(update, parameters_sha256(dict(weights))).pack())
        self._append(*records)
        self.cpu_seconds += time.thread_time() - begun

    def hash(self, update: int, weights: Mapping[str, Array]) -> None:
        """Write a hash of all parameters now."""
        self._append(HashEntry(update, parameters_sha256(dict(weights))).pack())

    def begin(self, update: int, **facts: Any) -> None:
        """Record that this process continues after an update, with settings that may differ from those before."""
        self.note("begun", update, **facts)
        self.mark = None if self._file is None else self._crc

    def note(self, kind: str, update: int, **facts: Any) -> None:
        """Log a rare event; for `stopped` also the unrolls of an update that failed and ended the run."""
        if kind == "stopped" and self.pending:
            self._append(AttemptEntry(update + 1, self.pending).pack())
        self._append(Note(kind, update, facts).pack())

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self, path: Path) -> None:
        """Continue after the last whole record; half a record of a process that was killed is cut off."""
        read = read_flight(path) if path.is_file() else None
        if read is not None and read.damage is not None:
            aside = _unused(path.with_name(f"{path.name}.damaged"))
            aside.write_bytes(path.read_bytes())
            self.gap = f"{read.damage}; all from there on is in {aside.name}, and this run can't be retraced beyond it"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if read is not None and read.size:
            os.ftruncate(self._file, read.size)
            os.lseek(self._file, 0, os.SEEK_END)
            self._crc, self.bytes = read.crc, read.size
        else:
            os.ftruncate(self._file, 0)
            self._write(MAGIC)

    def _append(self, *payloads: bytes) -> None:
        if self._file is None:
            return
        data, self._crc = chained(payloads, self._crc)
        try:
            self._write(data)
        except OSError as error:
            self._give_up(error)

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        while data:
            written = os.write(self._file, data)
            self.bytes += written
            data = data[written:]

    def _give_up(self, error: OSError) -> None:
        self.close()
        self.complaint = f"{NAME} can't be written ({error.strerror}); this run can't be retraced beyond here"


def _unused(path: Path) -> Path:
    """The path, or the path with the first unused number appended."""
    numbered = (path.with_name(f"{path.name}.{number}") for number in count(2))
    return next(name for name in chain([path], numbered) if not name.exists())
