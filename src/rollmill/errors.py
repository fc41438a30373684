"""Errors that end a run; each class has one exit code."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any


class RollmillError(Exception):
    """A failure with a message for the user; `exit_code` is what the command line returns."""

    exit_code = 1


class Refused(RollmillError):
    """Input that can't be used: the message names the setting, the value and the remedy in one line."""

    exit_code = 2


class Absent(Refused):
    """What the input names is not on this machine (a build, a run); elsewhere the input may be right."""


class WorkerFailed(RollmillError):
    """A component died outside the main process; `child_traceback` is its last message."""

    def __init__(self, message: str, child_traceback: str = "") -> None:
        super().__init__(message)
        self.child_traceback = child_traceback
        if child_traceback:
            self.add_note(child_traceback.rstrip())  # so that Python's own traceback shows it too


class Stalled(RollmillError):
    """No component can make progress, or none has for too long."""


class NoExperience(RollmillError):
    """Every environment failed, so that an update has nothing to learn from."""


class Detected(RollmillError):
    """A detector stopped the run, a NaN among others; `evidence` is what to look at: named arrays by file."""

    exit_code = 3

    def __init__(self, message: str, evidence: Mapping[str, Mapping[str, Any]] | None = None) -> None:
        super().__init__(message)
        self.evidence = evidence or {}


class SignalExit(SystemExit):
    """Raised by a second signal: it unwinds all code, an environment's too."""


def exit_code_of(number: int) -> int:
    """The exit code after a signal; SIGUSR1, with which schedulers warn, counts as SIGTERM."""
    return 128 + (signal.SIGTERM if number == signal.SIGUSR1 else number)


def nearest(name: str, known: list[str] | tuple[str, ...], otherwise: str = "") -> str:
    """A phrase such as "did you mean 'ppo'?"; if none is similar, `otherwise` or the list of known names."""
    from difflib import get_close_matches

    if near := get_close_matches(name, known, n=1, cutoff=0.6):
        return f"did you mean '{near[0]}'?"
    return otherwise or ("known: " + ", ".join(sorted(known)) if known else "none is known")
