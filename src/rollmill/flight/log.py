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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.errors import Refused
from rollmill.fields import Fields
from rollmill.flight.records import CHECKSUMS, MAGIC, NAME, Consumed, HashEntry, Note, UpdateEntry, chained, read_flight
from rollmill.models.weights import parameters_sha256
from rollmill.nested import Nested
from rollmill.persist.writing import AppendedFile, unused
from rollmill.types import Array, Metrics, Ticket


class Flight:
    """Receives the learner's choices and does nothing with them; `FlightWriter` logs them, a retrace compares them."""

    pending: tuple[Consumed, ...] = ()  # what was consumed since the last update
    mark: int | None = None  # of this process in the log; None where it writes none

    def consumed(self, update: int, unrolls: Sequence[tuple[Ticket, int, Mapping[str, Nested]]]) -> None:
        """What an update learns from will depend on these unrolls too (ticket, incarnation of the actor, arrays)."""

    def updating(self, update: int) -> None:
        """The update is about to begin; all that it depends on was consumed."""

    def updated(self, update: int, metrics: Metrics, weights: Callable[[], Mapping[str, Array]]) -> None:
        """The update is made; collecting its weights costs time, so they are asked for where they are hashed."""

    def note(self, kind: str, update: int, **facts: Any) -> None:
        """A rare event happened."""

    def news(self) -> str | None:
        """Why the log has a gap or has ended, once."""
        return None

    def end(self, update: int, weights: Mapping[str, Array], status: str, seconds: float) -> dict[str, Any] | None:
        """The run has ended after `seconds` of training in this process; what the summary says about the log."""
        return None


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


class FlightWriter(Flight):
    """Appends to the flight log of a run; each record is written completely before the next update begins.

    A full disk ends the log but not the run; `complaint` is the message about it.
    """

    def __init__(self, path: Path, hash_every: int, fields: Fields) -> None:
        self._file, self._hash_every, self._fields = AppendedFile(path), hash_every, fields
        self._crc = 0
        self._is_reported = False
        self.complaint: str | None = None
        self.gap: str | None = None  # what was lost before this process began
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

    def updated(self, update: int, metrics: Metrics, weights: Callable[[], Mapping[str, Array]]) -> None:
        """Log the update, and at intervals a hash of all parameters."""
        begun = time.thread_time()
        records = [UpdateEntry(update, learned_checksum(metrics), self.pending).pack()]
        self.pending = ()
        if update % self._hash_every == 0:
            records.append(HashEntry(update, parameters_sha256(dict(weights()))).pack())
        self._append(*records)
        self.cpu_seconds += time.thread_time() - begun

    def begin(self, update: int, **facts: Any) -> None:
        """Record that this process continues after an update, with settings that may differ from those before."""
        self.note("begun", update, **facts)
        self.mark = None if self.complaint else self._crc  # the checksum of that record

    def note(self, kind: str, update: int, **facts: Any) -> None:
        """Log a rare event."""
        self._append(Note(kind, update, facts).pack())

    def news(self) -> str | None:
        """Why the log has a gap or has ended, once."""
        trouble = None if self._is_reported else self.complaint or self.gap
        self._is_reported |= trouble is not None
        return trouble

    def end(self, update: int, weights: Mapping[str, Array], status: str, seconds: float) -> dict[str, Any]:
        """Log the last hash, the unrolls of an update that failed and ended the run, and how it ended."""
        self._append(HashEntry(update, parameters_sha256(dict(weights))).pack())
        if self.pending:
            self._append(UpdateEntry(update + 1, None, self.pending).pack())
        self.note("stopped", update, status=status)
        self.close()
        lost = self.complaint or self.gap
        share = self.cpu_seconds / max(seconds, 1e-9)
        return {"bytes": self.bytes, "cpu_share": share, **({} if lost is None else {"lost": lost})}

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _open(self, path: Path) -> None:
        """Continue after the last whole record; half a record of a process that was killed is cut off."""
        if path.is_file():
            read = read_flight(path)
            if read.damage is not None:
                aside = unused(path.with_name(f"{path.name}.damaged"))
                aside.write_bytes(path.read_bytes())
                beyond = f"all from there on is in {aside.name}, and this run can't be retraced beyond it"
                self.gap = f"{read.damage}; {beyond}"
            os.truncate(path, read.size)
            self._crc = read.crc
        self.bytes = self._file.open()
        if not self.bytes:
            self._write(MAGIC)

    def _append(self, *payloads: bytes) -> None:
        if self.complaint is None:
            data, self._crc = chained(payloads, self._crc)
            try:
                self._write(data)
            except OSError as error:
                self._give_up(error)

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self.bytes += len(data)

    def _give_up(self, error: OSError) -> None:
        self.complaint = f"{NAME} can't be written ({error.strerror}); this run can't be retraced beyond here"
