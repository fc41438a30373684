"""The forkserver: one helper process that loads the numeric libraries once and forks the workers.

Starting a worker again costs seconds of imports each; forking costs milliseconds. The forkserver itself never computes
and never touches a device, so a worker may still initialise CUDA. It is the workers' parent: it starts and kills them
when it is told to, reaps them, tells the main process how each ended, and ends their process groups when the main
process is gone; the kernel kills the workers when the forkserver itself dies.

It is executed as a program of its own (not by multiprocessing), so that a user's script needs no
`if __name__ == "__main__"` and no resource tracker is left to clean up.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
import sys
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rollmill.launch.children import Child, child_variables, program
from rollmill.launch.json_lines import write_line
from rollmill.launch.proc import die_with, kill_group, live_on
from rollmill.launch.process import tune_allocator
from rollmill.runtime.teams import Kill

if TYPE_CHECKING:
    from rollmill.runtime.wiring import SharedWiring
    from rollmill.runtime.worker import WorkerPlan

SEND_SECONDS = 30.0  # that the forkserver has to take a message; it reads when its imports are done
GRACE_SECONDS = 1.0  # for closing environments at the end, before the hard way

_LENGTH = struct.Struct("=Q")


@dataclass(frozen=True)
class ForkserverPlan:
    """What the forkserver is told first."""

    life: int  # read end; its end is the end of the run
    reports: int  # write end: one JSON line per worker that started or ended
    wiring: SharedWiring


class Forkserver:
    """The main process's end of a forkserver."""

    def __init__(self, plan: ForkserverPlan, inherited: Collection[int], mark: str) -> None:
        descriptors = [*inherited, plan.life, plan.reports]
        self._child = Child(program(f"{__name__}:main", os.getpid()), None, None, descriptors, child_variables(), mark)
        self.pid = self._child.pid
        self.ended = os.pidfd_open(self.pid)  # readable when it has
        self.send(plan)

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it lives."""
        return self._child.exit_code

    def close(self, seconds: float) -> None:
        """Wait for it to end, which it does with the life pipe; then the hard way."""
        self._child.end(seconds)
        os.close(self.ended)

    def send(self, message: ForkserverPlan | WorkerPlan | Kill) -> None:
        """Have it start a worker or kill some; it reports those that started or ended."""
        data = pickle.dumps(message)
        left = memoryview(_LENGTH.pack(len(data)) + data)
        poll = select.poll()
        poll.register(self._child.input, select.POLLOUT)
        with suppress(BrokenPipeError):  # it is dead, which is noticed elsewhere
            while left:
                if not poll.poll(SEND_SECONDS * 1000):  # it is stopped or stuck, and so would be the learner
                    kill_group(self.pid)
                    return
                left = left[self._child.input.write(left[: select.PIPE_BUF]) :]


def main() -> None:
    """Entry of the forkserver process: what to do arrives pickled on standard input, from the parent."""
    die_with(int(sys.argv[1]))
    tune_allocator()
    import gymnasium  # noqa: F401 loaded here once, so that forked workers have it
    import torch  # noqa: F401

    import rollmill.runtime.blueprint
    import rollmill.runtime.worker  # noqa: F401

    # From here on the life pipe tells when the main process is gone, and there is time to end what workers started;
    # the kernel's signal would come first, and also when only the thread that started us ends.
    live_on()
    plan = _receive()
    if plan is not None:
        _Family(plan).tend()


def _receive() -> Any:
    """The next message from the main process, once all of it has come; None if there is none any more."""
    head = _read(_LENGTH.size)
    data = _read(_LENGTH.unpack(head)[0]) if head else b""
    return pickle.loads(data) if data else None


def _read(size: int) -> bytes:
    """So many bytes of the standard input; nothing if it ends before."""
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


class _Family:
    """The workers that live."""

    def __init__(self, plan: ForkserverPlan) -> None:
        self._plan = plan
        self._children: dict[int, str] = {}
        self._pid = os.getpid()
        self._wake, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)

    def tend(self) -> None:
        """Do as the main process says until the run ends; then see to it that all workers are gone."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write)
        poll = select.poll()
        for descriptor in (0, self._plan.life, self._wake):
            poll.register(descriptor, select.POLLIN)
        deadline: float | None = None
        while self._children or deadline is None:
            if deadline is not None and time.monotonic() > deadline:
                for pid in self._children:
                    kill_group(pid)
            ready = {descriptor for descriptor, _ in poll.poll(None if deadline is None else 50)}
            if self._wake in ready:
                os.read(self._wake, 4096)
            if self._plan.life in ready or (0 in ready and not self._obey(_receive())):
                deadline = time.monotonic() + GRACE_SECONDS
                poll.unregister(0)
                poll.unregister(self._plan.life)
            self._reap()

    def _obey(self, command: WorkerPlan | Kill | None) -> bool:
        """Start or kill; False if there is nothing to obey any more."""
        if isinstance(command, Kill):
            for pid, place in self._children.items():
                if place in command.places:
                    kill_group(pid)
        elif command is not None:
            self._fork(command)
        return command is not None

    def _fork(self, plan: WorkerPlan) -> None:
        assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.setpgid(0, 0)  # leads a group: whatever it starts can be found and ended with it
                die_with(self._pid)
                code = self._live(plan)
            finally:
                os._exit(code)
        with suppress(PermissionError, ProcessLookupError):
            os.setpgid(pid, pid)  # also from here: it may be killed before it comes to that
        self._children[pid] = plan.place
        write_line(self._plan.reports, kind="started", place=plan.place, pid=pid)

    def _live(self, plan: WorkerPlan) -> int:
        """The child's side of the fork."""
        from rollmill.runtime.worker import run_worker

        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(self._wake)
        os.close(self._wake_write)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)  # an environment that reads must not take what is meant for the forkserver
        os.close(nothing)
        return run_worker(plan, self._plan.wiring, self._plan.life)

    def _reap(self) -> None:
        for pid in list(self._children):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                kill_group(pid)  # what an environment started must not outlive its worker
                place = self._children.pop(pid)
                write_line(
                    self._plan.reports, kind="ended", place=place, pid=pid, code=os.waitstatus_to_exitcode(status)
                )
