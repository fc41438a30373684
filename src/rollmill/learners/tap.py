"""Passes consumed unrolls to observers before their slots are reused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from rollmill.events import Progress
from rollmill.stores.store import LeasedUnroll


class Tap(Protocol):
    """Takes over consumed unrolls from the learner."""

    def offer(self, unroll: LeasedUnroll, release: Callable[[], None], progress: Progress) -> bool:
        """Take the slot over; False: not wanted, or no spare slot. Returns at once.

        `release` gives the slot back; it is called once, from the learner's thread.
        """
