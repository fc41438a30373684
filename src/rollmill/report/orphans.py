"""Processes that a dead run left over."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RUN_VARIABLE = (
    b"ROLLMILL_RUN="  # in the environment of all that a run starts: <pid of its main process>:<start in ticks>:…
)
PROC = Path("/proc")


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
            if _start(self.pid) == self.start:  # the handle refers to the process that was just checked
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def find_orphans(living: frozenset[int]) -> list[Orphan]:
    """Our own processes that carry the mark of a run whose main process has ended.

    Left alone are those in `living` (main processes of runs that continue), main processes of other marked processes,
    this process and its ancestors, and other containers, where process numbers mean something else.
    """
    marked = {pid: mark for pid in _processes() if (mark := _mark(pid)) is not None}
    mains = {main for main, start in marked.values() if _start(main) == start}
    spared = living | mains | set(_ancestry(os.getpid()))
    found = []
    for pid, (main, main_start) in sorted(marked.items()):
        start = _start(pid)
        if pid not in spared and start is not None and _start(main) != main_start and _is_in_our_namespace(pid):
            found.append(Orphan(pid, start, main, _command(pid)))
    return found


def _processes() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdecimal())


def _mark(pid: int) -> tuple[int, int] | None:
    """Main process and its start; None if there is no mark, or the process belongs to another user."""
    try:
        if (PROC / str(pid)).stat().st_uid != os.getuid():  # root may read those of all users
            return None
        entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return None
    for entry in entries:
        if entry.startswith(RUN_VARIABLE):
            main, _, rest = entry.removeprefix(RUN_VARIABLE).partition(b":")
            start, _, _ = rest.partition(b":")
            return (int(main), int(start)) if main.isdigit() and start.isdigit() else None
    return None


def _stat(pid: int) -> list[str]:
    """State, parent and so on; empty if there is no such process."""
    try:
        # the name in parentheses may hold spaces
        return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _start(pid: int) -> int | None:
    """When a process began, in ticks since boot; None if it has ended, be it as a zombie."""
    fields = _stat(pid)
    return int(fields[19]) if fields and fields[0] not in "ZX" else None


def _ancestry(pid: int) -> Iterator[int]:
    while pid > 0:
        yield pid
        fields = _stat(pid)
        pid = int(fields[1]) if fields else 0


def _is_in_our_namespace(pid: int) -> bool:
    try:
        return os.readlink(PROC / str(pid) / "ns" / "pid") == os.readlink(PROC / "self" / "ns" / "pid")
    except OSError:
        return False


def _command(pid: int) -> str:
    try:
        words = (PROC / str(pid) / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return "?"
    text = " ".join(b" ".join(words).decode(errors="replace").split())
    return text if len(text) <= 80 else text[:79] + "…"
