"""The guardian: a small process that outlives the main one for a moment, to end what that leaves behind.

The forkserver ends what workers started, unless it is killed together with the main process. The guardian knows the
process groups of the run from its input. When that ends without a `bye`, it kills the groups; in any case it ends
whatever still carries the mark of the run in its environment. The file is executed by itself (`bare_program`).
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

from rollmill.launch.children import Child, bare_program
from rollmill.launch.proc import is_alive, kill_group, mark_of, new_mark, pids

GRACE_SECONDS = 1.2  # a living forkserver has to end the workers in order; it takes 1.0 at most
LOOK_SECONDS = 0.2  # at the main process, in case another process holds the pipe open

_runs = itertools.count()  # of this process, one after the other or side by side


class Guardian:
    """The main process's end: it reports the groups to end; a guardian that dies is started again."""

    def __init__(self) -> None:
        self.mark = new_mark(next(_runs))
        self._child: Child | None = None
        self._groups: dict[int, bool] = {}  # those that live, and whether they are given time

    def start(self) -> None:
        """Start it, and report all that is known."""
        if self._child is not None:
            self._child.end()
        nothing = subprocess.DEVNULL  # a reader of our output must not wait for it
        command = bare_program(__file__, os.getpid(), self.mark)
        self._child = Child(command, nothing, nothing, mark=self.mark, in_own_session=True)
        for group, has_time in self._groups.items():
            self.watch(group, has_time)

    def look(self) -> None:
        """Start it again if it has died."""
        if self._child is not None and self._child.exit_code is not None:
            self.start()

    def watch(self, group: int, has_time: bool = False) -> None:
        """End this process group when we die; with `has_time` its leader may first end the other groups in order."""
        self._groups[group] = has_time
        self._report(f"{'wait' if has_time else 'watch'} {group}")

    def forget(self, group: int) -> None:
        """It is gone."""
        if group in self._groups:
            del self._groups[group]
            self._report(f"forget {group}")

    def close(self) -> None:
        """Dismiss it: nothing is left to end."""
        if self._child is not None:
            self._report("bye")
            self._child.end()
            self._child = None

    def _report(self, line: str) -> None:
        if self._child is not None:
            self._child.write(line.encode() + b"\n")


def main() -> None:
    """Entry of the guardian process: the main process's number, the mark of the run."""
    parent, mark = int(sys.argv[1]), sys.argv[2]
    groups = _groups_left_by(parent)
    leaders = [group for group, has_time in groups.items() if has_time]
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(map(is_alive, leaders)):
        time.sleep(0.02)
    for group in groups:
        kill_group(group)
    for pid in pids():  # what left its group, or was started a moment before we could hear of it
        if pid != os.getpid() and mark_of(pid) == mark:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _groups_left_by(parent: int) -> dict[int, bool]:
    """The groups that are there when the main process dies, and which have time; none if it dismisses us."""
    groups: dict[int, bool] = {}
    rest = b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        if poll.poll(LOOK_SECONDS * 1000):
            chunk = os.read(0, 65536)
            if not chunk:
                return groups
            *lines, rest = (rest + chunk).split(b"\n")
            for verb, _, group in (line.partition(b" ") for line in lines):
                if verb == b"bye":
                    return {}
                if verb == b"forget":
                    groups.pop(int(group), None)
                else:
                    groups[int(group)] = verb == b"wait"
        elif os.getppid() != parent:
            return groups


if __name__ == "__main__":
    main()
