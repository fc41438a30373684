"""What the samplers of all processes have seen, and which activity each stack belongs to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rollmill.sampling import WAITING

IDLE_THREADS = "idle threads"
IMPORTS = "imports, once"
# The first rule decides of which some frame begins so; what is done for an environment's sake comes before the rest.
RULES = (
    ("rollmill.runtime.supervise:Supervisor.wait", "waiting for unrolls"),
    ("rollmill.actors.episodes:", "env stepping"),
    ("rollmill.envs.", "env stepping"),
    ("rollmill.models.weights:WeightsLoader", "loading weights"),
    ("rollmill.algorithms.policy:", "inference"),
    ("rollmill.models.plain:", "inference"),
    ("rollmill.actors.", "assembling, copying"),
    # `torch.autograd.function:Function.apply` is none of these: that is the way forward of a function of our own
    ("torch._tensor:Tensor.backward", "backward"),
    ("torch.autograd:backward", "backward"),
    ("torch.autograd:grad", "backward"),
    ("torch.autograd.graph:_engine_run_backward", "backward"),
    ("torch.autograd.function:BackwardCFunction.", "backward"),
    ("rollmill.learners.optimizer:", "optimiser"),
    ("rollmill.learners.flight", "flight log"),
    ("rollmill.learners.journal:", "journal"),
    ("rollmill.learners.checkpoint", "checkpoints"),
    ("rollmill.saving:", "checkpoints"),
    ("rollmill.learners.trainer:Trainer.publish", "publishing"),
    ("rollmill.learners.ledger:FlightLedger.give", "publishing"),
    ("rollmill.models.weights:", "publishing"),
    ("rollmill.stores.", "batch assembly"),
    ("rollmill.models.network:Network.observe", "statistics"),
    ("rollmill.models.", "forward"),
    ("rollmill.algorithms.", "returns, loss"),
    ("rollmill.observe.", "events"),
    ("rollmill.learners.", "learner, other"),
    ("rollmill.", "runtime"),
)
COMPONENTS = (
    ("rollmill.learners.", "learner"),
    ("rollmill.actors.actor:", "actor"),
    ("rollmill.actors.roles:Environment.", "environment"),
    ("rollmill.actors.roles:Inference.", "inference"),
    ("rollmill.actors.roles:Collector.", "collector"),
    ("rollmill.algorithms.", "learner"),  # a generator between two of its items has no caller
)
# what lies above these says nothing about the training
ENTRIES = ("rollmill.profiling.profile:_watch", "rollmill.runtime.nursery:_Family._live")
BETWEEN = ("torch.nn.modules.module:Module._wrapped_call_impl", "torch.nn.modules.module:Module._call_impl")
# Below these a module is being imported: a cost of the first seconds, whose hundred frames would hide the rest.
IMPORT_SYSTEM, IMPORT = "importlib._bootstrap", "import"
WAITS_OF_THREADS = ("threading:", "queue:", "select", "concurrent.futures.thread:", "rollmill.pulse:")


@dataclass(frozen=True)
class Stack:
    """A stack that was seen, the outermost frame first, and for how long."""

    place: str
    thread: str
    frames: tuple[str, ...]
    seconds: float

    @property
    def activity(self) -> str:
        """What is being done."""
        last = self.frames[-1]
        if last.startswith(WAITING):
            return last
        if last == IMPORT:
            return IMPORTS
        if self.thread != "MainThread":
            return IDLE_THREADS if last.startswith(WAITS_OF_THREADS) else f"thread {self.thread}"
        return _first(RULES, self.frames) or "other"

    @property
    def component(self) -> str:
        """Whose work it is."""
        if self.thread != "MainThread":
            return "threads"
        if self.activity == "waiting for unrolls":
            return "learner"
        return _first(COMPONENTS, self.frames) or ("workers' loop" if self.place != "main" else "runtime")


@dataclass(frozen=True)
class Sampled:
    """What one process was seen doing."""

    place: str
    pid: int
    seconds: float
    overhead: float  # CPU seconds of the sampler itself
    stacks: tuple[Stack, ...]


def read_samples(folder: Path) -> list[Sampled]:
    """Of every process that has left its stacks in the folder, the main one first."""
    found = []
    for file in sorted(folder.glob("*.json")):
        record = json.loads(file.read_text())
        place = str(record["place"])
        stacks = tuple(
            Stack(place, stack["thread"], telling(stack["frames"]), stack["seconds"]) for stack in record["stacks"]
        )
        found.append(Sampled(place, record["pid"], record["seconds"], record["overhead"], stacks))
    return sorted(found, key=lambda sampled: (sampled.place != "main", sampled.place))


def folded(stacks: Sequence[Stack]) -> str:
    """One line per stack, milliseconds at its end: what flame graph programs read."""
    sums: dict[str, float] = {}
    for stack in stacks:
        key = ";".join((stack.place, stack.thread, *stack.frames))
        sums[key] = sums.get(key, 0.0) + stack.seconds
    return "".join(f"{key} {round(seconds * 1000)}\n" for key, seconds in sorted(sums.items()))


def telling(frames: Sequence[str]) -> tuple[str, ...]:
    """The frames without those that every stack has; an import is one frame, whatever is imported below it."""
    start = next((place + 1 for place, frame in enumerate(frames) if frame in ENTRIES), 0)
    below = [frame for frame in frames[start:] if frame not in BETWEEN]
    end = next((place for place, frame in enumerate(below) if frame.startswith(IMPORT_SYSTEM)), None)
    return tuple(below if end is None else [*below[:end], IMPORT]) or (frames[-1],)


def _first(rules: Sequence[tuple[str, str]], frames: Sequence[str]) -> str:
    return next((name for start, name in rules if any(frame.startswith(start) for frame in frames)), "")
