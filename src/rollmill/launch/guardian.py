"""The guardian: a small process that outlives the main one for a moment, to end what that leaves behind.

The forkserver ends what workers started, unless it is killed together with the main process. The guardian knows the
process groups and paths of the run from a pipe; when the pipe ends without a `bye`, it kills the groups and
removes the paths; in any case it ends whatever still carries the mark of the run in its environment.

The file is executed as it is, without site packages (`python -I -S guardian.py`), so it imports little.
"""

from __future__ import annotations

import itertools
import os
import select
import signal
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess

# Environment variable of every process that a run starts: <main pid>:<its start, in ticks>:<number of the run there>
RUN_VARIABLE = "ROLLMILL_RUN"
GRACE_SECONDS = 1.2  # a living forkserver has to end the workers in order; it takes 1.0 at most
CLOSE_SECONDS = 3.0  # that it has to go when it is dismissed
LOOK_SECONDS = 0.2  # at the main process, in case another process holds the pipe open


def start_ticks(pid: int) -> str:
    """When a process started, in ticks since boot; with the number it names a process for good. "" if it is gone."""
    return _stat(pid)[19] if _stat(pid) else ""


_runs = itertools.count()  # of this process, one after the other or side by side


def run_mark() -> str:
    """A value of RUN_VARIABLE for a further run of this process."""
    return f"{os.getpid()}:{start_ticks(os.getpid())}:{next(_runs)}"


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie doesn't."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def kill_group(pid: int) -> None:
    """Kill a process group, if it is there."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat from the state on; the name before it may hold anything."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


class Guardian:
    """The main process's end: tell it what there is to end; it is started again if it dies."""

    def __init__(self) -> None:
        self.mark = run_mark()
        self._process: subprocess.Popen[bytes] | None = None
        self._known: dict[str, None] = {}  # lines that still hold, in order

    @property
    def pid(self) -> int:
        """Its process number; 0 if it isn't running."""
        return 0 if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and tell it all that is known."""
        import subprocess

        self.stop_listening()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid()), self.mark],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a reader of our output must not wait for it
            env=os.environ | {RUN_VARIABLE: self.mark},
            start_new_session=True,  # no Ctrl-C reaches it
            bufsize=0,
        )
        for line in self._known:
            self._tell(line)

    def look(self) -> None:
        """Start it again if it has died."""
        if self._process is not None and self._process.poll() is not None:
            self.start()

    def watch_forkserver(self, pid: int) -> None:
        """End this process group when we die, but give its leader time to end the others first."""
        self._add(f"forkserver {pid}")

    def forget_forkserver(self, pid: int) -> None:
        """It is gone."""
        self._remove(f"forkserver {pid}", f"drop {pid}")

    def watch_group(self, pid: int) -> None:
        """End this process group when we die."""
        self._add(f"group {pid}")

    def forget_group(self, pid: int) -> None:
        """It is gone."""
        self._remove(f"group {pid}", f"drop {pid}")

    def watch_path(self, path: str) -> None:
        """Remove this file or folder when we die."""
        self._add(f"path {os.path.abspath(path)}")

    def forget_path(self, path: str) -> None:
        """It is gone, or is to stay."""
        self._remove(f"path {os.path.abspath(path)}", f"unpath {os.path.abspath(path)}")

    def close(self) -> None:
        """Dismiss it: nothing is left to end."""
        if self._process is not None:
            self._tell("bye")
            self.stop_listening()

    def stop_listening(self) -> None:
        """Let go of a guardian that is dead or dismissed."""
        import subprocess

        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            try:
                self._process.wait(timeout=CLOSE_SECONDS)
            except subprocess.TimeoutExpired:  # it was stopped by a signal
                self._process.kill()
                self._process.wait()
            self._process = None

    def _add(self, line: str) -> None:
        self._known[line] = None
        self._tell(line)

    def _remove(self, known: str, line: str) -> None:
        if known in self._known:
            del self._known[known]
            self._tell(line)

    def _tell(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(BrokenPipeError):  # it died; the next look starts it again
                self._process.stdin.write(line.encode() + b"\n")


class _Charges:
    """What the guardian was told of."""

    def __init__(self) -> None:
        self.forkservers: set[int] = set()
        self.groups: set[int] = set()
        self.paths: list[str] = []
        self.is_dismissed = False

    def hear(self, line: str) -> None:
        """Take note of one line."""
        verb, _, rest = line.partition(" ")
        if verb == "bye":
            self.is_dismissed = True
        elif verb == "path":
            self.paths.append(rest)
        elif verb == "unpath":
            self.paths = [path for path in self.paths if path != rest]
        elif verb == "forkserver":
            self.forkservers.add(int(rest))
        elif verb == "group":
            self.groups.add(int(rest))
        elif verb == "drop":
            self.groups.discard(int(rest))
            self.forkservers.discard(int(rest))


def main() -> None:
    """Entry of the guardian process: the main process's number, the mark of the run."""
    parent, mark = int(sys.argv[1]), sys.argv[2]
    charges = _listen(parent)
    if charges.is_dismissed:
        _kill_marked(mark)  # what an environment has detached from its worker
        return
    for pid in charges.groups:
        if not any(is_alive(forkserver) for forkserver in charges.forkservers):
            kill_group(pid)  # nothing else ends them
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline and any(is_alive(pid) for pid in charges.forkservers):
        time.sleep(0.02)
    for pid in (*charges.forkservers, *charges.groups):
        kill_group(pid)
    _kill_marked(mark)
    for path in charges.paths:
        _remove(path)


def _listen(parent: int) -> _Charges:
    """Hear what the main process tells until it dismisses us or dies."""
    charges, rest = _Charges(), b""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while not charges.is_dismissed:
        if poll.poll(LOOK_SECONDS * 1000):
            chunk = os.read(0, 65536)
            if not chunk:
                break
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                charges.hear(line.decode())
        elif os.getppid() != parent:
            break
    return charges


def _kill_marked(mark: str) -> None:
    """End what left its group, or was started a moment before we could hear of it."""
    wanted = f"{RUN_VARIABLE}={mark}".encode()
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            with suppress(OSError):
                with open(f"/proc/{name}/environ", "rb") as file:
                    is_ours = wanted in file.read().split(b"\0")
                if is_ours:
                    os.kill(int(name), signal.SIGKILL)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


if __name__ == "__main__":
    main()
