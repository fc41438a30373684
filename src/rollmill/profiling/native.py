"""py-spy beside the training, where it is installed: it sees the native code below Python's functions too."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from rollmill.errors import Refused
from rollmill.profiling.flame import write_flame_graph
from rollmill.profiling.stacks import Stack, telling

RATE = 50  # looks per second; each walks native stacks while the process stands still
LEFT_OUT = ("threading:Condition.wait", "threading:Event.wait", "rollmill.sampling:")  # nobody's work, and our own
PATIENCE_SECONDS = 60.0  # for looking up the names of native functions at the end
_LINE = re.compile(r"(?P<frames>.*) (?P<count>\d+)")
_PYTHON = re.compile(r"(?P<name>.+) \((?P<file>[^()]+)\.py:\d+\)")
_FROZEN = re.compile(r"(?P<name>.+) \(<frozen (?P<module>[\w.]+)>:\d+\)")
_PROCESS = re.compile(r"process (\d+):")


class NativeSampler:
    """One recording of this process and of all that it has started."""

    def __init__(self, folder: Path, seconds: float) -> None:
        beside = Path(sys.executable).with_name("py-spy")
        self._program = str(beside) if beside.exists() else shutil.which("py-spy")
        if self._program is None:
            raise Refused("--native needs py-spy, which isn't installed: pip install py-spy, or leave --native out")
        self._folder, self._seconds = folder, seconds
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Begin to record."""
        words = ["record", "--pid", str(os.getpid()), "--subprocesses", "--native", "--format", "raw"]
        words += ["--rate", str(RATE), "--duration", str(max(1, round(2 * self._seconds))), "--output", str(self._raw)]
        self._process = subprocess.Popen(
            [str(self._program), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )

    def stop(self) -> None:
        """Record no more, whatever it was told; what it has is written now."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)

    def finish(self, title: str) -> str:
        """Draw what was recorded; a line that says where it is, or why there is nothing."""
        assert self._process is not None
        try:
            _, errors = self._process.communicate(timeout=PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            _, errors = self._process.communicate()
        if not self._raw.is_file() or not (stacks := _read(self._raw.read_text(errors="replace"))):
            reason = " ".join(errors.split())[-200:] or "it wrote nothing"
            return f"py-spy has failed, so there is no native flame graph: {reason}"
        write_flame_graph(self._folder / "flame-native.svg", stacks, f"{title}, with native code (py-spy)")
        return f"native: {self._folder / 'flame-native.svg'}"

    @property
    def _raw(self) -> Path:
        return self._folder / "stacks-native.txt"


def _read(text: str) -> list[Stack]:
    stacks = []
    for line in text.splitlines():
        if (match := _LINE.fullmatch(line)) is None:
            continue
        frames = match["frames"].split(";")
        # a process stands below the one that has started it
        place, start = "main", 0
        for number, frame in enumerate(frames):
            if process := _PROCESS.match(frame):
                place = "main" if int(process[1]) == os.getpid() else f"process {process[1]}"
                start = number + 1
        names = telling([_label(frame) for frame in frames[start:]] or ["?"])
        if any(name.startswith(LEFT_OUT) for name in names):
            continue
        thread = "beside" if any(name.startswith("threading:Thread.") for name in names) else "MainThread"
        stacks.append(Stack(place, thread, names, int(match["count"]) / RATE))
    return stacks


def _label(frame: str) -> str:
    """`work (rollmill/learners/learner.py:110)` as our own sampler would call it; native functions as they are."""
    if frozen := _FROZEN.fullmatch(frame):
        return f"{frozen['module']}:{frozen['name']}"
    if (match := _PYTHON.fullmatch(frame)) is None:
        return frame
    module = match["file"].removesuffix("/__init__").replace("/", ".")
    return f"{module}:{match['name']}"
