"""The process that trains one seed: an ordinary `rollmill train`, which dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollmill.launch.children import Child, rollmill_command
from rollmill.launch.proc import die_with

END_SECONDS = 5.0  # that a process has to end after a signal


class TrainProcess:
    """One seed in training."""

    def __init__(self, seed: int, words: Sequence[str], output: Path, cores: list[int]) -> None:
        self.seed, self.cores = seed, cores
        prepare = partial(_prepare, os.getpid(), cores)
        with output.open("ab") as file:
            command = rollmill_command(*words)
            self._process = Child(command, file, subprocess.STDOUT, has_input=False, prepare=prepare)
        self.signal = self._process.signal

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal if one killed it, as in shells."""
        code = self._process.exit_code
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """Wait until it has ended after a signal; kill it if that takes long."""
        self._process.end(END_SECONDS)


def last_line(output: Path) -> str:
    """The last line that a process printed; empty if there is none."""
    lines = tail(output)
    return next((line.removeprefix("rollmill: ") for line in reversed(lines) if line.strip()), "")


def tail(file: Path, size: int = 8192) -> list[str]:
    """The lines in the last bytes of a file; the first and the last may be cut. Empty if it can't be read."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - size))
            return opened.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return []


def _prepare(parent: int, cores: Sequence[int]) -> None:
    die_with(parent)
    if cores:
        os.sched_setaffinity(0, cores)
