"""The processes that tuning measures: one server loads the numeric libraries once and forks a candidate per setup.

The server receives over a socket which candidate to start, with the candidate's connection in the same message. A
candidate trains for as many seconds as it is asked to, answers what it measured, and is idle in between. When the first
socket is closed all candidates end, however the process that tunes has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.errors import RollmillError
from rollmill.events import Event, Updated
from rollmill.experiment import Experiment
from rollmill.launch.children import Child, child_variables, program
from rollmill.launch.proc import die_with
from rollmill.launch.process import write_output_to
from rollmill.persist.writing import last_line
from rollmill.profiling.span import Span
from rollmill.settings import ExperimentConfig, load_config

GRACE_SECONDS = 3.0  # for candidates to close their environments
CLOSE_SECONDS = 8.0  # for the server to end all of them
WARM_UP = 0.25  # share of the seconds that isn't counted: what was made while idle would look fast
_MOST_BYTES = 1 << 17  # of a message with a config


class CandidateServer:
    """The tuner's end of the server; what candidates write is in `folder`, which is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, (folder / "server.log").open("wb") as log:
            command = program(f"{__name__}:main", other.fileno(), folder)
            self._process = Child(command, log, log, [other.fileno()], child_variables(), has_input=False)

    def start(self, config: ExperimentConfig, changes: Mapping[str, Any]) -> Candidate:
        """Start a candidate with this config and these changes, by dotted key."""
        self._count += 1
        ours, theirs = Pipe()
        values = config.model_dump(mode="json", by_alias=True)
        message = json.dumps({"number": self._count, "values": values, "changes": changes}).encode()
        with theirs:
            try:
                socket.send_fds(self._control, [message], [theirs.fileno()])
            except OSError:
                reason = last_line(self._folder / "server.log") or f"exit code {self._process.exit_code}"
                raise RollmillError(f"the process that starts candidates has died: {reason}") from None
        return Candidate(ours, self._folder / f"{self._count}.log")

    def close(self) -> None:
        """End all candidates and remove what they have written."""
        self._control.close()
        try:
            self._process.end(CLOSE_SECONDS)  # the kernel kills the candidates with it
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class Candidate:
    """The tuner's end of one candidate."""

    def __init__(self, channel: Connection, output: Path) -> None:
        self._channel, self._output = channel, output

    def ask(self, seconds: float) -> None:
        """Let it train for so many seconds; then `answer`."""
        with suppress(OSError):  # it has died, which is its answer
            self._channel.send(seconds)

    def fileno(self) -> int:
        """Readable when the answer has arrived."""
        return self._channel.fileno()

    def answer(self) -> dict[str, Any]:
        """Its measurement or why it failed."""
        try:
            answer: dict[str, Any] = self._channel.recv()
        except (EOFError, OSError):
            return {"failed": last_line(self._output) or "its process died"}
        return answer

    def close(self) -> None:
        """Let it end."""
        self._channel.close()


def main() -> None:
    """Entry of the server: the number of its socket, and the folder for what candidates write."""
    control, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    children: list[int] = []
    parent = os.getpid()
    try:
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
            if not message:
                return
            order = json.loads(message)
            with Connection(descriptors[0]) as channel:
                child = os.fork()
                if child == 0:
                    try:
                        die_with(parent)
                        control.close()
                        write_output_to(folder / f"{order['number']}.log")
                        _serve(order, folder / f"run-{order['number']}", channel)
                    finally:
                        sys.stderr.flush()
                        os._exit(0)
                children.append(child)
            children = [child for child in children if not _has_ended(child)]
    finally:
        _end(children)
        shutil.rmtree(folder, ignore_errors=True)


def _has_ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] != 0


def _end(children: list[int]) -> None:
    """End the candidates: idle ones see the end of their sockets, the others get a signal, and are killed after it."""
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
    while children and time.monotonic() < deadline:
        children = [child for child in children if not _has_ended(child)]
        time.sleep(0.02)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _serve(order: Mapping[str, Any], folder: Path, channel: Connection) -> None:
    """The candidate's side: train whenever a number of seconds arrives, and answer with the measurement."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # ends it at once; a training would end in order
    try:
        events = Experiment(load_config(order["values"], order["changes"]), folder, observers=[]).run()
        try:
            while True:
                channel.send(_measure(events, channel.recv(), channel))
        finally:
            events.close()  # type: ignore[attr-defined]  # a generator
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the result is not wanted any more
    except RollmillError as error:
        channel.send({"failed": str(error)})
    except Exception as error:
        channel.send({"failed": f"{type(error).__name__}: {error}"})


def _measure(events: Iterator[Event], seconds: float, channel: Connection) -> dict[str, Any]:
    """Steps and seconds between two updates, and where the time went; at least one whole update."""
    begun = perf_counter()
    span: Span | None = None
    for event in events:
        if not isinstance(event, Updated):
            continue
        if channel.poll():  # nothing is asked before the answer: the other end is closed
            raise BrokenPipeError
        if span is not None:
            span.extend(event)
            if span.seconds >= (1 - WARM_UP) * seconds:
                break
        elif perf_counter() - begun >= WARM_UP * seconds:
            span = Span(event.progress)
    if span is None or span.seconds <= 0:
        return {"failed": "the training ended before it could be measured"}
    return {"steps": span.steps, "seconds": span.seconds, "shares": span.shares}
