"""The process that trains one seed: an ordinary `rollmill train`, which dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rollmill.launch.children import Child, rollmill_command
from rollmill.launch.proc import die_with

PATIENCE_SECONDS = 5.0  # for a process that was asked to end at once


class SeedProcess:
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
        """None while it runs; 128 + signal if one killed it, as shells have it."""
        code = self._process.exit_code
        return code if code is None or code >= 0 else 128 - code

    def end(self) -> None:
        """Wait until it has ended, as it was asked to; by force if that takes long."""
        self._process.end(PATIENCE_SECONDS)


def last_words(output: Path) -> str:
    """The last line that a process printed."""
    try:
        with output.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    return next((line.removeprefix("rollmill: ") for line in reversed(lines) if line.strip()), "")


def _prepare(parent: int, cores: Sequence[int]) -> None:
    die_with(parent)
    if cores:
        os.sched_setaffinity(0, cores)
