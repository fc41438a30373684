"""A helper process of a run on a tether: it is polite to the training, and never outlives the process that started it.

Between the two is a small program, this file, executed by itself (`bare_program`): it lowers the priority, starts the
command in a process group of its own and ends the group as soon as its standard input ends, which it does however the
main process goes. (The kernel's death signal alone would not do: it comes with the end of the thread that started the
child, and doesn't reach what the child has started.)
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rollmill.launch.children import Child, bare_program, child_variables
from rollmill.launch.proc import die_with, kill_group

LOOK_SECONDS = 0.5  # at the main process, in case another process holds the pipe open
GRACE_SECONDS = 1.0  # between asking the command to end and killing it


def start_helper(
    command: Sequence[str], niceness: int, output: Path, errors: Path, descriptors: Sequence[int] = ()
) -> Child:
    """Start a command on a tether: one thread, low priority, its output in files; `end` ends all that it started."""
    words = bare_program(__file__, os.getpid(), niceness, *command)
    variables = child_variables() | {"PYTHONUNBUFFERED": "1"}
    with output.open("wb") as out, errors.open("ab") as err:
        return Child(words, out, err, descriptors, variables, in_own_session=True)


def main() -> int:
    """Entry of the tether: the main process's number, the niceness, the command."""
    parent, niceness, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    tether = os.getpid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _lower_priority(niceness)
    child = os.fork()
    if child == 0:
        _become(command, tether)
    with suppress(OSError):  # the child does it too: either may be first
        os.setpgid(child, child)
    status = _watch(child, parent)
    kill_group(child)  # what the command has left over
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


def _become(command: list[str], tether: int) -> None:
    """The child's way to the command; it dies with the tether."""
    try:
        os.setpgid(0, 0)
        die_with(tether)
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
            kill_group(child, signal.SIGTERM)
            if not select.select([handle], [], [], GRACE_SECONDS)[0]:
                kill_group(child)
            break
    return os.waitpid(child, 0)[1]


if __name__ == "__main__":
    sys.exit(main())
