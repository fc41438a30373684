"""How a verb ends: one line for the user and an exit code with a meaning."""

from __future__ import annotations

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import NoReturn

from typer.exceptions import TyperException

from rollmill.errors import Refused, RollmillError, SignalExit, WorkerFailed, exit_code_of
from rollmill.launch.interruption import signals_handled
from rollmill.numerics import TooLate, restart


def exit_code(verb: Callable[[], int | None], is_debugging: bool, may_restart: bool = False) -> int:
    """Run the verb; whatever it raises becomes a message on stderr and an exit code.

    A command for portable numerics has loaded the libraries to read its config, and begins again with the switches.
    """
    try:
        with signals_handled((signal.SIGTERM, signal.SIGUSR1), _terminate):
            return _call(verb)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except RollmillError as error:
        if isinstance(error, TooLate) and may_restart:
            restart()
        _report(error, str(error), is_debugging)
        return error.exit_code
    except TyperException as error:  # about the command line
        if message := error.format_message():  # none where the help was shown instead
            verb_name = getattr(getattr(error, "ctx", None), "command_path", "rollmill")
            _report(error, f"{message.rstrip('.')} (see `{verb_name} --help`)", is_debugging)
        return Refused.exit_code
    except Exception as error:
        if not (isinstance(error, BrokenPipeError) and _reader_is_gone()):
            _report(error, f"{type(error).__name__}: {error} (a fault; --debug shows where)", is_debugging)
        return 1


def _call(verb: Callable[[], int | None]) -> int:
    try:
        code = verb()
    except SystemExit as end:
        # typer ends so, without a word, over any broken pipe, even one to a worker
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    if sys.stdout is not None:  # it may have been closed before we began
        sys.stdout.flush()  # here rather than at the interpreter's end, where a broken pipe is noisy
    return code or 0


def _report(error: Exception, message: str, is_debugging: bool) -> None:
    if is_debugging:
        traceback.print_exception(error)
    if isinstance(error, WorkerFailed) and error.child_traceback:
        print(error.child_traceback.rstrip(), file=sys.stderr)
    elif isinstance(error, RollmillError) and error.exit_code == 1 and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)  # what the user's own code raised, where it raised it
    print("rollmill:", " ".join(message.split()), file=sys.stderr)


def _terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Unwind the stack, so that what is open is closed, and end with 143."""
    raise SignalExit(exit_code_of(number))


def _reader_is_gone() -> bool:
    """Whether our output is not read any more (`| head`), which is not an error."""
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # output is captured
        return False
    output = select.poll()
    output.register(descriptor, 0)
    is_gone = any(event & select.POLLERR for _, event in output.poll(0))
    if is_gone:
        # the interpreter flushes once more when it ends: let that go nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
    return is_gone
