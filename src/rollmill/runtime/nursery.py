"""The nursery: one helper process that loads the numeric libraries once and forks the workers.

Starting a worker anew costs seconds of imports each; forking costs milliseconds. The nursery itself never computes
and never touches a device, so a worker may still initialise CUDA. It is the workers' parent: it reaps them, tells the
main process how each ended, and ends their process groups when the main process is gone; the kernel kills the workers
when the nursery itself dies.

It is executed as a program of its own (not by multiprocessing), so that a user's script needs no
`if __name__ == "__main__"` and no resource tracker is left to clean up.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from rollmill.runtime.process import die_with, live_on, tune_allocator

GRACE_SECONDS = 1.0  # for closing environments at the end, before the hard way


@dataclass(frozen=True)
class NurseryPlan:
    """The pipes of the nursery, and who its parent is."""

    parent: int
    life: int  # read end; its end is the end of the run
    reports: int  # write end: one JSON line per worker that ended


def main() -> None:
    """Entry of the nursery process: plans arrive pickled on standard input, from the parent that started us."""
    parent, heading = int(sys.argv[1]), sys.stdin.buffer
    die_with(parent)
    tune_allocator()
    import gymnasium  # noqa: F401 loaded here once, so that forked workers have it
    import torch  # noqa: F401

    import rollmill.runtime.blueprint  # noqa: F401

    nursery, workers, wiring = pickle.load(heading)
    from rollmill.runtime.worker import run_worker

    assert len(os.listdir("/proc/self/task")) == 1, "a process with threads must not fork"
    # From here on the life pipe tells when the main process is gone, and there is time to end what workers started;
    # the kernel's signal would come first, and also when only the thread that started us ends.
    live_on()
    own_pid = os.getpid()
    children: dict[int, str] = {}
    for plan in workers:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)  # leads a group: whatever it starts can be found and ended with it
            die_with(own_pid)
            code = 1
            try:
                code = run_worker(plan, wiring, nursery.life)
            finally:
                os._exit(code)
        children[pid] = plan.place
    _tend(children, nursery)


def _tend(children: dict[int, str], nursery: NurseryPlan) -> None:
    """Reap workers and report them until the run ends; then see to it that all are gone."""
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    poll = select.poll()
    poll.register(nursery.life, select.POLLIN)
    poll.register(wake, select.POLLIN)
    _reap(children, nursery)  # whoever died before the handler was there
    deadline: float | None = None
    while children:
        if deadline is not None and time.monotonic() > deadline:
            for pid in children:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
        for descriptor, _ in poll.poll(None if deadline is None else 50):
            if descriptor == wake:
                os.read(wake, 4096)
            else:
                poll.unregister(nursery.life)
                deadline = time.monotonic() + GRACE_SECONDS
        _reap(children, nursery)


def _reap(children: dict[int, str], nursery: NurseryPlan) -> None:
    for pid in list(children):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # what an environment started must not outlive its worker
            line = json.dumps({"place": children.pop(pid), "pid": pid, "code": os.waitstatus_to_exitcode(status)})
            with suppress(OSError):  # nobody listens any more
                os.write(nursery.reports, line.encode() + b"\n")
