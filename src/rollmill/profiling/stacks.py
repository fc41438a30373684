"""Sampled stacks: the functions in which the time was spent, and the file that speedscope shows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.launch.stack_sampler import WAITING

OURS = "rollmill."
WAITS_OF_THREADS = ("threading:", "queue:", "select", "concurrent.futures.thread:", "rollmill.launch.pulse:")


@dataclass(frozen=True)
class Stack:
    """A sampled stack, the outermost frame first, and for how long it was seen."""

    thread: str
    frames: tuple[str, ...]
    seconds: float

    @property
    def function(self) -> str:
        """The innermost of our functions, which includes what it called elsewhere; or what was waited for."""
        last = self.frames[-1]
        own = [frame.removeprefix(OURS) for frame in self.frames if frame.startswith(OURS)]
        name = last if last.startswith(WAITING) or not own else own[-1]
        return name if self.thread == "MainThread" else f"{name} (thread {self.thread})"

    @property
    def is_idle(self) -> bool:
        """A thread next to the main one that only waits."""
        return self.thread != "MainThread" and self.frames[-1].startswith(WAITS_OF_THREADS)


@dataclass(frozen=True)
class Sampled:
    """The stacks of one process."""

    place: str
    pid: int
    seconds: float
    overhead: float  # CPU seconds of the sampler itself
    stacks: tuple[Stack, ...]

    @property
    def waiting(self) -> float:
        """Seconds in which its main thread waited for other processes."""
        return sum(stack.seconds for stack in self.stacks if stack.function.startswith(WAITING))

    def share(self, seconds: float) -> float:
        """These seconds as a share of the wall time."""
        return seconds / max(self.seconds, 1e-9)


def read_samples(folder: Path) -> list[Sampled]:
    """The stacks of every process that wrote them into the folder, the main one first."""
    found = []
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        stacks = [Stack(stack["thread"], tuple(stack["frames"]), stack["seconds"]) for stack in record["stacks"]]
        found.append(Sampled(record["place"], record["pid"], record["seconds"], record["overhead"], tuple(stacks)))
    return sorted(found, key=lambda sampled: (sampled.place != "main", sampled.place))


def speedscope(samples: Sequence[Sampled], title: str) -> dict[str, Any]:
    """The content of a speedscope file, with a profile per process and thread; threads that only wait are left out."""
    numbers: dict[str, int] = {}
    profiles: dict[str, dict[str, Any]] = {}
    for sampled in samples:
        for stack in sampled.stacks:
            if stack.is_idle:
                continue
            name = sampled.place if stack.thread == "MainThread" else f"{sampled.place}, thread {stack.thread}"
            empty = {"type": "sampled", "name": name, "unit": "seconds", "startValue": 0, "endValue": 0.0}
            profile = profiles.setdefault(name, {**empty, "samples": [], "weights": []})
            profile["samples"].append([numbers.setdefault(frame, len(numbers)) for frame in stack.frames])
            profile["weights"].append(stack.seconds)
            profile["endValue"] += stack.seconds
    return {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "name": title,
        "exporter": "rollmill profile",
        "shared": {"frames": [{"name": frame} for frame in numbers]},
        "profiles": list(profiles.values()),
    }
