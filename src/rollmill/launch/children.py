"""Starting a process: all that a run starts, except for what its environments start, is a `Child`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from rollmill.launch.proc import RUN_VARIABLE, kill_group, new_mark

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
CLOSE_SECONDS = 3.0  # that a child has to end once its input has ended

Output = int | IO[bytes] | None  # None: ours


class Child:
    """A process that we started: it leads a process group, carries the mark of a run, and reads from a pipe.

    The pipe ends with us, however we end; what the child makes of that is its own affair. Ctrl-C in the terminal
    reaches only us.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Output = None,
        errors: Output = None,
        descriptors: Sequence[int] = (),  # that it inherits under the same numbers
        variables: Mapping[str, str] | None = None,  # environment variables besides ours
        mark: str = "",
        has_input: bool = True,
        in_own_session: bool = False,  # in which its priority is weighed against all of ours
        prepare: Callable[[], None] | None = None,  # called in the child; not where we have threads
    ) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE if has_input else subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            pass_fds=descriptors,
            env={**os.environ, **(variables or {}), RUN_VARIABLE: mark or new_mark()},
            process_group=None if in_own_session else 0,
            start_new_session=in_own_session,
            preexec_fn=prepare,
            bufsize=0,
        )
        self.pid = self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended, negative for a signal; None while it runs."""
        return self._process.poll()

    @property
    def input(self) -> IO[bytes]:
        """The end that we write to."""
        assert self._process.stdin is not None
        return self._process.stdin

    def write(self, data: bytes) -> None:
        """Write to its input; nothing happens if it is dead, which is noticed elsewhere."""
        with suppress(BrokenPipeError):
            self.input.write(data)

    def hang_up(self) -> None:
        """End its input."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()

    def wait(self, seconds: float) -> bool:
        """Wait for it to end by itself; whether it has."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(max(0.0, seconds))
        return self.exit_code is not None

    def signal(self, number: int) -> None:
        """Send it a signal."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self, seconds: float = CLOSE_SECONDS) -> int:
        """End its input, wait, and kill its group if that takes too long; its exit code."""
        self.hang_up()
        try:
            self.wait(seconds)
        finally:  # also when a signal interrupts us
            if self.exit_code is None:
                kill_group(self.pid)
            code = self._process.wait()
        return code


def child_variables() -> dict[str, str]:
    """One thread per process, by default, and the modules of this one: a user's own are among them."""
    return dict.fromkeys(THREAD_VARIABLES, "1") | {"PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}


def program(function: str, *arguments: object) -> list[str]:
    """The command that calls `module:function` in a Python like this one."""
    module, _, name = function.partition(":")
    return [sys.executable, "-c", f"from {module} import {name}; {name}()", *map(str, arguments)]


def bare_program(file: str, *arguments: object) -> list[str]:
    """The command that executes one of our files without site packages: it starts soon and takes little memory."""
    ours = str(Path(__file__).parents[2])
    code = f"import sys, runpy; sys.path.append({ours!r}); runpy.run_path({file!r}, run_name='__main__')"
    return [sys.executable, "-I", "-S", "-c", code, *map(str, arguments)]


def rollmill_command(*words: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "rollmill", *words]
