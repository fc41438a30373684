"""On which terms an observer gets events, and what became of those meant for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FEWEST = 1024  # one of so many events is kept at least, by "thin"


@dataclass(frozen=True)
class Terms:
    """How much the run puts up with for an observer's sake."""

    capacity: int = 1024  # events that may wait for it
    patience: float = 10.0  # seconds that a "block" observer may hold up the run at a time, before it is given up
    share: float = math.inf  # of the wall time that it may hold up the run in all; beyond that it loses events


@dataclass
class Delivery:
    """What became of the events meant for one observer."""

    delivered: int = 0
    dropped: int = 0
    cut_off: int = 0  # still waited for it when the run was over and could wait no longer
    thinned: int = 0
    errors: int = 0
    blocked_seconds: float = 0.0  # that the run had to wait: for room, or at its end for what was queued
    handover_seconds: float = 0.0  # that the run spent on handing events over, waiting included
    is_detached: bool = False
    first_error: str = ""

    def record(self, seconds: float) -> dict[str, Any]:
        """The counts for the summary; `seconds` is how long the run has lasted."""
        return {
            "delivered": self.delivered,
            "dropped": self.dropped,
            "cut_off": self.cut_off,
            "thinned": self.thinned,
            "errors": self.errors,
            "blocked_seconds": self.blocked_seconds,
            "blocked_share": self.blocked_seconds / seconds if seconds > 0 else 0.0,
            "handover_seconds": self.handover_seconds,
            "handover_share": self.handover_seconds / seconds if seconds > 0 else 0.0,
            "detached": int(self.is_detached),
            **({"first_error": self.first_error} if self.first_error else {}),
        }


@dataclass
class _Stride:
    step: int = 1  # one of so many is kept
    seen: int = 0
    kept: int = 0  # since the stride last changed


@dataclass
class Thinning:
    """Keeps one of 1, 2, 4, … events of a kind: half as many whenever there is no room, more when there is again."""

    calm: int = 4  # events of a kind that must find room in a row before more of them are kept
    _strides: dict[type, _Stride] = field(default_factory=dict)

    def keeps(self, kind: type) -> bool:
        """Whether the next event of this kind is one to keep."""
        stride = self._strides.setdefault(kind, _Stride())
        stride.seen += 1
        if stride.seen % stride.step:
            return False
        stride.kept += 1
        if stride.step > 1 and stride.kept > self.calm:
            stride.step, stride.kept = stride.step // 2, 0
        return True

    def widen(self, kind: type) -> None:
        """There was no room for an event of this kind."""
        stride = self._strides.setdefault(kind, _Stride())
        stride.step, stride.kept = min(2 * stride.step, FEWEST), 0
