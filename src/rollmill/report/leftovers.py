"""Files that a process which died in the middle of writing left in a run folder."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.launch.proc import is_alive, is_gone
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
