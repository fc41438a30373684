"""The records of a flight log, in memory and on disk.

The file is a chain of records, each `length | checksum | payload`. The checksum covers the one before it, so that a
record can't be changed, left out or moved undetected. A process that was killed leaves half a record at most, at
the end.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.errors import Refused
from rollmill.types import Ticket

NAME = "flight.log"
VERSION = 2
MAGIC = b"rollmill flight log %d\n" % VERSION
CHECKSUMS = ("obs", "action", "reward", "ended", "records", "state", "status")  # of an unroll, see `fields.Fields`

_FRAME = struct.Struct("<II")  # length and checksum of a payload
_UPDATE = struct.Struct("<cQIH")  # kind, update, checksum of what was learned, unrolls
_UNROLL = struct.Struct(f"<IQQI{len(CHECKSUMS)}I")  # actor, sequence, version, incarnation, checksums
_HASH = struct.Struct("<cQ32s")  # kind, update, sha256 of the parameters
_NOTE, _UPDATED, _ATTEMPTED, _HASHED = b"n", b"u", b"a", b"h"
_LONGEST_NOTE = 1 << 20  # bytes


class Consumed(NamedTuple):
    """One unroll that an update consumed."""

    ticket: Ticket
    incarnation: int  # of its actor: how often that was rebuilt before
    checksums: tuple[int, ...]  # in the order of CHECKSUMS

    def values(self) -> list[int]:
        """As plain numbers."""
        return [*self.ticket, self.incarnation, *self.checksums]

    @classmethod
    def of(cls, values: Sequence[int]) -> Consumed:
        """From what `values` returned."""
        actor, sequence, version, incarnation, *sums = values
        return cls(Ticket(actor, sequence, version), incarnation, tuple(sums))


@dataclass(frozen=True)
class UpdateEntry:
    """One update: what it consumed, and a checksum of what it reported."""

    update: int  # counted from 1
    learned: int | None  # None: an attempt, which failed and ended the run
    unrolls: tuple[Consumed, ...]

    def pack(self) -> bytes:
        """As a payload."""
        kind = _ATTEMPTED if self.learned is None else _UPDATED
        head = _UPDATE.pack(kind, self.update, self.learned or 0, len(self.unrolls))
        return head + b"".join(_UNROLL.pack(*unroll.values()) for unroll in self.unrolls)


@dataclass(frozen=True)
class HashEntry:
    """The hash of all parameters after an update."""

    update: int
    sha256: str

    def pack(self) -> bytes:
        """As a payload."""
        return _HASH.pack(_HASHED, self.update, bytes.fromhex(self.sha256))


@dataclass(frozen=True)
class Note:
    """A rare event: `begun` (also again, from a checkpoint), `lost`, `replaced`, `limit`, `stopped`."""

    kind: str
    update: int  # after which it happened
    facts: Mapping[str, Any] = field(default_factory=dict)

    def pack(self) -> bytes:
        """As a payload."""
        return _NOTE + json.dumps({"kind": self.kind, "update": self.update, **self.facts}).encode()


Entry = UpdateEntry | HashEntry | Note


def chained(payloads: Sequence[bytes], crc: int) -> tuple[bytes, int]:
    """The records of the payloads after one with the checksum `crc`, and the checksum of the last."""
    records = []
    for payload in payloads:
        crc = zlib.crc32(payload, crc)
        records.append(_FRAME.pack(len(payload), crc) + payload)
    return b"".join(records), crc


@dataclass(frozen=True)
class FlightLog:
    """What a flight log holds."""

    entries: tuple[Entry, ...]
    size: int  # bytes up to the end of the last whole record; 0 if not even the first line is whole
    crc: int  # of that record
    damage: str | None  # why reading ended before the end of the file; None also for a last record that was cut short
    marks: frozenset[int] = frozenset()  # of the processes that wrote it: the checksums of their `begun`

    def lineage(self) -> list[Entry]:
        """The entries that led to the end, without updates that were undone by resuming from a checkpoint."""
        kept: list[Entry] = []
        for entry in self.entries:
            if isinstance(entry, Note) and entry.kind == "begun":
                # a lost episode belongs to the next update
                kept = [e for e in kept if e.update + (isinstance(e, Note) and e.kind == "lost") <= entry.update]
            kept.append(entry)
        return kept


def read_flight(path: Path) -> FlightLog:
    """Read all complete records; refused if the format version is unknown."""
    try:
        return parse_flight(path.read_bytes())
    except Refused as refusal:
        raise Refused(f"{path} {refusal}") from None


def parse_flight(data: bytes) -> FlightLog:
    """The same for the content of a file."""
    if not data.startswith(MAGIC):
        return _unknown(data)
    entries: list[Entry] = []
    position, crc = len(MAGIC), 0
    damage = None
    marks: set[int] = set()
    while position + _FRAME.size <= len(data):
        length, expected = _FRAME.unpack_from(data, position)
        begin = position + _FRAME.size
        payload = data[begin : begin + length]
        if len(payload) < length and _may_be_cut(payload, length):
            break
        try:
            if len(payload) < length or zlib.crc32(payload, crc) != expected:
                raise ValueError("its length or checksum is wrong")
            entries.append(entry := _entry(payload))
        except (ValueError, KeyError, struct.error):
            damage = f"the record after update {entries[-1].update if entries else 0} is damaged (byte {position})"
            break
        crc, position = expected, begin + length
        if isinstance(entry, Note) and entry.kind == "begun":
            marks.add(crc)
    return FlightLog(tuple(entries), position, crc, damage, frozenset(marks))


def _unknown(data: bytes) -> FlightLog:
    if MAGIC.startswith(data):  # the process was killed while it wrote the first line
        return FlightLog((), 0, 0, None)
    if other := re.match(rb"rollmill flight log (\d+)\n", data):
        number = other[1].decode()
        raise Refused(f"has version {number} and {VERSION} is known here; use the rollmill that made the run")
    return FlightLog((), 0, 0, "it is not a flight log, or its beginning is damaged")


def _may_be_cut(payload: bytes, length: int) -> bool:
    """Whether a truncated record starts like one of that length: a damaged length must not look like the log's end."""
    kind = payload[:1]
    if kind in (_UPDATED, _ATTEMPTED) and len(payload) >= _UPDATE.size:
        return bool(length == _UPDATE.size + _UPDATE.unpack_from(payload)[3] * _UNROLL.size)
    if kind == _HASHED:
        return length == _HASH.size
    return kind in (b"", _UPDATED, _ATTEMPTED) or (kind == _NOTE and length <= _LONGEST_NOTE and b"}" not in payload)


def _entry(payload: bytes) -> Entry:
    kind = payload[:1]
    if kind in (_UPDATED, _ATTEMPTED):
        _, update, learned, count = _UPDATE.unpack_from(payload)
        unrolls = tuple(map(Consumed.of, _UNROLL.iter_unpack(payload[_UPDATE.size :])))
        if len(unrolls) != count:
            raise ValueError("unrolls are missing")
        return UpdateEntry(update, learned if kind == _UPDATED else None, unrolls)
    if kind == _HASHED:
        _, update, digest = _HASH.unpack(payload)
        return HashEntry(update, digest.hex())
    if kind != _NOTE:
        raise ValueError("unknown kind")
    facts = json.loads(payload[1:])
    return Note(facts.pop("kind"), facts.pop("update"), facts)
