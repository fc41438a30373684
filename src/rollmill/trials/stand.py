"""The stand: one process that loads the numeric libraries once and forks the contestants, each of which then trains.

It receives over a socket which contestant to start, with the contestant's socket in the same message. When the first
socket is closed all contestants end, however the process that tunes has ended.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollmill.errors import RollmillError
from rollmill.launch.children import Child, child_variables, program
from rollmill.launch.proc import die_with
from rollmill.trials.seed_process import last_words

GRACE_SECONDS = 3.0  # for contestants to close their environments
CLOSE_SECONDS = 8.0  # for the stand to end all of them
_MOST_BYTES = 1 << 17  # of a message with a config


class Stand:
    """The tuner's end; what contestants write lies in `folder`, which is removed at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._control, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with other, (folder / "stand.log").open("wb") as log:
            command = program(f"{__name__}:main", other.fileno(), folder)
            self._process = Child(command, log, log, [other.fileno()], child_variables(), has_input=False)

    def start(self, values: dict[str, Any]) -> Contestant:
        """Have a contestant started with this config."""
        self._count += 1
        ours, theirs = socket.socketpair()
        message = json.dumps({"number": self._count, "values": values}).encode()
        with theirs:
            try:
                socket.send_fds(self._control, [message], [theirs.fileno()])
            except OSError:
                reason = last_words(self._folder / "stand.log") or f"exit code {self._process.exit_code}"
                raise RollmillError(f"the process that starts candidates has died: {reason}") from None
        return Contestant(ours, self._folder / f"{self._count}.log")

    def close(self) -> None:
        """End all contestants and remove what they have written."""
        self._control.close()
        try:
            self._process.end(CLOSE_SECONDS)  # the kernel kills the contestants with it
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class Contestant:
    """The tuner's end of one contestant."""

    def __init__(self, channel: socket.socket, output: Path) -> None:
        self._channel, self._output = channel, output
        self._channel.setblocking(False)
        self._heard = b""

    def ask(self, seconds: float) -> None:
        """Let it train for so many seconds; then `answer`."""
        with suppress(OSError):  # it has died, which is its answer
            self._channel.sendall(f"{seconds}\n".encode())

    def fileno(self) -> int:
        """Readable when a part of the answer has come."""
        return self._channel.fileno()

    def answer(self) -> dict[str, Any] | None:
        """What it has measured or why it failed; None while neither is known."""
        try:
            data = self._channel.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        self._heard += data
        if not data:
            return {"failed": last_words(self._output) or "its process died"}
        if b"\n" not in self._heard:
            return None
        line, _, self._heard = self._heard.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """Send it home."""
        self._channel.close()


def main() -> None:
    """Entry of the stand: the number of its socket, and the folder for what contestants write."""
    control, folder = socket.socket(fileno=int(sys.argv[1])), Path(sys.argv[2])
    from rollmill.trials.contestant import compete  # with all that is to be loaded once

    children: list[int] = []
    parent = os.getpid()
    try:
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
            if not message:
                return
            order = json.loads(message)
            with socket.socket(fileno=descriptors[0]) as channel:
                child = os.fork()
                if child == 0:
                    try:
                        die_with(parent)
                        control.close()
                        _write_to(folder / f"{order['number']}.log")
                        compete(order["values"], folder / f"run-{order['number']}", channel)
                    finally:
                        sys.stderr.flush()
                        os._exit(0)
                children.append(child)
            children = [child for child in children if not _has_ended(child)]
    finally:
        _end(children)
        shutil.rmtree(folder, ignore_errors=True)


def _write_to(file: Path) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)


def _has_ended(child: int) -> bool:
    return os.waitpid(child, os.WNOHANG)[0] != 0


def _end(children: list[int]) -> None:
    """Those that are idle see the end of their sockets; the others are told, and killed if that doesn't help."""
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


if __name__ == "__main__":
    main()
