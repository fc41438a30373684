"""The way of events from the run to its observers, off the hot path."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from rollmill.events import Event, Progress, Said, Stopped
from rollmill.observe.calls import UnrollLent, UserObserver
from rollmill.observe.mailbox import CAPACITY, HOLD_SECONDS, Mailbox
from rollmill.observe.observer import Observer
from rollmill.observe.trajectories import TrajectoryTap

LAST_SECONDS = 5.0  # that users have for what is queued when the run ends, and again for their `on_stop`


class Dispatcher:
    """Delivers events to observers through one bounded mailbox each.

        with Dispatcher(observers) as dispatcher:
            dispatcher.publish(RunStarted(...))

    Leaving the block delivers what is queued, then closes the observers in their listed order, so that a later
    one (the console's summary) may rely on what an earlier one has written (the files, the curve).
    `say` is called, in any thread, when something happens to an observer itself; by default that becomes an event.
    Users' observers are `users`: nothing relies on them, and they are dismissed before the summary is written.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        say: Callable[[str], None] | None = None,
        capacity: int = CAPACITY,  # events per observer
        hold_seconds: float = HOLD_SECONDS,
        users: Sequence[UserObserver] = (),
        spare_slots: int = 0,  # of each actor, for users that want unrolls
    ) -> None:
        names = [observer.name for observer in (*observers, *users)]
        if len(set(names)) < len(names):
            raise ValueError(f"observers need different names, got {names}")
        say = say or self._publish_said
        self._mailboxes = [Mailbox(observer, say, capacity, hold_seconds) for observer in observers]
        self._users = [Mailbox(user, say, user.capacity, hold_seconds) for user in users]
        readers = [mailbox for mailbox in self._users if UnrollLent in mailbox.observer.kinds]
        self.tap = TrajectoryTap(readers, spare_slots) if readers else None
        self._progress = Progress()
        self._begun = time.perf_counter()
        self._is_closed = self._are_dismissed = False

    def start(self) -> None:
        """Start the threads that deliver."""
        self._begun = time.perf_counter()
        for mailbox in (*self._mailboxes, *self._users):
            mailbox.start()

    def publish(self, event: Event) -> None:
        """Queue an event for every observer: some microseconds, unless the queue of a "block" observer is full."""
        self._progress = event.progress
        for mailbox in self._mailboxes:
            mailbox.put(event)
        if not self._are_dismissed:
            self._notify_users(event)

    def flush(self, timeout: float) -> bool:
        """Wait until every "block" observer has handled what was published so far; False if it takes too long.

        Users' observers are not waited for: they keep nothing that a checkpoint relies on.
        """
        deadline = time.monotonic() + timeout
        exact = [mailbox for mailbox in self._mailboxes if mailbox.overflow == "block"]
        for mailbox in exact:
            mailbox.hurry()  # all at once; they are then waited for one by one
        return all(mailbox.flush(deadline - time.monotonic()) for mailbox in exact)

    def dismiss(self, stopped: Stopped, timeout: float = LAST_SECONDS) -> None:
        """Notify the users that the run is over; one that is too slow loses all events but that."""
        if self._are_dismissed:
            return
        self._notify_users(stopped)
        self._are_dismissed = True
        for mailbox in self._users:
            mailbox.finish()
        late = _still_busy(self._users, timeout)
        for mailbox in late:
            mailbox.skip()
        hung = _still_busy(late, timeout)
        for mailbox in self._users:
            if mailbox in hung:
                mailbox.write_off()
                mailbox.observer.abandon()
            else:
                mailbox.close_observer()

    def losses(self) -> dict[str, str]:
        """Per observer that failed: its first error and how many events it lost; `flush` first to know of them all."""
        return {
            mailbox.observer.name: f"{error} ({mailbox.delivery.errors + mailbox.delivery.dropped} events lost)"
            for mailbox in self._mailboxes
            if (error := mailbox.delivery.first_error)
        }

    def close(self, timeout: float = 30.0) -> None:
        """Deliver what is queued, then close the observers; gives up on those still busy after `timeout` seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + timeout
        if not self._are_dismissed:  # the run broke off: there is no end to report
            self._are_dismissed = True
            for user in self._users:
                user.finish()
                user.skip()
                user.observer.abandon()
        for mailbox in self._mailboxes:
            mailbox.finish()
        # An observer that is still inside `receive` is not closed: it would have to expect that at any moment.
        drained = [mailbox for mailbox in self._mailboxes if mailbox.join(deadline - time.monotonic())]
        closer = threading.Thread(target=_close_each, args=(drained,), name="observe-close", daemon=True)
        closer.start()
        closer.join(max(0.1, deadline - time.monotonic()))

    def report(self) -> dict[str, dict[str, Any]]:
        """Per observer: events delivered and dropped, errors, what it cost the run; see `Delivery`."""
        seconds = time.perf_counter() - self._begun
        mailboxes = (*self._mailboxes, *self._users)
        return {mailbox.observer.name: mailbox.delivery.record(seconds) for mailbox in mailboxes}

    def __enter__(self) -> Dispatcher:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _notify_users(self, event: Event) -> None:
        for mailbox in self._users:
            if type(event) in mailbox.observer.kinds:
                mailbox.put(event)

    def _publish_said(self, text: str) -> None:
        self.publish(Said(self._progress, "observe", text, "warning"))


def _still_busy(mailboxes: Sequence[Mailbox[UserObserver]], timeout: float) -> list[Mailbox[UserObserver]]:
    """Those whose thread has not ended by then."""
    deadline = time.monotonic() + timeout
    return [mailbox for mailbox in mailboxes if not mailbox.join(deadline - time.monotonic())]


def _close_each(mailboxes: Sequence[Mailbox[Observer]]) -> None:
    for mailbox in mailboxes:
        mailbox.close_observer()
