"""The folder of a run: what is where in it, and that no other run's is touched."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gymnasium import Space

from rollmill.config.base import Config
from rollmill.config.load import dump
from rollmill.errors import Refused
from rollmill.launch.proc import is_gone
from rollmill.persist.parts import array_bytes, package_version
from rollmill.persist.writing import read_record, write_atomically
from rollmill.spaces import space_from, space_record
from rollmill.types import Array

PACKAGES = ("rollmill", "torch", "numpy", "gymnasium", "ale-py", "pydantic", "safetensors")
MARK = "run.json"  # what makes a folder a run
_SPACES = "spaces.json"


class RunFolder:
    """A run on disk: config, spaces, run.json, checkpoints/, weights, summary.json, logs/, metrics, curve."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path | None, name: str, overwrite: bool) -> RunFolder:
        """Make the folder; one that exists is touched only on request, and only if it is a run."""
        if path is None:
            return cls(make_timed_folder(Path("runs"), name, "--run"))
        if not is_free(path):
            if not overwrite:
                raise Refused(f"--run {path} exists; choose another folder, or --overwrite to replace it")
            if path.is_symlink():
                raise Refused(f"--run {path} is a link, which is not overwritten; name the folder it leads to")
            if not (path / MARK).is_file():
                raise Refused(f"--run {path} is no run folder (it has no {MARK}), so it is not overwritten; remove it")
            _refuse_living(path)
            with cls(path).locked():  # also one that is only just starting
                shutil.rmtree(path)
        make_folder(path, "--run")
        return cls(path)

    @property
    def logs(self) -> Path:
        """One file per component."""
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def weights(self) -> Path:
        """The newest weights."""
        return self.path / "weights.safetensors"

    @property
    def initial(self) -> Path:
        """The weights that a run began with, if they were another run's: it can be retraced from nothing else."""
        return self.path / "initial.safetensors"

    def describe(self, config: Config, observation: Space[Any], action: Space[Any], **further: Any) -> None:
        """Keep what is needed to know and repeat this run: the resolved config, spaces, versions, commit, machine."""
        process = {"pid": os.getpid(), "host": platform.node(), "started": time.strftime("%Y-%m-%dT%H:%M:%S%z")}
        spaces = {"observation": space_record(observation), "action": space_record(action)}
        try:
            write_atomically(self.path / MARK, json.dumps(process))  # at once: then it is known for a run
            self.logs.mkdir(exist_ok=True)
            write_atomically(self.path / "config.yaml", dump(config))
            facts = {
                **process,
                "python": platform.python_version(),
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "versions": {name: package_version(name) for name in PACKAGES},
                "git_commit": git_commit(),
                **further,
            }
            write_atomically(self.path / MARK, json.dumps(facts, indent=2))
            write_atomically(self.path / _SPACES, json.dumps(spaces, allow_nan=False))
        except OSError as error:
            raise Refused(f"{self.path} can't be written to: {error.strerror}; choose a folder with --run") from error

    def read_spaces(self) -> tuple[Space[Any], Space[Any]] | None:
        """The spaces of observations and actions; None for a run of a version that didn't keep them."""
        file = self.path / _SPACES
        try:
            record = json.loads(file.read_bytes())
            return space_from(record["observation"]), space_from(record["action"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AssertionError) as error:
            raise Refused(f"{file} can't be read: {error}; it is cut short or damaged") from error

    @staticmethod
    def save_weights(file: Path, weights: Mapping[str, Array]) -> None:
        """Write weights so that a reader sees the old ones or the new ones, never a part."""
        write_atomically(file, array_bytes(weights))

    @staticmethod
    def read_weights(file: Path) -> dict[str, Array]:
        """The weights in a file; loading executes nothing from it."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        try:
            loaded: dict[str, Array] = load(file.read_bytes())
        except (SafetensorError, OSError) as error:
            raise Refused(f"{file} can't be read: {error}; it is cut short or damaged") from error
        return loaded

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for this process; refused while another one does. The lock ends with the process."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise Refused(f"{self.path} can't be opened: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise Refused(f"{self.path} is being written by another process; stop it, or choose another run") from None
        except OSError:
            pass  # a file system without locks: run.json still says which process writes
        try:
            yield
        finally:
            os.close(handle)


def is_free(path: Path) -> bool:
    """Whether a new folder may be made there: the path is an empty folder, or not in use."""
    return not any(path.iterdir()) if path.is_dir() else not os.path.lexists(path)


def make_folder(path: Path, option: str) -> None:
    """Make a folder that the user has named by this option, unless it exists."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{option} {path} can't be made: {error.strerror}; choose another folder") from error


def make_output_folder(path: Path) -> Path:
    """The folder that `--out` names; refused if there is something in it."""
    if not is_free(path):
        raise Refused(f"--out {path} exists and is not empty; choose another folder")
    make_folder(path, "--out")
    return path


def make_timed_folder(above: Path, name: str, option: str) -> Path:
    """<above>/<name>-<time>; a number is added while another process takes the name at the same moment."""
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", f"{name}-{time.strftime('%Y%m%d-%H%M%S')}").strip("-").lower()
    for attempt in range(1000):
        path = above / (f"{stem}-{attempt}" if attempt else stem)
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise Refused(f"{path} can't be made: {error.strerror}; choose a folder with {option}") from error
        return path
    raise Refused(f"{above} is full of folders of this second; choose another one with {option}")


def _refuse_living(path: Path) -> None:
    """A run that is still running is not overwritten: both would write into one folder."""
    process, summary = read_record(path / MARK), read_record(path / "summary.json")
    is_other = process.get("pid") != os.getpid() and process.get("host") == platform.node()
    if is_other and summary.get("status") == "running" and not is_gone(process, path / MARK):
        remedy = "stop it, or choose another folder"
        raise Refused(f"--run {path} is being written by process {process['pid']}; {remedy}")


def git_commit() -> Any:
    """The commit of the working folder, with "+changes" if there are any; None outside a repository."""

    def git(*arguments: str) -> str:
        result = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        return result.stdout.strip()

    try:
        return git("rev-parse", "HEAD") + ("+changes" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return None
