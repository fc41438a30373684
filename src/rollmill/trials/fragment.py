"""The file that tuning writes: the settings that changed, to be laid over the config, and how they were found."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rollmill.config.yaml_text import written
from rollmill.errors import Refused
from rollmill.persist.run_folder import git_commit
from rollmill.persist.writing import write_atomically

HEADING = "# Written by rollmill tune"  # a file that begins so may be replaced


def fragment_path(config: Path, out: Path | None) -> Path:
    """Where to; refused now rather than after a minute if that would destroy something else."""
    path = out or Path(f"{config.stem}.tuned.yaml")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"can't be made: there is no folder {path.parent}"
        raise Refused(f"--out {path} {what}; name a file in a folder that exists")
    if path.exists() and not _is_ours(path):
        raise Refused(f"--out {path} exists and wasn't written by rollmill tune; name another file")
    return path


def write_fragment(path: Path, changes: Mapping[str, Any], notes: list[str]) -> None:
    """Write the settings as nested sections below a comment."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = tree
        for step in sections:
            section = section.setdefault(step, {})
        section[name] = value
    header = [f"{HEADING}, {time.strftime('%Y-%m-%d %H:%M %z')}", *(f"# {line}".rstrip() for line in notes)]
    try:
        write_atomically(path, "\n".join([*header, written(tree)]))
    except OSError as error:
        raise Refused(f"--out {path} can't be written: {error.strerror}; name another file") from None


def machine() -> dict[str, Any]:
    """What the measurements are true for."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "commit": git_commit()}


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(HEADING)
    except (OSError, UnicodeDecodeError):
        return False
