"""Several processes that play units, and one that hears of it; or everything in this process."""

from __future__ import annotations

import json
import os
import pickle
import select
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from rollmill.errors import Refused, WorkerFailed
from rollmill.launch.children import Child, child_variables, program
from rollmill.launch.proc import kill_group
from rollmill.play.bench import Bench, Job, Unit
from rollmill.play.play_worker import log_path
from rollmill.play.playing import Episode, Played

LOOK_SECONDS = 0.1  # between two looks whether to continue
ATTEMPTS = 2  # at a unit whose worker dies

Scores = Iterator[tuple[int, Played]]  # which player, how the episode went


class Crew(Protocol):
    """The processes that play."""

    def play(self, units: Iterable[Unit], may_begin: Callable[[], bool], may_go_on: Callable[[], bool]) -> Scores:
        """Play the units, yielding episodes as they end.

        No unit is begun after `may_begin` said no; after `may_go_on` said no what runs is dropped.
        """
        ...

    def close(self) -> None:
        """End what was started."""
        ...


class SoloCrew:
    """Plays in this process, one unit after the other."""

    def __init__(self, job: Job) -> None:
        self.bench = Bench(job)

    def play(self, units: Iterable[Unit], may_begin: Callable[[], bool], may_go_on: Callable[[], bool]) -> Scores:
        """One after the other."""
        for unit in units:
            if not (may_begin() and may_go_on()):
                return
            for played in self.bench.play(unit, may_go_on):
                yield unit.player, played

    def close(self) -> None:
        """Close the environments."""
        self.bench.close()


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


class ProcessCrew:
    """Plays in worker processes; what a worker that died had begun is given to a new one."""

    def __init__(self, job: Job, size: int) -> None:
        self._job = job
        self._descriptor = os.memfd_create("rollmill evaluation")
        with open(self._descriptor, "wb", closefd=False) as file:
            pickle.dump(job, file)
        self._size = size
        self._workers: dict[int, _Worker] = {}  # by the descriptor of their reports

    def play(self, units: Iterable[Unit], may_begin: Callable[[], bool], may_go_on: Callable[[], bool]) -> Scores:
        """As many at a time as there are workers."""
        coming = iter(units)
        again: deque[tuple[Unit, int]] = deque()  # with the attempts that were made
        while may_go_on():
            has_work = self._hand_out(coming, again, may_begin)
            if not has_work and not any(worker.unit for worker in self._workers.values()):
                return
            for worker in self._heard():
                yield from self._read(worker, again)
        for worker in [worker for worker in self._workers.values() if worker.unit]:
            del self._workers[worker.reports]  # its episodes are not wanted
            _end(worker)

    def _hand_out(self, coming: Iterator[Unit], again: deque[tuple[Unit, int]], may_begin: Callable[[], bool]) -> bool:
        """Give every idle worker a unit; False if there are none left."""
        while len(self._workers) < self._size:
            self._start()
        for worker in self._workers.values():
            if worker.unit is None and worker.is_ready:
                if again:
                    unit, worker.attempts = again.popleft()
                else:
                    found = next(coming, None) if may_begin() else None
                    if found is None:
                        return False
                    unit, worker.attempts = found, 0
                worker.unit, worker.is_ready = unit, False
                worker.process.write(json.dumps([unit.player, unit.episodes]).encode() + b"\n")
        return True

    def _heard(self) -> list[_Worker]:
        poll = select.poll()
        for descriptor in self._workers:
            poll.register(descriptor, select.POLLIN)
        return [self._workers[descriptor] for descriptor, _ in poll.poll(LOOK_SECONDS * 1000)]

    def _read(self, worker: _Worker, again: deque[tuple[Unit, int]]) -> Scores:
        data = os.read(worker.reports, 1 << 16)
        if not data:
            self._on_exit(worker, again)
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

    def _on_exit(self, worker: _Worker, again: deque[tuple[Unit, int]]) -> None:
        """A worker has ended: say what it said last, or let another one try."""
        del self._workers[worker.reports]
        code = _end(worker)
        log = log_path(self._job.recording.folder, worker.number)
        if worker.error.get("refused"):
            raise Refused(worker.error["message"])
        if worker.error:
            raise WorkerFailed(worker.error["message"], worker.error["traceback"])
        if worker.unit is None or worker.attempts + 1 >= ATTEMPTS:
            where = f"; its output is in {log}" if log.exists() and log.stat().st_size else ""
            raise WorkerFailed(f"worker {worker.number} ended with code {code} while it played{where}")
        again.append((worker.unit, worker.attempts + 1))

    def _start(self) -> None:
        number = next(n for n in range(self._size) if n not in {worker.number for worker in self._workers.values()})
        reports, reports_write = os.pipe()
        with log_path(self._job.recording.folder, number).open("ab") as log:
            descriptors = [self._descriptor, reports_write]
            command = program("rollmill.play.play_worker:main", os.getpid(), *descriptors)
            # what an environment prints would tear the progress bar
            process = Child(command, log, log, descriptors, child_variables())
        os.close(reports_write)
        self._workers[reports] = _Worker(number, process, reports)

    def close(self) -> None:
        """End the workers, which close their environments, and the empty logs."""
        for worker in self._workers.values():
            worker.process.hang_up()
        for worker in self._workers.values():
            _end(worker)
        self._workers.clear()
        os.close(self._descriptor)
        for number in range(self._size):
            log = log_path(self._job.recording.folder, number)
            with suppress(OSError):
                if not log.stat().st_size:
                    log.unlink()


def _end(worker: _Worker) -> int:
    """Wait for a worker to close its environments and go; nothing of it stays."""
    code = worker.process.end()
    kill_group(worker.process.pid)  # what an environment has started
    os.close(worker.reports)
    return code
