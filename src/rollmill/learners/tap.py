"""Passes consumed unrolls to observers before their slots are reused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from rollmill.events import Progress
from rollmill.nested import Nested


@dataclass(frozen=True)
class Trajectory:
    """A whole unroll in its slot, as the learner has consumed it."""

    actor: int
    sequence: int
    version: int  # of the weights that made it
    update: int  # that consumed it
    arrays: Mapping[str, Nested]  # see `fields.Fields`; views of the slot, valid until release()
    release: Callable[[], None]  # gives the slot back; once, from any thread


class Tap(Protocol):
    """Takes over consumed unrolls from the learner."""

    def offer(self, trajectory: Trajectory, progress: Progress) -> bool:
        """Take the slot over; False: not wanted, or no spare slot. Returns at once."""
