"""Keys of a terminal, one at a time, without Enter and without being echoed; Ctrl-C and Ctrl-Z stay what they are.

The terminal must be given back however the process ends, also in ways that run no code of ours: a small program, this
file, executed by itself (`bare_program`), waits for that and does it then.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
from ast import literal_eval
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from rollmill.launch.children import Child, bare_program

if TYPE_CHECKING:
    from typing import TextIO

_LOCAL, _SPECIAL = 3, 6  # places in the list of attributes: local modes, special characters


class Keys:
    """Reads keys while this process is in the foreground of its terminal; leaves the terminal alone otherwise."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._before: list[Any] | None = None  # the attributes to put back
        self._ours: list[Any] | None = None
        self._keeper: Child | None = None

    def read(self) -> str:
        """The keys that were pressed since the last call."""
        with _unstoppable():
            if not self._is_in_foreground():
                return ""
            try:
                self._set()
                if not select.select([self._terminal], [], [], 0)[0]:
                    return ""
                return os.read(self._terminal, 64).decode(errors="replace")
            except (OSError, termios.error):  # the terminal is gone
                return ""

    def close(self) -> None:
        """Give the terminal back."""
        with _unstoppable(), suppress(OSError, termios.error):
            if self._before is not None and self._is_in_foreground():
                _put_back(self._terminal, self._ours, self._before)
        self._before = None
        if self._keeper is not None:
            self._keeper.end()
            self._keeper = None

    def _is_in_foreground(self) -> bool:
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False

    def _set(self) -> None:
        """Take keys one at a time; again after the shell has had the terminal in between (Ctrl-Z, fg)."""
        now = termios.tcgetattr(self._terminal)
        if not now[_LOCAL] & (termios.ICANON | termios.ECHO):
            return
        self._before = now
        ours = [*now[:_SPECIAL], list(now[_SPECIAL])]
        ours[_LOCAL] &= ~(termios.ICANON | termios.ECHO)
        ours[_SPECIAL][termios.VMIN], ours[_SPECIAL][termios.VTIME] = 1, 0
        if self._keeper is None:
            command = bare_program(__file__, ours, now)
            self._keeper = Child(command, self._terminal, subprocess.DEVNULL)  # it keeps the terminal
        termios.tcsetattr(self._terminal, termios.TCSADRAIN, ours)
        self._ours = termios.tcgetattr(self._terminal)


def keys_of(source: TextIO | None, output: TextIO | None) -> Keys | None:
    """The keys of a person who sees the output; None where there is no such person."""
    try:
        if source is None or output is None or not (source.isatty() and output.isatty()):
            return None
        if os.tcgetpgrp(source.fileno()) != os.getpgrp():
            return None
        return Keys(source.fileno())
    except (OSError, ValueError):  # closed, or not backed by a file
        return None


def _put_back(terminal: int, ours: list[Any] | None, before: list[Any]) -> None:
    """Restore the terminal settings, unless another program, such as the shell, has changed them since."""
    if termios.tcgetattr(terminal) == ours:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


@contextmanager
def _unstoppable() -> Iterator[None]:
    """Changing a terminal from the background would stop the process."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTOU, signal.SIGTTIN})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def main() -> None:
    """Entry of the keeper: wait for the end of the process that set the terminal, then put it back."""
    ours, before = map(literal_eval, sys.argv[1:])
    while os.read(0, 4096):
        pass
    with _unstoppable(), suppress(OSError, termios.error):
        _put_back(1, ours, before)


if __name__ == "__main__":
    main()
