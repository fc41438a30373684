"""A small trained run, and talking to programs on a real terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import rollmill

CONFIG = {
    "env": {"id": "CartPole-v1", "groups": 1, "group_size": 4},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 1},
    "train": {"steps": 256},
    "checkpoint": {"updates": 2, "keep": 10},
    "observe": {"console": "none", "tensorboard": False, "curve": False, "baseline_episodes": 0, "final_episodes": 0},
}


def train_tiny(folder: Path, **overrides) -> Path:
    """Four updates of CartPole, with checkpoints 0, 2 and 4."""
    rollmill.train(CONFIG, run=folder, **overrides)
    return folder


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rollmill", *map(str, words)]


def run_verb(*words: str, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command(*words), capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL)


def eventually(condition, seconds: float = 30.0):
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.05)
    return found


def processes_with(text: str) -> list[int]:
    """Living processes whose command line holds the text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if text in words and state not in "ZX":
                found.append(int(entry.name))
    return found


class OnTerminal:
    """A program on a terminal of its own, in the foreground; all that it prints is kept."""

    def __init__(self, *words: str) -> None:
        self.output = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(sys.executable, command(*words))

    def press(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def read(self) -> str:
        while select.select([self.terminal], [], [], 0.05)[0]:
            try:
                chunk = os.read(self.terminal, 65536)
            except OSError:  # the program has ended
                break
            if not chunk:
                break
            self.output += chunk
        return self.output.decode(errors="replace")

    def end(self, seconds: float = 40.0) -> int:
        """The exit code, once it has ended."""
        deadline = time.monotonic() + seconds
        while True:
            self.read()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.read()
                return os.waitstatus_to_exitcode(status)
            if time.monotonic() > deadline:
                os.kill(self.pid, 9)
                os.waitpid(self.pid, 0)
                raise AssertionError(f"it did not end: {self.output[-2000:]!r}")
            time.sleep(0.02)
