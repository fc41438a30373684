"""The wish to end a run: asked for by a signal or by a call, granted between two pieces of work."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from time import monotonic
from types import FrameType

from rollmill.errors import SignalExit, exit_code_of

ONE_SIGNAL_SECONDS = 0.3  # two signals within this time are one


class Interruption:
    """Whether the run is to end, and by which signal."""

    def __init__(self) -> None:
        self.is_wanted = False
        self.signal = 0  # 0: none, it was asked for by a call
        self.on_request: Callable[[], None] = lambda: None  # called once, at the first request
        self._signalled = 0.0
        # What was started with nohup is not to hear the terminal go; asked now, before environments change anything.
        wanted = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP]
        self._heard = [number for number in wanted if signal.getsignal(number) is not signal.SIG_IGN]

    def request(self) -> None:
        """End the run soon."""
        self.is_wanted = True
        self.on_request()

    @property
    def source(self) -> str:
        """Who wants it, for people."""
        return signal.Signals(self.signal).name if self.signal else "stop()"

    def by_signals(self) -> AbstractContextManager[None]:
        """The first Ctrl-C, SIGTERM, SIGUSR1 (Slurm's warning) or SIGHUP ends the run in order, the second at once."""
        return signals_handled(self._heard, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.is_wanted and monotonic() - self._signalled < ONE_SIGNAL_SECONDS:
            return  # the same wish, sent twice: by a terminal and a scheduler, say
        if self.is_wanted:
            raise KeyboardInterrupt if number == signal.SIGINT else SignalExit(exit_code_of(number))
        self.signal, self._signalled = number, monotonic()
        self.request()


@contextmanager
def signals_handled(numbers: Iterable[int], handle: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Handle these signals in this way meanwhile; nothing outside of the main thread, where Python handles none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            with suppress(ValueError, TypeError):  # closed by another thread; a handler that isn't Python's
                signal.signal(number, handler)
