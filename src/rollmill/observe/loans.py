"""Slots with consumed unrolls, lent to observers: the last of them to be done gives the slot back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rollmill import nested
from rollmill.events import Event
from rollmill.learners.tap import Trajectory
from rollmill.nested import Nested
from rollmill.observe.hooks import Unroll
from rollmill.types import Array


class Loan:
    """One slot that several observers read."""

    def __init__(self, trajectory: Trajectory, readers: int, give_back: Callable[[Trajectory], None]) -> None:
        self.trajectory = trajectory
        self._readers, self._give_back = readers, give_back
        self._lock = threading.Lock()

    def leave(self) -> None:
        """A reader is done."""
        with self._lock:
            self._readers -= 1
            is_last = self._readers == 0
        if is_last:
            self._give_back(self.trajectory)


@dataclass
class _Once:
    is_over: bool = False


@dataclass(frozen=True)
class UnrollLent(Event):
    """An unroll in its slot, lent to one observer until `release`."""

    loan: Loan
    _returned: _Once = field(default_factory=_Once)

    def release(self) -> None:
        """Give the share back; further calls do nothing. The arrays must not be used afterwards."""
        if not self._returned.is_over:  # only the thread that delivers, or one that it has ended, comes here
            self._returned.is_over = True
            self.loan.leave()

    @property
    def unroll(self) -> Unroll:
        """The unroll as an observer may see it: read-only, so that it can't change what others read."""
        t = self.loan.trajectory
        arrays: Mapping[str, Nested] = {name: nested.map_leaves(_read_only, tree) for name, tree in t.arrays.items()}
        return Unroll(t.actor, t.sequence, t.version, t.update, arrays)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view
