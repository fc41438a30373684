"""The bounded queue before one observer, and the thread that empties it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rollmill.observe.events import Event, Stopped
from rollmill.observe.observer import Observer

FAILURES_IN_A_ROW = 3
# Events are handed over in batches: waking a thread for each of them would cost the training thread, which
# shares the interpreter lock, more than the observer's own work.
TICK = 0.1  # seconds


@dataclass
class Delivery:
    """What became of the events meant for one observer."""

    delivered: int = 0
    dropped: int = 0
    errors: int = 0
    blocked_seconds: float = 0.0  # that publishing had to wait for room
    is_detached: bool = False
    first_error: str = ""


class Mailbox:
    """Holds at most `capacity` events for an observer and hands them over in a daemon thread of its own.

    One thread each, because a slow observer that may drop events must not hold up one that may not.
    """

    def __init__(self, observer: Observer, say: Callable[[str], None], capacity: int, patience: float) -> None:
        self.observer = observer
        self.delivery = Delivery()
        self._say = say
        self._capacity = capacity
        self._patience = patience  # seconds; no observer may hold up the training longer than this
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._is_finishing = False
        self._queued = 0  # events ever accepted
        self._handled = 0  # of them
        self._awaited = 0  # how many of them somebody waits for
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._deliver, name=f"observe-{observer.name}", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue one event, or wait or drop as the observer's overflow rule says; `Stopped` always finds room."""
        must_arrive = isinstance(event, Stopped)
        gave_up = False
        with self._changed:
            if len(self._events) >= self._capacity and not must_arrive and not self._is_closed:
                gave_up = self._wait_for_room()
            if self._is_closed or (len(self._events) >= self._capacity and not must_arrive):
                self.delivery.dropped += 1
            else:
                self._events.append(event)
                self._queued += 1
                if must_arrive or len(self._events) * 2 >= self._capacity:
                    self._changed.notify_all()
        if gave_up:
            complaint = f"it took nothing for {self._patience:g} s"
            self.delivery.first_error = self.delivery.first_error or complaint
            self._say(f"observer {self.observer.name} is detached: {complaint}")

    def hurry(self) -> None:
        """Have what is queued handed over at once, not with the next batch."""
        with self._changed:
            self._awaited = self._queued
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued so far has been handed over; False if that takes longer than `timeout` seconds.

        A detached observer keeps nobody waiting.
        """
        self.hurry()
        with self._changed:
            goal = self._queued
            return self._changed.wait_for(
                lambda: self._handled >= goal or self.delivery.is_detached, timeout=max(0.0, timeout)
            )

    def finish(self) -> None:
        """Accept nothing more; the thread ends when everything queued has been handed over."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; False if it is still busy."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def close_observer(self) -> None:
        """Close the observer, whose failure to do so is counted and said like any other."""
        self._guard(self.observer.close)

    @property
    def _is_closed(self) -> bool:
        return self._is_finishing or self.delivery.is_detached

    @property
    def _is_awaited(self) -> bool:
        return self._handled < self._awaited

    def _wait_for_room(self) -> bool:
        """For a blocking observer, wait until there is room; True if patience ran out and it is given up."""
        if self.observer.overflow == "drop" or threading.current_thread() is self._thread:
            return False  # an observer that publishes something itself can't wait for itself
        begun = time.perf_counter()
        has_room = self._changed.wait_for(
            lambda: self._is_closed or len(self._events) < self._capacity, timeout=self._patience
        )
        self.delivery.blocked_seconds += time.perf_counter() - begun
        if not has_room:
            self._detach()
        return not has_room

    def _detach(self) -> None:
        with self._changed:
            self.delivery.is_detached = True
            self.delivery.dropped += len(self._events)
            self._handled += len(self._events)
            self._events.clear()
            self._changed.notify_all()

    def _deliver(self) -> None:
        while (batch := self._take()) is not None:
            for event in batch:
                if self.delivery.is_detached:
                    with self._changed:  # `put` counts here too
                        self.delivery.dropped += 1
                elif self._guard(self.observer.receive, event):
                    self.delivery.delivered += 1
            with self._changed:
                self._handled += len(batch)
                self._changed.notify_all()

    def _take(self) -> list[Event] | None:
        """Everything queued, possibly nothing; None when there will be no more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or self._is_awaited or len(self._events) * 2 >= self._capacity, timeout=TICK
            )
            if self._is_closed and not self._events:
                return None
            batch = list(self._events)
            self._events.clear()
            self._changed.notify_all()
            return batch

    def _guard(self, call: Callable[..., None], *arguments: Event) -> bool:
        """Make a call into the observer; a failure is counted and said once.

        The third in a row detaches the observer, unless it is the system that refuses: a full disk may be emptied,
        and until then each attempt costs next to nothing.
        """
        try:
            call(*arguments)
        except Exception as error:
            self.delivery.errors += 1
            if self.delivery.errors == 1:
                self.delivery.first_error = self.delivery.first_error or _one_line(error)
                self._say(f"observer {self.observer.name} failed, the run goes on without what it lost: {error!r}")
            self._failures_in_a_row = 0 if isinstance(error, OSError) else self._failures_in_a_row + 1
            if self._failures_in_a_row == FAILURES_IN_A_ROW and not self.delivery.is_detached:
                self._detach()
                self._say(f"observer {self.observer.name} is detached after {FAILURES_IN_A_ROW} failures in a row")
            return False
        self._failures_in_a_row = 0
        return True


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError) and text else f"{type(error).__name__}: {text}"
