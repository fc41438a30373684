"""Processes that a dead run left over."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rollmill.launch.proc import ancestry, mark_of, pids, start_of


@dataclass(frozen=True)
class Orphan:
    """A process whose run is over."""

    pid: int
    start: int  # ticks since boot; a pid is reused, the pair is not
    main: int  # pid of the run's main process, which has ended
    command: str

    def __str__(self) -> str:
        return f"process {self.pid} of the dead run {self.main}: {self.command}"

    def remove(self) -> None:
        """Kill it; nothing happens if it has ended meanwhile, even if its pid has been reused."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            if start_of(self.pid) == self.start:  # the handle refers to the process that was just checked
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def find_orphans(living: frozenset[int]) -> list[Orphan]:
    """Our own processes that carry the mark of a run whose main process has ended.

    Left alone are those in `living` (main processes of runs that continue), main processes of other marked processes,
    this process and its ancestors, and other containers, where process numbers mean something else.
    """
    marked = {pid: mark for pid in pids() if (mark := _main_of(pid)) is not None}
    mains = {main for main, start in marked.values() if start_of(main) == start}
    spared = living | mains | set(ancestry(os.getpid()))
    found = []
    for pid, (main, main_start) in sorted(marked.items()):
        start = start_of(pid)
        if pid not in spared and start is not None and start_of(main) != main_start and _is_in_our_namespace(pid):
            found.append(Orphan(pid, start, main, _command(pid)))
    return found


def _main_of(pid: int) -> tuple[int, int] | None:
    """Main process of a marked process, and its start; None without a mark."""
    main, _, rest = mark_of(pid).partition(":")
    start = rest.partition(":")[0]
    return (int(main), int(start)) if main.isdecimal() and start.isdecimal() else None


def _is_in_our_namespace(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    text = " ".join(b" ".join(words).decode(errors="replace").split())
    return text if len(text) <= 80 else text[:79] + "…"
