"""Looking at what the threads of this process do, a hundred times a second, where `rollmill profile` asks for it.

The sampler is a thread of its own and needs the interpreter's lock for each look, so that it sees Python code at the
next place where that is given up, some fifty microseconds late: stretches that are shorter are seen too rarely. A look
counts for the time since the last one.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

FOLDER_VARIABLE = "ROLLMILL_PROFILE"  # where the processes of a run leave their stacks; unset: no profile is made
BEGUN, OVER = "begun", "over"  # files in that folder: workers count what they see between the two
INTERVAL_SECONDS = 0.01
OTHER_THREADS = 5  # looks for one at the threads next to the main one
WRITE_SECONDS = 1.0  # between two versions of the file: a worker may be ended at any moment
SWITCH_SECONDS = 0.00005
LOOK_SECONDS = 0.005  # that no other thread gets the lock: frames that are left meanwhile can't be walked along
WAITING = "waiting for"  # begins the frame that names a wait


def sample_if_wanted(place: str, waits: Callable[[], str]) -> None:
    """Sample this process to its end if a profile is being made; `waits` says what a sleeping worker waits for."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if folder:
        Sampler(place, Path(folder), waits).start()


class Sampler:
    """Counts the stacks of all threads of this process but its own, in seconds."""

    def __init__(self, place: str, folder: Path, waits: Callable[[], str] | None = None) -> None:
        self._place, self._folder, self._waits = place, folder, waits
        self._file = folder / f"{place}-{os.getpid()}.json"
        self._seconds: dict[tuple[str, str, tuple[CodeType, ...]], float] = {}
        self._labels: dict[CodeType, str] = {}
        self._names: dict[int, str] = {}
        self._elapsed = self._overhead = self._unseen = 0.0
        self._looks = 0
        self._is_over = False
        self._thread = threading.Thread(target=self._look_again_and_again, name="sampler", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._switch = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._thread.start()

    def end(self) -> None:
        """Look no more, from now on; doesn't wait."""
        self._is_over = True

    def stop(self) -> None:
        """Look no more; what was seen is in the file."""
        self.end()
        self._thread.join()
        sys.setswitchinterval(self._switch)

    def _look_again_and_again(self) -> None:
        while not (self._folder / BEGUN).exists():
            time.sleep(INTERVAL_SECONDS)
        last = written = time.perf_counter()
        over = str(self._folder / OVER)
        while True:
            time.sleep(INTERVAL_SECONDS)
            if self._is_over or os.path.exists(over):  # what would be seen now belongs to the end of the run
                break
            now = time.perf_counter()
            sys.setswitchinterval(LOOK_SECONDS)
            try:
                self._look(now - last)
            finally:
                sys.setswitchinterval(SWITCH_SECONDS)
            last = now
            if now - written > WRITE_SECONDS:
                written = now
                self._write()
        self._write()

    def _look(self, seconds: float) -> None:
        self._elapsed += seconds
        self._unseen += seconds
        self._looks += 1
        frames = sys._current_frames()
        main = threading.main_thread().ident
        assert main is not None
        self._count("MainThread", frames.pop(main, None), seconds)
        if self._looks % OTHER_THREADS == 0:
            frames.pop(threading.get_ident(), None)
            for ident, frame in frames.items():
                self._count(self._name(ident), frame, self._unseen)
            self._unseen = 0.0
        self._overhead = time.thread_time()

    def _count(self, thread: str, frame: FrameType | None, seconds: float) -> None:
        if stack := self._codes(frame):
            wait = self._waits() if self._waits is not None and stack[-1].co_name == "run_worker" else ""
            key = (thread, wait, stack)
            self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def _name(self, ident: int) -> str:
        if ident not in self._names:
            self._names = {thread.ident or 0: thread.name for thread in threading.enumerate()}
        return self._names.setdefault(ident, "of a library")

    def _codes(self, frame: FrameType | None) -> tuple[CodeType, ...]:
        """The code of every frame, the outermost first."""
        codes = []
        while frame is not None:
            code = frame.f_code
            if type(code) is not CodeType:  # seen in Python 3.11: the frame has been left, and its place is another's
                return ()
            if code not in self._labels:
                self._labels[code] = f"{frame.f_globals.get('__name__', '?')}:{code.co_qualname}"
            codes.append(code)
            frame = frame.f_back
        return tuple(reversed(codes))

    def _write(self) -> None:
        stacks = [
            {
                "thread": thread,
                "frames": [*(self._labels[code] for code in codes), *([wait] if wait else [])],
                "seconds": seconds,
            }
            for (thread, wait, codes), seconds in list(self._seconds.items())
        ]
        record = {
            "place": self._place,
            "pid": os.getpid(),
            "seconds": self._elapsed,
            "overhead": self._overhead,
            "stacks": stacks,
        }
        draft = self._file.with_suffix(".draft")
        with suppress(OSError):  # the profile is over, and its folder gone
            draft.write_text(json.dumps(record))
            draft.replace(self._file)
