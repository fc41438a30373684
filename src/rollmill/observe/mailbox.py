"""The bounded queue before one observer, and the thread that empties it."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rollmill.events import Event, Stopped
from rollmill.observe.calls import HookFailed
from rollmill.observe.loans import UnrollLent
from rollmill.observe.observer import Observer
from rollmill.observe.terms import Delivery, Terms, Thinning

FAILURES_IN_A_ROW = 3
# Events are handed over in batches: waking a thread for each of them would cost the training thread, which
# shares the interpreter lock, more than the observer's own work.
TICK = 0.1  # seconds
# While unrolls come, whose slots are few, the thread looks by itself and often: it still isn't woken.
BRISK_TICK = 0.005
BRISK_SECONDS = 0.2  # after the last unroll
QUIET_SECONDS = 5.0  # that a run waits at its end before it names the observer


class Gone(Exception):
    """The observer has lost its process: it is detached at once."""


class Mailbox:
    """Holds at most `terms.capacity` events for an observer and hands them over in a daemon thread of its own.

    One thread each, because a slow observer that may drop events must not hold up one that may not.
    """

    def __init__(
        self,
        observer: Observer,
        say: Callable[[str], None],
        terms: Terms,
        is_hurried: Callable[[], bool] = lambda: False,  # the run is to end
    ) -> None:
        self.observer = observer
        self.delivery = Delivery()
        self.is_hurried = is_hurried
        self._say = say
        self._terms = terms
        self._thinning = Thinning() if observer.overflow == "thin" else None
        self._events: deque[Event] = deque()
        self._changed = threading.Condition()
        self._discarded: list[Event] = []  # whose slots must still be given back
        self._is_finishing = False
        self._is_skipping = False
        self._queued = 0  # events ever accepted
        self._handled = 0  # of them
        self._awaited = 0  # how many of them are waited for
        self._brisk_until = 0.0
        self._is_dozing = False  # the thread is in one of its longer waits
        self._failures_in_a_row = 0
        self._begun = time.perf_counter()
        self._thread = threading.Thread(target=self._deliver, name=f"observe-{observer.name}", daemon=True)

    def start(self) -> None:
        """Begin to hand over."""
        self._begun = time.perf_counter()
        self._thread.start()

    def put(self, event: Event) -> None:
        """Queue one event, or wait, drop or thin out as the observer's overflow rule says; the time is kept."""
        begun = time.perf_counter()
        if isinstance(event, Stopped) or self.wants_next(type(event)):
            self.accept(event)
        self.delivery.handover_seconds += time.perf_counter() - begun

    def wants_next(self, kind: type[Event]) -> bool:
        """Whether the next event of this kind is to be queued at all, or left out because too many of them came."""
        if self._thinning is None:
            return True
        with self._changed:
            is_wanted = self._thinning.keeps(kind)
            self.delivery.thinned += not is_wanted
        return is_wanted

    def accept(self, event: Event) -> bool:
        """Queue an event if there is room, or will be soon; whether it was queued. `Stopped` always is."""
        must_arrive = isinstance(event, Stopped)
        gave_up = False
        with self._changed:
            if len(self._events) >= self._terms.capacity and not must_arrive and not self.is_closed:
                gave_up = self._wait_for_room()
            is_accepted = not self.is_closed and (must_arrive or len(self._events) < self._terms.capacity)
            if is_accepted:
                self._events.append(event)
                self._queued += 1
                is_urgent = must_arrive or len(self._events) * 2 >= self._terms.capacity
                if isinstance(event, UnrollLent):
                    self._brisk_until = time.perf_counter() + BRISK_SECONDS
                    is_urgent = is_urgent or self._is_dozing
                if is_urgent:
                    self._changed.notify_all()
        if not is_accepted:
            self.refuse(type(event))
        if gave_up:
            self._complain()
        self._give_back()
        return is_accepted

    def refuse(self, kind: type[Event]) -> None:
        """Count an event for which there was no room."""
        with self._changed:
            if self._thinning is not None and not self.is_closed:
                self._thinning.widen(kind)
                self.delivery.thinned += 1
            else:
                self.delivery.dropped += 1

    @contextmanager
    def blocking(self) -> Iterator[float]:
        """Wait for the observer inside the block, no longer than the seconds given, which is counted; 0: don't."""
        begun = time.perf_counter()
        yield self._allowance() if self.observer.overflow == "block" else 0.0
        self.delivery.blocked_seconds += time.perf_counter() - begun

    def give_up(self) -> None:
        """Detach an observer that kept the run waiting for too long."""
        self._detach()
        self._give_back()
        self._complain()

    def hurry(self) -> None:
        """Have what is queued handed over at once, not with the next batch."""
        with self._changed:
            self._awaited = self._queued
            self._changed.notify_all()

    def flush(self, timeout: float) -> bool:
        """Wait until everything queued so far has been handed over; False if that takes longer than `timeout` seconds.

        A detached observer is not waited for.
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

    def skip(self) -> None:
        """Cut off all that is queued or about to be handed over, except for the end of the run."""
        with self._changed:
            self._is_skipping = True

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; False if it is still busy."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, timeout))
        return not self._thread.is_alive()

    def drain(self) -> bool:
        """Wait for the thread to end for as long as the observer takes events; whether it has ended.

        It has not if the observer took none for as long as patience lasts, or if the run is to end.
        """
        begun = moved = time.perf_counter()
        handled, is_told = self.handled, False
        while not self.join(TICK) and not self.is_hurried():
            now = time.perf_counter()
            if self.handled != handled:
                handled, moved = self.handled, now
            elif now - moved >= self.patience:
                break
            if now - begun >= QUIET_SECONDS and not is_told:
                is_told = True
                left = f"{self._queued - handled} events left to take"
                self._say(f"observer {self.observer.name} has {left}: the run waits for it; Ctrl-C ends that")
        waited = time.perf_counter() - begun
        self.delivery.blocked_seconds += waited
        self.delivery.handover_seconds += waited
        return not self._thread.is_alive()

    def leave_behind(self) -> None:
        """The run goes without an observer that is still busy; what it has not taken is lost to it."""
        with self._changed:
            self.delivery.is_detached = True
            self.delivery.cut_off += self._queued - self._handled
        self.delivery.first_error = self.delivery.first_error or "it was still busy when the run was over"

    def close_observer(self) -> None:
        """Close the observer, whose failure to do so is counted and said like any other."""
        self._guard(self.observer.close)

    @property
    def patience(self) -> float:
        """Seconds that the run waits for a "block" observer at a time, before it is given up."""
        return self._terms.patience

    @property
    def may_lose_nothing(self) -> bool:
        """Whether the run waits for this observer without a bound."""
        return self.observer.overflow == "block" and self._terms.share == math.inf

    @property
    def handled(self) -> int:
        """Events that the observer has taken, or will never get."""
        return self._handled

    @property
    def is_closed(self) -> bool:
        """Nothing more is accepted."""
        return self._is_finishing or self.delivery.is_detached

    @property
    def _is_awaited(self) -> bool:
        return self._handled < self._awaited

    def _complain(self) -> None:
        complaint = f"it took nothing for {self._terms.patience:g} s"
        self.delivery.first_error = self.delivery.first_error or complaint
        self._say(f"observer {self.observer.name} is detached: {complaint}")

    def _allowance(self) -> float:
        """Seconds that the run may wait for this observer now."""
        left = self._terms.share * (time.perf_counter() - self._begun) - self.delivery.blocked_seconds
        return min(self._terms.patience, max(0.0, left))

    def _wait_for_room(self) -> bool:
        """For a blocking observer, wait until there is room; True if patience ran out and it is given up."""
        if self.observer.overflow != "block" or threading.current_thread() is self._thread:
            return False  # an observer that publishes something itself can't wait for itself
        handled = -1
        while handled != self._handled:  # batches are large: one that takes its time with each event is not stuck
            handled = self._handled
            with self.blocking() as seconds:
                has_room = self._changed.wait_for(
                    lambda: self.is_closed or len(self._events) < self._terms.capacity, timeout=seconds
                )
            if has_room or seconds < self._terms.patience or self.is_hurried():
                return False
        self._detach()
        return True

    def _detach(self) -> None:
        with self._changed:
            self.delivery.is_detached = True
            self.delivery.dropped += len(self._events)
            self._handled += len(self._events)
            self._discarded += self._events
            self._events.clear()
            self._changed.notify_all()

    def _deliver(self) -> None:
        while (batch := self._take()) is not None:
            for event in batch:
                if self.delivery.is_detached:
                    with self._changed:  # `put` counts here too
                        self.delivery.dropped += 1
                elif self._is_skipping and not isinstance(event, Stopped):
                    self.delivery.cut_off += 1
                elif self._guard(self.observer.receive, event):
                    self.delivery.delivered += 1
                if isinstance(event, UnrollLent):
                    event.release()
                with self._changed:
                    self._handled += 1
            with self._changed:
                self._changed.notify_all()
            self._give_back()

    def _take(self) -> list[Event] | None:
        """Everything queued, possibly nothing; None when there will be no more."""
        with self._changed:
            self._is_dozing = time.perf_counter() > self._brisk_until
            self._changed.wait_for(self._is_wanted, timeout=TICK if self._is_dozing else BRISK_TICK)
            self._is_dozing = False
            if self.is_closed and not self._events:
                return None
            batch = list(self._events)
            self._events.clear()
            self._changed.notify_all()
            return batch

    def _is_wanted(self) -> bool:
        """Whether the thread should not wait for the next tick."""
        if self._is_dozing and time.perf_counter() < self._brisk_until:
            return True  # an unroll has come
        return self.is_closed or self._is_awaited or len(self._events) * 2 >= self._terms.capacity

    def _give_back(self) -> None:
        """Give back the slots of unrolls that will never be handed over; not while the lock is held: it takes one."""
        while self._discarded:
            event = self._discarded.pop()
            if isinstance(event, UnrollLent):
                event.release()

    def _guard(self, call: Callable[..., None], *arguments: Event) -> bool:
        """Make a call into the observer; a failure is counted and said once.

        The third in a row detaches the observer, unless it is the system that refuses: a full disk may be emptied,
        and until then each attempt costs next to nothing.
        """
        try:
            call(*arguments)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            self.delivery.errors += 1
            if self.delivery.errors == 1:
                shown = str(error) if isinstance(error, HookFailed | Gone) else repr(error)
                self.delivery.first_error = self.delivery.first_error or _one_line(error)
                self._say(f"observer {self.observer.name} failed, the run goes on without what it lost: {shown}")
            self._failures_in_a_row = 0 if isinstance(error, OSError) else self._failures_in_a_row + 1
            is_hopeless = isinstance(error, Gone) or self._failures_in_a_row == FAILURES_IN_A_ROW
            if is_hopeless and not self.delivery.is_detached:
                self._detach()
                why = str(error) if isinstance(error, Gone) else f"after {FAILURES_IN_A_ROW} failures in a row"
                self._say(f"observer {self.observer.name} is detached {why}")
            return False
        self._failures_in_a_row = 0
        return True


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, OSError | HookFailed | Gone) and text else f"{type(error).__name__}: {text}"
