"""The process that trains one seed: an ordinary `rollmill train`, which dies with the process that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rollmill.launch.process import die_with

END_SECONDS = 5.0  # that a process has to end after a signal


class TrainProcess:
    """One seed in training."""

    def __init__(self, seed: int, words: Sequence[str], output: Path, cores: list[int]) -> None:
        self.seed, self.cores = seed, cores
        with output.open("ab") as file:
            # A group of its own: Ctrl-C reaches this process alone, which passes it on once.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rollmill", *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                process_group=0,
                preexec_fn=partial(_prepare, os.getpid(), cores),
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs; 128 + signal if one killed it, as in shells."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def signal(self, number: int) -> None:
        """Pass a signal on."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    def end(self) -> None:
        """Wait until it has ended after a signal; kill it if that takes long."""
        try:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()


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
