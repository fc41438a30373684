"""What happens in a run, as frozen records; observers receive nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Progress:
    """Progress of the run when an event is made."""

    env_steps: int = 0  # agent decisions
    frames: int = 0  # env_steps × frame skip
    target_steps: int = 0  # agent decisions; 0: the run ends after target_updates
    updates: int = 0
    target_updates: int = 0
    episodes: int = 0
    seconds: float = 0.0  # since training began
    return_ema: float | None = None  # raw episode return, smoothed; None before the first episode ends

    @property
    def goal(self) -> tuple[int, int, str]:
        """How many are done, how many there will be, and of what: steps or updates."""
        if self.target_updates:
            return self.updates, self.target_updates, "updates"
        return self.env_steps, self.target_steps, "steps"

    @property
    def fraction(self) -> float:
        """Share of the training that is done, from 0 to 1."""
        done, target, _ = self.goal
        return min(1.0, done / target) if target else 0.0


@dataclass(frozen=True)
class Event:
    """Something that happened, and how far the run had come."""

    progress: Progress


@dataclass(frozen=True)
class Opened(Event):
    """The run folder exists, and nothing else yet."""

    run: str  # its path


@dataclass(frozen=True)
class RunStarted(Event):
    """Everything is built and wired, training begins."""

    title: str  # e.g. "ppo on CartPole-v1"
    plan: tuple[str, ...]  # human-readable lines: processes, threads, devices, cores
    random_return: float | None  # mean return of the random policy; None if no episode ended in time
    random_episodes: int
    random_std: float | None = None  # how far its returns differ; None for fewer than two


@dataclass(frozen=True)
class EpisodesEnded(Event):
    """The episodes that ended within the unrolls of one update; their order is the same on every runtime."""

    returns: tuple[float, ...]  # raw, before scale and clip
    lengths: tuple[int, ...]  # agent decisions
    truncated: tuple[bool, ...]


@dataclass(frozen=True)
class Updated(Event):
    """The learner made one update."""

    version: int  # of the newest published weights
    metrics: Mapping[str, float]  # e.g. loss/policy, entropy, kl, time/env (share of wall time), steps_per_second


@dataclass(frozen=True)
class ComponentFailed(Event):
    """A component or its process died."""

    component: str
    message: str
    traceback: str


@dataclass(frozen=True)
class Checkpointing(Event):
    """A checkpoint is about to be made: observers must write what they have buffered."""


@dataclass(frozen=True)
class Checkpointed(Event):
    """A checkpoint is on the disk."""

    path: str
    seconds: float  # that it took


@dataclass(frozen=True)
class WorkerReplaced(Event):
    """A worker process died, hung or was killed; another one continues after its last unroll."""

    place: str
    reason: str
    traceback: str  # of the component that failed, or the stacks of one that hung; "" if there is none
    seconds: float  # from noticing until the new worker was ready
    replay_seconds: float  # part of it spent replaying the running episodes
    attempt: int  # consecutive replacements of this worker without an unroll in between

    @property
    def record(self) -> dict[str, Any]:
        """For the summary."""
        return {
            "place": self.place,
            "reason": self.reason,
            "update": self.progress.updates,
            "seconds": round(self.seconds, 3),
            "replay_seconds": round(self.replay_seconds, 3),
        }


@dataclass(frozen=True)
class Said(Event):
    """A line that a component wants kept in its log."""

    component: str
    text: str
    level: str = "info"
    traceback: str = ""  # for the log
    topic: str = ""  # a fixed word for programs; the text is for people


@dataclass(frozen=True)
class Stopped(Event):
    """The run is over; nothing follows."""

    status: str  # "done" | "interrupted" | "failed" | "detected"
    reason: str
    summary: Mapping[str, Any] = field(default_factory=dict)
