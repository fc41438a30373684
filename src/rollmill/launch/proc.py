"""The table of processes: the one reader of /proc, the mark of a run, and dying with the parent.

The small programs that run without site packages (`children.bare_program`) import this file, so it imports little.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

# Environment variable of every process that a run starts: <main pid>:<its start, in ticks>:<what it belongs to there>
RUN_VARIABLE = "ROLLMILL_RUN"
_PR_SET_PDEATHSIG = 1


class Stat(NamedTuple):
    """A process as /proc/<pid>/stat describes it."""

    name: str
    state: str
    parent: int
    cpu_ticks: int  # user and system, all threads
    start: int  # ticks since boot; a pid is reused, the pair is not


def read_stat(pid: int) -> Stat | None:
    """The process with this number; None if there is none."""
    try:
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            head, _, tail = file.read().rpartition(")")  # the name in parentheses may hold anything
    except OSError:
        return None
    fields = tail.split()
    ticks = int(fields[11]) + int(fields[12])
    return Stat(head.partition("(")[2], fields[0], int(fields[1]), ticks, int(fields[19]))


def pids() -> list[int]:
    """The numbers of all processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    return start_of(pid) is not None


def start_of(pid: int) -> int | None:
    """When a living process began, in ticks since boot; None if it has ended."""
    found = read_stat(pid)
    return None if found is None or found.state in "ZX" else found.start  # a zombie has ended


def ancestry(pid: int) -> Iterator[int]:
    """The process, its parent, and so on."""
    while pid > 0:
        yield pid
        found = read_stat(pid)
        pid = found.parent if found is not None else 0


def resident_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except (OSError, IndexError):
        return 0  # it has just died


def new_mark(part: object = "helper", main: int | None = None) -> str:
    """A value of RUN_VARIABLE for children of the main process (this one by default); `part` tells runs apart."""
    main = os.getpid() if main is None else main
    return f"{main}:{start_of(main)}:{part}"


def mark_of(pid: int) -> str:
    """The value of RUN_VARIABLE that a process was started with; "" if it has none or belongs to another user."""
    with suppress(OSError):
        if os.stat(f"/proc/{pid}").st_uid == os.getuid():  # root may read those of all users
            with open(f"/proc/{pid}/environ", "rb") as file:
                for entry in file.read().split(b"\0"):
                    if entry.startswith(f"{RUN_VARIABLE}=".encode()):
                        return entry.decode(errors="replace").partition("=")[2]
    return ""


def is_gone(process: Mapping[str, Any], written: str | os.PathLike[str]) -> bool:
    """Whether the process that wrote a file such as run.json has ended; unknown, hence False, on another host."""
    pid = process.get("pid")
    if not isinstance(pid, int) or process.get("host") != os.uname().nodename:
        return False
    start = start_of(pid)
    if start is None:
        return True
    # Numbers are used again, in containers soon: a process that began after the file was written is another one.
    began = _boot_time() + start / os.sysconf("SC_CLK_TCK")
    return began > os.stat(written).st_mtime + 10.0  # seconds of slack for a clock that was set


def kill_group(leader: int, number: int = signal.SIGKILL) -> None:
    """Send a signal to a process group, if it is there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`, which started it, dies; at once if it is dead already.

    The signal comes with the end of the thread that started this process, and stays over `exec`.
    """
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def live_on() -> None:
    """Take `die_with` back."""
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, 0)


def _boot_time() -> int:
    """When the machine started, in seconds since 1970."""
    with open("/proc/stat") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("btime"))
