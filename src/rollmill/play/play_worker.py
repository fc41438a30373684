"""A process that plays units: told which on standard input, telling how they went through a pipe, line by line.

It ends when its input does; the kernel kills it when the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import sys
import traceback
from contextlib import closing
from pathlib import Path
from time import monotonic
from typing import Any

from rollmill.errors import Refused
from rollmill.launch.proc import die_with
from rollmill.launch.process import set_threads
from rollmill.launch.pulse import watchdog
from rollmill.play.bench import Bench, Job, Unit
from rollmill.play.playing import Episode

LOOK_SECONDS = 0.05  # between two checks whether the episodes are still wanted


def main() -> None:
    """Entry: the parent's number, the descriptors of the job and of the pipe for reports."""
    parent, job_descriptor, reports = map(int, sys.argv[1:])
    die_with(parent)
    set_threads(1)
    with os.fdopen(job_descriptor, "rb") as file:
        file.seek(0)
        job: Job = pickle.load(file)
    try:
        with watchdog(job.env_seconds, job.recording.folder / "stacks.txt"), closing(Bench(job)) as bench:
            _work(bench, reports)
    except Exception as error:
        told = {"message": str(error) or type(error).__name__, "refused": isinstance(error, Refused)}
        _report(reports, kind="error", traceback=traceback.format_exc(), **told)
        raise SystemExit(1) from None


def _work(bench: Bench, reports: int) -> None:
    _report(reports, kind="ready")
    for line in sys.stdin.buffer:
        player, rows = json.loads(line)
        unit = Unit(player, tuple(None if row is None else Episode(*row) for row in rows))
        for played in bench.play(unit, _Wish()):
            _report(reports, kind="played", played=played)
        _report(reports, kind="ready")


class _Wish:
    """Whether the parent still wants what is being played: it closes our input when it doesn't."""

    def __init__(self) -> None:
        self._poll = select.poll()
        self._poll.register(0, select.POLLHUP)
        self._looked = monotonic()
        self._is_there = True

    def __call__(self) -> bool:
        if monotonic() - self._looked > LOOK_SECONDS:
            self._looked = monotonic()
            self._is_there = not any(event & select.POLLHUP for _, event in self._poll.poll(0))
        return self._is_there


def _report(reports: int, **message: Any) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(reports, data) :]


def log_path(folder: Path, number: int) -> Path:
    """Where a worker's environments print to."""
    return folder / f"worker-{number}.log"
