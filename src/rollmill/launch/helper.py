"""A helper process of a run on a tether: it is polite to the training, and never outlives the process that started it.

Between the two stands a small program, this file, executed as it is (`python -I -S tether.py`): it lowers the
priority, starts the command in a process group of its own and ends the group as soon as its standard input ends, which
it does however the main process goes. (The kernel's death signal alone would not do: it comes with the end of the
thread that started the child, and doesn't reach what the child has started.)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence
    from pathlib import Path

LOOK_SECONDS = 0.5  # at the main process, in case another process holds the pipe open
GRACE_SECONDS = 1.0  # between asking the command to end and killing it
CLOSE_SECONDS = 3.0  # that the tether has to go when it is let loose
_PR_SET_PDEATHSIG = 1


class Tethered:
    """A running command: one thread, low priority, its output in files."""

    def __init__(
        self, command: Sequence[str], niceness: int, output: Path, errors: Path, descriptors: Sequence[int] = ()
    ) -> None:
        import subprocess

        from rollmill.launch.children import child_variables  # here: the tether itself has no path to it

        with output.open("wb") as out, errors.open("ab") as err:
            self._process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(niceness), *command],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=os.environ | child_variables() | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,  # no Ctrl-C reaches it, and its priority is weighed against ours
                bufsize=0,
                pass_fds=descriptors,  # that the command inherits under the same numbers
            )

    @property
    def exit_code(self) -> int | None:
        """How the command ended, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float) -> bool:
        """Wait for the command to end by itself; whether it has."""
        import subprocess

        try:
            self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self) -> None:
        """End the command and all that it has started, unless it has ended, and let go of it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        if not self.wait(CLOSE_SECONDS):  # the tether was stopped by a signal; the kernel kills the command with it
            self._process.kill()
            self._process.wait()


def rollmill_command(*words: str) -> list[str]:
    """The command line of this very installation."""
    return [sys.executable, "-m", "rollmill", *words]


def main() -> int:
    """Entry of the tether: the main process's number, the niceness, the command."""
    parent, niceness, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _lower_priority(niceness)
    child = os.fork()
    if child == 0:
        _become(command)
    with suppress(OSError):  # the child does it too: either may be first
        os.setpgid(child, child)
    status = _watch(child, parent)
    _signal_group(child, signal.SIGKILL)  # what the command has left over
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        os.kill(os.getpid(), -code)  # as the command went, so that the number is told apart from an exit code
    return code


def _lower_priority(niceness: int) -> None:
    """Take what is left of the cores.

    Niceness counts among the processes of one session only where the kernel groups them by session; the group's own
    has to be lowered too, else it would get as much as all of the training together.
    """
    with suppress(OSError):
        os.nice(niceness)
    for _ in range(3):
        try:
            with open("/proc/self/autogroup", "w") as file:
                file.write(str(niceness))
        except BlockingIOError:  # the kernel allows one such change in a tenth of a second
            time.sleep(0.11)
        except OSError:  # a kernel without such groups
            return
        else:
            return


def _become(command: list[str]) -> None:
    """The child's way to the command; it dies with the tether."""
    try:
        os.setpgid(0, 0)
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.execvp(command[0], command)
    except BaseException as error:
        os.write(2, f"{command[0]}: {error}\n".encode())
    finally:
        os._exit(127)


def _watch(child: int, parent: int) -> int:
    """Wait until the command ends, or end it when the other end is closed; its status."""
    handle = os.pidfd_open(child)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(handle, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll(LOOK_SECONDS * 1000)}
        if handle in ready:
            break
        if (0 in ready and not os.read(0, 4096)) or os.getppid() != parent:
            _signal_group(child, signal.SIGTERM)
            if not select.select([handle], [], [], GRACE_SECONDS)[0]:
                _signal_group(child, signal.SIGKILL)
            break
    return os.waitpid(child, 0)[1]


def _signal_group(leader: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


if __name__ == "__main__":
    sys.exit(main())
