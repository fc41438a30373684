"""Plays units in this process or in several: `SerialPool`, `ProcessPool`.

A worker reads its units from standard input and reports episodes through a pipe, in lines of JSON. It ends when its
input does; the kernel kills it when the process that started it is killed.
"""

from __future__ import annotations

import json
import os
import pickle
import select
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from rollmill.errors import Refused, WorkerFailed
from rollmill.launch.children import Child, child_variables, program
from rollmill.launch.json_lines import write_line
from rollmill.launch.proc import die_with, kill_group
from rollmill.launch.process import set_threads
from rollmill.launch.pulse import watchdog
from rollmill.play.playing import Episode, Played
from rollmill.play.units import Job, Unit, UnitPlayer

POLL_SECONDS = 0.1  # between two checks whether to continue
WORKER_POLL_SECONDS = 0.05  # the same in a worker
ATTEMPTS = 2  # at a unit whose worker dies

Scores = Iterator[tuple[int, Played]]  # which player, how the episode went


class SerialPool:
    """Plays in this process, one unit after the other."""

    def __init__(self, job: Job) -> None:
        self._player = UnitPlayer(job)

    def play(self, units: Iterable[Unit], may_begin: Callable[[], bool], may_continue: Callable[[], bool]) -> Scores:
        """Play the units, yielding episodes as they end.

        No unit is begun once `may_begin` is false; once `may_continue` is false, running episodes are dropped.
        """
        for unit in units:
            if not (may_begin() and may_continue()):
                return
            for played in self._player.play(unit, may_continue):
                yield unit.player, played

    def close(self) -> None:
        """Close the environments."""
        self._player.close()


@dataclass
class _Worker:
    number: int
    process: Child
    reports: int  # read end
    unread: bytes = b""
    unit: Unit | None = None
    is_ready: bool = False
    attempts: int = 0  # at its unit
    error: dict[str, Any] = field(default_factory=dict)

    def end(self) -> int:
        """Wait until it has closed its environments and ended; its exit code."""
        code = self.process.end()
        kill_group(self.process.pid)  # processes of its environments
        os.close(self.reports)
        return code


class ProcessPool:
    """Plays in worker processes; the unit of a worker that died is given to a new one."""

    def __init__(self, job: Job, size: int) -> None:
        self._folder, self._size = job.recording.folder, size
        self._descriptor = os.memfd_create("rollmill evaluation")
        with open(self._descriptor, "wb", closefd=False) as file:
            pickle.dump(job, file)
        self._workers: dict[int, _Worker] = {}  # by the descriptor of their reports
        self._again: deque[tuple[Unit, int]] = deque()  # units to be tried again, with the attempts that were made

    def play(self, units: Iterable[Unit], may_begin: Callable[[], bool], may_continue: Callable[[], bool]) -> Scores:
        """The same, as many units at a time as there are workers."""
        coming = iter(units)
        while may_continue():
            has_work = self._hand_out(coming, may_begin)
            if not has_work and not any(worker.unit for worker in self._workers.values()):
                return
            for worker in self._readable():
                yield from self._read(worker)
        for worker in [worker for worker in self._workers.values() if worker.unit]:
            del self._workers[worker.reports]  # its episodes are not wanted
            worker.end()

    def close(self) -> None:
        """End the workers, which close their environments, and remove empty logs."""
        for worker in self._workers.values():
            worker.process.hang_up()
        for worker in self._workers.values():
            worker.end()
        self._workers.clear()
        os.close(self._descriptor)
        for number in range(self._size):
            with suppress(OSError):
                if not self._log(number).stat().st_size:
                    self._log(number).unlink()

    def _log(self, number: int) -> Path:
        """Where a worker's environments print to."""
        return self._folder / f"worker-{number}.log"

    def _hand_out(self, coming: Iterator[Unit], may_begin: Callable[[], bool]) -> bool:
        """Give every idle worker a unit; False if there are none left."""
        while len(self._workers) < self._size:
            self._start()
        for worker in self._workers.values():
            if worker.unit is None and worker.is_ready:
                if self._again:
                    unit, worker.attempts = self._again.popleft()
                else:
                    found = next(coming, None) if may_begin() else None
                    if found is None:
                        return False
                    unit, worker.attempts = found, 0
                worker.unit, worker.is_ready = unit, False
                worker.process.write(json.dumps([unit.player, unit.episodes]).encode() + b"\n")
        return True

    def _start(self) -> None:
        number = next(n for n in range(self._size) if n not in {worker.number for worker in self._workers.values()})
        reports, reports_write = os.pipe()
        descriptors = [self._descriptor, reports_write]
        command = program(f"{__name__}:main", os.getpid(), *descriptors)
        with self._log(number).open("ab") as log:  # what an environment prints would break the progress bar
            process = Child(command, log, log, descriptors, child_variables())
        os.close(reports_write)
        self._workers[reports] = _Worker(number, process, reports)

    def _readable(self) -> list[_Worker]:
        poll = select.poll()
        for descriptor in self._workers:
            poll.register(descriptor, select.POLLIN)
        return [self._workers[descriptor] for descriptor, _ in poll.poll(POLL_SECONDS * 1000)]

    def _read(self, worker: _Worker) -> Scores:
        data = os.read(worker.reports, 1 << 16)
        if not data:
            self._on_exit(worker)
            return
        *lines, worker.unread = (worker.unread + data).split(b"\n")
        for message in map(json.loads, lines):
            if message["kind"] == "played":
                episode, *rest = message["played"]
                played = Played(Episode(*episode), *rest)
                unit = worker.unit
                assert unit is not None
                left = tuple(None if one == played.episode else one for one in unit.episodes)
                worker.unit = Unit(unit.player, left)
                yield unit.player, played
            elif message["kind"] == "ready":
                worker.unit, worker.is_ready = None, True
            else:
                worker.error = message

    def _on_exit(self, worker: _Worker) -> None:
        """A worker has ended: raise its error, or let another one try its unit."""
        del self._workers[worker.reports]
        code, log = worker.end(), self._log(worker.number)
        if worker.error.get("refused"):
            raise Refused(worker.error["message"])
        if worker.error:
            raise WorkerFailed(worker.error["message"], worker.error["traceback"])
        if worker.unit is None or worker.attempts + 1 >= ATTEMPTS:
            where = f"; its output is in {log}" if log.exists() and log.stat().st_size else ""
            raise WorkerFailed(f"worker {worker.number} ended with code {code} while it played{where}")
        self._again.append((worker.unit, worker.attempts + 1))


def main() -> None:
    """Entry of a worker: the parent's number, the descriptors of the job and of the pipe for reports."""
    parent, job_descriptor, reports = map(int, sys.argv[1:])
    die_with(parent)
    set_threads(1)
    with os.fdopen(job_descriptor, "rb") as file:
        file.seek(0)
        job: Job = pickle.load(file)
    try:
        with watchdog(job.env_seconds, job.recording.folder / "stacks.txt"), closing(UnitPlayer(job)) as player:
            write_line(reports, kind="ready")
            for line in sys.stdin.buffer:
                number, rows = json.loads(line)
                unit = Unit(number, tuple(None if row is None else Episode(*row) for row in rows))
                for played in player.play(unit, _is_input_open()):
                    write_line(reports, kind="played", played=played)
                write_line(reports, kind="ready")
    except Exception as error:
        message = {"message": str(error) or type(error).__name__, "refused": isinstance(error, Refused)}
        write_line(reports, kind="error", traceback=traceback.format_exc(), **message)
        raise SystemExit(1) from None


def _is_input_open() -> Callable[[], bool]:
    """Whether the episodes are still wanted: the parent closes our input when they aren't. Polled now and then."""
    poll, polled, is_open = select.poll(), monotonic(), True
    poll.register(0, select.POLLHUP)

    def check() -> bool:
        nonlocal polled, is_open
        if monotonic() - polled > WORKER_POLL_SECONDS:
            polled = monotonic()
            is_open = not any(event & select.POLLHUP for _, event in poll.poll(0))
        return is_open

    return check
