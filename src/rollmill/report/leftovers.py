"""What dead runs left over: files that were never finished, and processes."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.launch.proc import ancestry, is_alive, is_gone, mark_of, pids, start_of
from rollmill.observe.phrases import cut
from rollmill.persist.writing import read_record

# .NAME.<pid>.tmp comes from persist/writing.py. In checkpoints/ there are also .draft-… and .trash-….
DRAFT = re.compile(r"\..+\.(?P<writer>\d{1,18})\.tmp")
CHECKPOINT_DRAFT = re.compile(r"\.(draft|trash)-[a-z0-9-]+-(?P<writer>\d{1,18})")
HELD = re.compile(r"\.held-[a-z0-9-]+")  # for periodic evaluation, by the process of the run (persist/best.py)


@dataclass(frozen=True)
class Draft:
    """A file or folder that was never finished."""

    path: Path
    writer: int  # pid of the process that began it and has ended

    def __str__(self) -> str:
        return f"draft {self.path} of the dead process {self.writer}"

    def remove(self) -> None:
        """Remove it; nothing happens if it is gone."""
        if self.path.is_dir() and not self.path.is_symlink():
            shutil.rmtree(self.path)
        else:
            self.path.unlink(missing_ok=True)


@dataclass(frozen=True)
class RunProcess:
    """The process that a run folder names as its own."""

    folder: Path
    facts: dict[str, Any]  # run.json

    @property
    def has_ended(self) -> bool:
        """Whether it surely has; False for one on another host."""
        return is_gone(self.facts, self.folder / "run.json")


def find_runs(path: Path) -> Iterator[RunProcess]:
    """The runs in a folder, at any depth; links are not followed, and what can't be read is skipped."""
    for folder, inside, files in os.walk(path):
        if "run.json" in files:
            inside.clear()
            if facts := read_record(Path(folder) / "run.json"):
                yield RunProcess(Path(folder), facts)


def find_drafts(run: RunProcess) -> list[Draft]:
    """What dead processes left unfinished in a run; nothing as long as the run continues, or that is unknown here."""
    if not run.has_ended:
        return []
    folders = [run.folder, *(run.folder / name for name in ("checkpoints", "logs", "tensorboard"))]
    for below in ("", "/trajectories", "/video"):
        folders += sorted(run.folder.glob(f"evaluations/*{below}"))
    drafts = []
    for path in (path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir())):
        is_ours = DRAFT.fullmatch(path.name)
        if path.parent.name == "checkpoints":
            is_ours = is_ours or CHECKPOINT_DRAFT.fullmatch(path.name)
            if HELD.fullmatch(path.name):
                drafts.append(Draft(path, int(run.facts.get("pid") or 0)))
        if is_ours and _is_abandoned(path, int(is_ours["writer"]), run.facts):
            drafts.append(Draft(path, int(is_ours["writer"])))
    return drafts


def _is_abandoned(path: Path, writer: int, facts: dict[str, Any]) -> bool:
    try:
        return is_gone({"pid": writer, "host": facts.get("host")}, path)
    except OSError:  # a link that leads nowhere, or it is gone already: ask for the process alone
        return not is_alive(writer)


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
    return cut(" ".join(b" ".join(words).decode(errors="replace").split()), 80)
