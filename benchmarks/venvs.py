"""One virtual environment per peer, made once and again when its requirements change."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

from benchmarks.machine import ROOT

PEERS_FOLDER = ROOT / "benchmarks" / "peers"
VENVS_FOLDER = ROOT / ".venvs"


class SetUpFailed(Exception):
    """A peer can't be installed here; the message is the last word of pip."""


def set_up(folder: str) -> Path:
    """The Python of the peer's environment, which is installed first where needed."""
    venv = VENVS_FOLDER / folder
    python, stamp = venv / "bin" / "python", venv / "requirements.sha256"
    requirements = PEERS_FOLDER / folder / "requirements.txt"
    without_dependencies = PEERS_FOLDER / folder / "requirements-no-deps.txt"
    files = [file for file in (requirements, without_dependencies) if file.exists()]
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text() == digest:
        return python
    print(f"installing {folder} into .venvs/{folder} …", flush=True)
    shutil.rmtree(venv, ignore_errors=True)
    _run(sys.executable, "-m", "venv", venv)
    _run(python, "-m", "pip", "install", "-r", requirements)
    if without_dependencies in files:
        _run(python, "-m", "pip", "install", "--no-deps", "--ignore-requires-python", "-r", without_dependencies)
    stamp.write_text(digest)
    return python


def _run(*command: str | Path) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        errors = [line for line in result.stderr.splitlines() if line.startswith("ERROR")]
        raise SetUpFailed(errors[-1] if errors else f"exit code {result.returncode}")
