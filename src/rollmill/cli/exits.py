"""How a verb ends: one line for the user and an exit code with a meaning."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

from rollmill.errors import RollmillError, WorkerFailed


def exit_code(verb: Callable[[], object], is_debugging: bool) -> int:
    """Run the verb; whatever it raises becomes a message on stderr and an exit code."""
    try:
        with _sigterm_unwinds():
            verb()
        code = 0
    except SystemExit as end:  # how typer ends, well or not
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except RollmillError as error:
        _report(error, str(error), is_debugging)
        code = error.exit_code
    except Exception as error:
        _report(error, f"{type(error).__name__}: {error} (a fault; --debug shows where)", is_debugging)
        code = 1
    return code if _flushed() else 1


def _report(error: Exception, message: str, is_debugging: bool) -> None:
    if is_debugging:
        traceback.print_exception(error)
    if isinstance(error, WorkerFailed) and error.child_traceback:
        print(error.child_traceback.rstrip(), file=sys.stderr)
    print("rollmill:", " ".join(message.split()), file=sys.stderr)


@contextmanager
def _sigterm_unwinds() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that what is open is closed, and end with 143."""
    if threading.current_thread() is not threading.main_thread():  # Python handles signals there only
        yield
        return
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


def _flushed() -> bool:
    """Write out what is left; False if the reader (`| head`) has gone, which is no reason to complain."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        # the interpreter flushes once more when it ends: let that go nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return False
    return True
