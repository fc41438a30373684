"""Whether this process is inside the user's environment code, and since when: by which a hung environment is found.

Code that calls an environment says so (`PULSE.enter(STEP)`, `PULSE.leave()`); a watching process polls the
record from another process (a worker's lies in shared memory) or from another thread (`watchdog`).
"""

from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from types import FrameType

from rollmill.errors import Stalled

STEP, RESET, MAKE, OTHER = 1, 2, 3, 4
NAMES = {STEP: "step()", RESET: "reset()", MAKE: "its constructor", OTHER: "a call"}

LINE_BYTES = 64  # a cache line per process: writers don't disturb one another
LOOK_SECONDS = 0.5
LONGEST_LOOK_SECONDS = 2.0  # a watcher who was away for longer was suspended, and so perhaps was the watched
REACT_SECONDS = 5.0  # that the main thread has to leave a hung call once it was interrupted


class Pulse:
    """The record of one process: [0] when it entered the environment's code (0.0: it is not there), [1] what it does.

    Called around every step, so it is two plain stores; which of two threads wrote last is all that it knows.
    """

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line = memoryview(bytearray(LINE_BYTES)).cast("d")

    def attach(self, memory: memoryview) -> None:
        """Keep the record in `memory` (LINE_BYTES, writable) from now on."""
        self._line = memory.cast("B").cast("d")
        self._line[0] = 0.0

    def enter(self, what: int) -> None:
        """The environment's code begins."""
        line = self._line
        line[1] = what
        line[0] = monotonic()

    def leave(self) -> None:
        """It has returned, or raised."""
        self._line[0] = 0.0

    @property
    def since(self) -> float:
        """When the running call began, by `time.monotonic`; 0.0 if none runs."""
        return float(self._line[0])

    @property
    def what(self) -> int:
        """What the running call does."""
        return int(self._line[1])


PULSE = Pulse()


class HangTimer:
    """How long one call has lasted, as seen by a poller.

    Only the time between polls counts, and of a long gap only a part: after a suspended machine or terminal wakes up,
    no process is mistaken for a hung one.
    """

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._since = 0.0
        self._seconds = 0.0
        self._looked = monotonic()

    def look(self, pulse: Pulse) -> str | None:
        """What the process hangs in and for how long, or None."""
        since, what, now = pulse.since, pulse.what, monotonic()
        gap, self._looked = min(now - self._looked, LONGEST_LOOK_SECONDS), now
        if since == 0.0:
            self._since = 0.0
            return None
        if since != self._since:
            self._since, self._seconds = since, min(now - since, gap)
        else:
            self._seconds += gap
        if self._seconds <= self._limit:
            return None
        return f"hung in {NAMES.get(what, '?')} for {self._seconds:.{0 if self._seconds >= 10 else 1}f} s"


class _Interruption(BaseException):
    """Thrown into a hung call; not an Exception, so that no handler takes it for an error of the environment."""


@contextmanager
def watchdog(limit: float, dump_to: Path | None = None) -> Iterator[None]:
    """End environment code that runs in this process for more than `limit` seconds in one call, with `Stalled`.

    The stacks of all threads are appended to `dump_to` (None: standard error) first. A call that can't be interrupted
    ends the process with exit code 1. Outside the main thread a call is interrupted only when it is in Python code.
    """
    watcher = _Watcher(limit, dump_to)
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGUSR2, watcher.interrupt) if in_main_thread else None
    thread = threading.Thread(target=watcher.watch, name="watchdog", daemon=True)
    thread.start()
    try:
        yield
    except _Interruption:
        raise Stalled(watcher.message) from None
    finally:
        watcher.ended.set()
        thread.join()
        if in_main_thread:
            with suppress(ValueError):  # a generator that is closed by another thread
                signal.signal(signal.SIGUSR2, before)


class _Watcher:
    """Looks at the pulse of its own process, from a thread."""

    def __init__(self, limit: float, dump_to: Path | None) -> None:
        self._limit, self._dump_to = limit, dump_to
        self._watched = threading.current_thread()
        self._hung_since = 0.0
        self.message = ""
        self.ended = threading.Event()

    def watch(self) -> None:
        patience = HangTimer(self._limit)
        while not self.ended.wait(min(LOOK_SECONDS, self._limit / 4)):
            since, hung = PULSE.since, patience.look(PULSE)
            if hung is not None and since == PULSE.since:
                self._hung_since = since
                self._dump(hung)
                self._throw()
                if self.ended.wait(REACT_SECONDS):
                    return
                if PULSE.since == since:
                    print(f"rollmill: {self.message}", file=sys.stderr, flush=True)
                    os._exit(1)

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        """Runs in the main thread; the call may have ended in the meantime."""
        if self._hung_since and PULSE.since == self._hung_since:
            raise _Interruption

    def _throw(self) -> None:
        ident = self._watched.ident
        assert ident is not None
        if self._watched is threading.main_thread():
            signal.pthread_kill(ident, signal.SIGUSR2)  # a signal also ends a sleeping system call
        else:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(ident), ctypes.py_object(_Interruption))

    def _dump(self, hung: str) -> None:
        where = "above"
        try:
            if self._dump_to is None:
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
            else:
                with self._dump_to.open("a") as file:
                    faulthandler.dump_traceback(file, all_threads=True)
                where = f"in {self._dump_to}"
        except (OSError, ValueError) as error:  # a full disk, a closed or replaced stderr
            where = f"lost ({error})"
        self.message = f"an environment {hung} (runtime.env_seconds={self._limit:g}); its stack is {where}"
