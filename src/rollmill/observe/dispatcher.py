"""The way of events from the run to its observers, off the hot path."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from rollmill.observe.events import Event, Progress, Said
from rollmill.observe.mailbox import Mailbox
from rollmill.observe.observer import Observer


class Dispatcher:
    """Delivers events to observers through one bounded mailbox each.

        with Dispatcher(observers) as dispatcher:
            dispatcher.publish(RunStarted(...))

    Leaving the block delivers what is queued, then closes the observers in their listed order, so that a later
    one (the console's summary) may rely on what an earlier one has written (the files, the curve).
    What happens to an observer itself is told to `say`, in any thread; by default it becomes an event of its own.
    """

    def __init__(
        self,
        observers: Sequence[Observer],
        say: Callable[[str], None] | None = None,
        capacity: int = 1024,  # events per observer
        patience: float = 10.0,  # seconds that a "block" observer may hold up the run at a time
    ) -> None:
        names = [observer.name for observer in observers]
        if len(set(names)) < len(names):
            raise ValueError(f"observers need different names, got {names}")
        self._mailboxes = [Mailbox(observer, say or self._publish_said, capacity, patience) for observer in observers]
        self._progress = Progress()
        self._is_closed = False

    def start(self) -> None:
        """Start the threads that deliver."""
        for mailbox in self._mailboxes:
            mailbox.start()

    def publish(self, event: Event) -> None:
        """Queue an event for every observer: some microseconds, unless a "block" observer has fallen far behind."""
        self._progress = event.progress
        for mailbox in self._mailboxes:
            mailbox.put(event)

    def flush(self, timeout: float) -> bool:
        """Wait until every observer that may not miss events has handled those published so far; False if too long."""
        deadline = time.monotonic() + timeout
        exact = [mailbox for mailbox in self._mailboxes if mailbox.observer.overflow == "block"]
        for mailbox in exact:
            mailbox.hurry()  # all at once; they are then waited for one by one
        return all(mailbox.flush(deadline - time.monotonic()) for mailbox in exact)

    def losses(self) -> dict[str, str]:
        """Per observer that failed: its first error and how many events it lost; `flush` first to know of them all."""
        deliveries = {mailbox.observer.name: mailbox.delivery for mailbox in self._mailboxes}
        return {
            name: f"{delivery.first_error} ({delivery.errors + delivery.dropped} events lost)"
            for name, delivery in deliveries.items()
            if delivery.first_error
        }

    def close(self, timeout: float = 30.0) -> None:
        """Deliver what is queued, then close the observers; gives up on those still busy after `timeout` seconds."""
        if self._is_closed:
            return
        self._is_closed = True
        deadline = time.monotonic() + timeout
        for mailbox in self._mailboxes:
            mailbox.finish()
        # An observer that is still inside `receive` is not closed: it would have to expect that at any moment.
        drained = [mailbox for mailbox in self._mailboxes if mailbox.join(deadline - time.monotonic())]
        closer = threading.Thread(target=_close_each, args=(drained,), name="observe-close", daemon=True)
        closer.start()
        closer.join(max(0.1, deadline - time.monotonic()))

    def report(self) -> dict[str, dict[str, float]]:
        """Per observer: events delivered and dropped, errors, seconds blocked, and 1 if it was detached."""
        return {
            mailbox.observer.name: {
                "delivered": mailbox.delivery.delivered,
                "dropped": mailbox.delivery.dropped,
                "errors": mailbox.delivery.errors,
                "blocked_seconds": mailbox.delivery.blocked_seconds,
                "detached": int(mailbox.delivery.is_detached),
            }
            for mailbox in self._mailboxes
        }

    def __enter__(self) -> Dispatcher:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _publish_said(self, text: str) -> None:
        self.publish(Said(self._progress, "observe", text, "warning"))


def _close_each(mailboxes: Sequence[Mailbox]) -> None:
    for mailbox in mailboxes:
        mailbox.close_observer()
