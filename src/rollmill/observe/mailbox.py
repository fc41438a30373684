"""The bounded queue before one observer, and the thread that empties it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

from rollmill.events import Event, Stopped
from rollmill.observe.calls import HookFailed, UnrollLent
from rollmill.observe.observer import Observer, Overflow

ObserverT = TypeVar("ObserverT", bound=Observer, covariant=True)

CAPACITY = 1024  # events that may wait for an observer
HOLD_SECONDS = 10.0  # that the run waits for a "block" observer to make room, before it loses events like the others
FAILURES_IN_A_ROW = 3
# Events are handed over in batches: waking a thread for each of them would cost the training thread, which
# shares the interpreter lock, more than the observer's own work.
TICK = 0.1  # seconds
UNROLL_TICK = 0.005  # while unrolls come, whose slots are few: the thread polls often, but still isn't woken for each
UNROLL_SECONDS = 0.2  # after the last unroll


class Gone(Exception):
    """The observer has lost its process: it is detached at once."""


@dataclass
class Delivery:
    """What became of the events meant for one observer."""

    delivered: int = 0
    dropped: int = 0
    cut_off: int = 0  # still waited for it when the run was over and could wait no longer
    errors: int = 0
    blocked_seconds: float = 0.0  # that the run had to wait for room
    handover_seconds: float = 0.0  # that the run spent on handing events over, waiting included
    detached: int = 0  # 1: it gets no more events
    first_error: str = ""

    def blame(self, complaint: str) -> None:
        """Keep the first complaint."""
        self.first_error = self.first_error or complaint

    def record(self, seconds: float) -> dict[str, Any]:
        """The counts for the summary; `seconds` is how long the run has lasted."""
        counts = asdict(self)
        for kind in ("blocked", "handover"):
            counts[f"{kind}_share"] = counts[f"{kind}_seconds"] / seconds if seconds > 0 else 0.0
        if not self.first_error:
            del counts["first_error"]
        return counts


class Mailbox(Generic[ObserverT]):
    """Holds at most `capacity` events for an observer and hands them over in a daemon thread of its own.

    One thread each, because a slow observer that may drop events must not hold up one that may not.
    """

    def __init__(self, observer: ObserverT, say: Callable[[str], None], capacity: int, hold_seconds: float) -> None:
        self.observer = observer
        self.overflow: Overflow = observer.overflow  # "drop" once a "block" observer has kept the run waiting too long
        self.delivery = Delivery()
        self._say, self._capacity, self._hold_seconds = say, capacity, hold_seconds
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._is_urgent = False  # what is queued should not wait for the next batch
        self._tick, self._brisk_until = TICK, 0.0
        self._is_finishing = self._is_skipping = False
        self._queued = self._handled = 0  # events ever accepted, and those of them that are done with
        self._failures_in_a_row = 0
        self._thread = threading.Thread(target=self._deliver, name=f"observe-{observer.name}", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue one event, or wait or drop it as the observer's overflow rule says; the time is counted."""
        begun = time.perf_counter()
        self.accept(event)
        self.delivery.handover_seconds += time.perf_counter() - begun

    def accept(self, event: Event) -> bool:
        """Queue an event if there is room, or will be soon; whether it was queued. `Stopped` always is."""
        must_arrive = isinstance(event, Stopped)
        if not must_arrive and not self._has_room():
            self.hold_up(self._changed, self._has_room)
        with self._changed:
            if self.is_closed or not (must_arrive or self._has_room()):
                self.delivery.dropped += 1
                return False
            self._events.append(event)
            self._queued += 1
            is_urgent = must_arrive or len(self._events) * 2 >= self._capacity
            if isinstance(event, UnrollLent):
                self._brisk_until = time.perf_counter() + UNROLL_SECONDS
                is_urgent = is_urgent or self._tick == TICK
            if is_urgent:
                self.hurry()
        return True

    def refuse(self) -> None:
        """Count an event for which there was no room; in any thread."""
        with self._changed:
            self.delivery.dropped += 1

    def hold_up(self, changed: threading.Condition, has_room: Callable[[], bool]) -> bool:
        """Have the run wait for a "block" observer until `has_room`, which is looked at when `changed` is notified.

        If there is none in time, the run does not wait for this observer again. A "drop" observer is not waited for.
        Returns whether there is room.
        """
        if self.overflow != "block" or threading.current_thread() is self._thread:
            return False  # an observer that publishes something itself can't wait for itself
        begun = time.perf_counter()
        with changed:
            is_in_time = changed.wait_for(has_room, timeout=self._hold_seconds)
        self.delivery.blocked_seconds += time.perf_counter() - begun
        if not is_in_time:
            self.overflow = "drop"
            complaint = f"it held up the run for {self._hold_seconds:g} s"
            self.delivery.blame(complaint)
            self._say(f"observer {self.observer.name}: {complaint}; from now on it loses events when it is too slow")
        return is_in_time

    def hurry(self) -> None:
        """Have what is queued handed over at once, not with the next batch."""
        with self._changed:
            self._is_urgent = True
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued so far has been handed over; False if that takes longer than `timeout` s."""
        with self._changed:
            self.hurry()
            goal = self._queued
            return self._changed.wait_for(lambda: self._handled >= goal, timeout=max(0.0, timeout))

    def finish(self) -> None:
        """Accept nothing more; the thread ends when everything queued has been handed over."""
        with self._changed:
            self._is_finishing = True
            self._changed.notify_all()

    def skip(self) -> None:
        """Cut off all that is queued, except for the end of the run."""
        self._is_skipping = True

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; False if it is still busy."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def write_off(self) -> None:
        """Count what an observer that is still busy at the end of the run has not taken as lost to it."""
        with self._changed:
            self.delivery.detached = 1
            self.delivery.cut_off += self._queued - self._handled
        self.delivery.blame("it was still busy when the run was over")

    def close_observer(self) -> None:
        """Close the observer; a failure to do so is counted and reported like any other."""
        self._guard(self.observer.close)

    @property
    def is_closed(self) -> bool:
        """Nothing more is accepted."""
        return self._is_finishing or bool(self.delivery.detached)

    def _has_room(self) -> bool:
        return self.is_closed or len(self._events) < self._capacity

    def _deliver(self) -> None:
        while self._wait_for_batch():
            while self._events:
                with self._changed:
                    event = self._events.popleft()
                    self._changed.notify_all()  # there is room
                self._hand_over(event)
                if isinstance(event, UnrollLent):
                    event.release()
                self._handled += 1

    def _wait_for_batch(self) -> bool:
        """Wait for a tick, or until something is urgent; False when there will be no more events."""
        with self._changed:
            self._changed.notify_all()  # everything has been handed over
            self._tick = UNROLL_TICK if time.perf_counter() < self._brisk_until else TICK
            self._changed.wait_for(lambda: self._is_urgent or self.is_closed, timeout=self._tick)
            self._is_urgent = False
            return bool(self._events) or not self.is_closed

    def _hand_over(self, event: Event) -> None:
        if self.delivery.detached:
            self.refuse()
        elif self._is_skipping and not isinstance(event, Stopped):
            self.delivery.cut_off += 1
        elif self._guard(self.observer.receive, event):
            self.delivery.delivered += 1

    def _guard(self, call: Callable[..., None], *arguments: Event) -> bool:
        """Make a call into the observer; a failure is counted and reported once.

        The third in a row detaches the observer, unless it is the system that refuses: a full disk may be emptied,
        and until then each attempt costs next to nothing.
        """
        try:
            call(*arguments)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self._failed(error)
            return False
        self._failures_in_a_row = 0
        return True

    def _failed(self, error: BaseException) -> None:
        name, delivery = self.observer.name, self.delivery
        delivery.errors += 1
        if delivery.errors == 1:
            shown = str(error) if isinstance(error, HookFailed | Gone) else repr(error)
            text = " ".join(str(error).split())
            is_clear = isinstance(error, OSError | HookFailed | Gone) and text
            delivery.blame(text if is_clear else f"{type(error).__name__}: {text}")
            self._say(f"observer {name} failed, the run continues without what it lost: {shown}")
        self._failures_in_a_row = 0 if isinstance(error, OSError) else self._failures_in_a_row + 1
        is_hopeless = isinstance(error, Gone) or self._failures_in_a_row == FAILURES_IN_A_ROW
        if is_hopeless and not delivery.detached:
            delivery.detached = 1
            why = str(error) if isinstance(error, Gone) else f"after {FAILURES_IN_A_ROW} failures in a row"
            self._say(f"observer {name} is detached {why}")
