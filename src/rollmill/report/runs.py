"""How a run went, read from the files in its folder; needs neither torch nor the code that made them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rollmill.errors import Refused, nearest
from rollmill.launch.proc import is_gone


def read_summary(path: Path) -> dict[str, Any]:
    """The content of summary.json, with `process` (run.json) and `files`; if its process is gone a run has "died"."""
    _refuse_other_folders(path)
    process = _read_json(path / "run.json")
    # run.json is written first: without a summary the run has only just begun, or didn't get far
    summary: dict[str, Any] = {"status": "running", **_read_json(path / "summary.json")}
    if summary["status"] == "running" and is_gone(process, path / "run.json"):
        summary["status"] = "died"
    files = {name: str(path / name) for name in ("curve.png", "logs") if (path / name).exists()}
    return {**summary, "process": process, "files": files}


def _refuse_other_folders(path: Path) -> None:
    if not path.is_dir():
        runs = [folder.name for folder in path.parent.glob("*") if is_run(folder)]
        remedy = nearest(path.name, runs) if runs else "give a YAML file or a folder that `rollmill train` made"
        raise Refused(f"{path}: no such config or run: {remedy}")
    if not is_run(path):
        raise Refused(f"{path}: not a run (no run.json in it): give a YAML file or a folder that `rollmill train` made")


def is_run(path: Path) -> bool:
    """Whether a folder holds a run, or what is left of one."""
    return (path / "run.json").is_file() or (path / "summary.json").is_file()


def _read_json(file: Path) -> dict[str, Any]:
    """The record in the file; empty if there is no such file."""
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(f"{file}: can't be read: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, or not JSON
        reason = " ".join(str(error).split())
        raise Refused(f"{file}: broken or cut short ({reason}): the run's metrics and logs are still there") from None
    if not isinstance(record, dict):
        raise Refused(f"{file}: not a record of a run: the run's metrics and logs are still there")
    return record
