"""What an observer is."""

from __future__ import annotations

from typing import Literal, Protocol

from rollmill.events import Event

Overflow = Literal["block", "drop"]


class Observer(Protocol):
    """Receives every event of a run, in order, in a thread of its own; it can't change the run.

    `overflow` says what happens when it is too slow: the run waits for it ("block", bounded by `mailbox.HOLD_SECONDS`)
    or it misses events ("drop"), though never `Stopped`. An exception is counted and reported; the third in a row
    detaches the observer, unless it is an OSError: then the next event is another try, and what was written must still
    be whole.
    """

    name: str  # unique within a run
    overflow: Overflow

    def receive(self, event: Event) -> None:
        """Take note of one event."""

    def close(self) -> None:
        """Let go of files and terminal, if it has any; called once, after the last event, in the observers' order."""
        return
