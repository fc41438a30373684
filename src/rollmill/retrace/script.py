"""What is to be repeated: the history that led to the end of a flight log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.errors import Refused
from rollmill.flight.records import NAME, Consumed, FlightLog, HashEntry, Note, UpdateEntry, read_flight
from rollmill.persist.run_folder import MARK
from rollmill.persist.writing import read_record


@dataclass(frozen=True)
class Script:
    """The history that led to the end of a flight log."""

    updates: tuple[UpdateEntry, ...]  # 1, 2, 3, …
    attempt: UpdateEntry | None  # the update after them, if it ended the run
    hashes: Mapping[int, str]  # by update
    begun: Mapping[int, Mapping[str, Any]]  # settings from that update on
    lost: Mapping[tuple[int, int], list[int]]  # environments whose episodes were lost before (actor, sequence)
    damage: str | None  # why the log ends early, if it does

    @property
    def last(self) -> int:
        """The last update that can be begun."""
        return len(self.updates) + (self.attempt is not None)

    def unrolls(self, update: int) -> tuple[Consumed, ...]:
        """What an update consumed, or was to consume."""
        if self.attempt is not None and update == self.attempt.update:
            return self.attempt.unrolls
        return self.updates[update - 1].unrolls

    def most_lag(self, until: int) -> int:
        """Updates between the weights of an unroll and the ones that it changed, at most."""
        lags = (u - 1 - unroll.ticket.version for u in range(1, until + 1) for unroll in self.unrolls(u))
        return max(lags, default=0)


def read_script(run: Path) -> Script:
    """The script of a run; refused if there is no usable log."""
    path = run / NAME
    if not (run / MARK).is_file():
        raise Refused(f"{run} is not a run folder (it has no {MARK}); give one that `rollmill train` made")
    if not path.is_file():
        raise Refused(f"{run} has no {NAME}; it was trained with observe.flight_log=false, or by an older version")
    try:
        log = read_flight(path)
    except OSError as error:
        raise Refused(f"{path} can't be read: {error.strerror}") from error
    lineage = log.lineage()
    damage = None if log.damage is None else f"{path}: {log.damage}"
    left = _left_behind(log, read_record(run / "summary.json"))
    if left is not None:  # the log's entries from there on were undone without a record of it
        damage = f"{path}: the run was resumed after update {left} without it, and its log ends there"
        lineage = [entry for entry in lineage if entry.update <= left]
    attempted = [entry for entry in lineage if isinstance(entry, UpdateEntry)]
    updates = [entry for entry in attempted if entry.learned is not None]
    for number, entry in enumerate(updates, 1):
        if entry.update != number:
            damage = f"{path}: update {entry.update} follows update {number - 1}; those between were not logged"
            updates = updates[: number - 1]
            break
    attempts = [entry for entry in attempted if entry.learned is None and entry.update == len(updates) + 1]
    if not updates and not attempts:
        raise Refused(damage or f"{path} holds no update; there is nothing to retrace")
    notes = [entry for entry in lineage if isinstance(entry, Note)]
    return Script(
        updates=tuple(updates),
        attempt=attempts[-1] if attempts else None,
        hashes={entry.update: entry.sha256 for entry in lineage if isinstance(entry, HashEntry)},
        begun={note.update: note.facts for note in notes if note.kind == "begun"},
        lost={
            (note.facts["actor"], note.facts["sequence"]): note.facts["rows"] for note in notes if note.kind == "lost"
        },
        damage=damage,
    )


def _left_behind(log: FlightLog, summary: Mapping[str, Any]) -> int | None:
    """The first update from which a process of this run continued that could not, or should not, write in the log."""
    for point in summary.get("resumed") or []:
        if "flight_mark" in point and point["flight_mark"] not in log.marks:
            return int(point["update"])
    return None
