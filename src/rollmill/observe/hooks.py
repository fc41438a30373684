"""What a user's own observer is made of: a class with the methods of `Hooks` that it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rollmill.events import Progress
from rollmill.nested import Nested
from rollmill.observe.observer import Overflow


class EndedEpisode(NamedTuple):
    """How an episode went."""

    raw_return: float  # before scale and clip
    length: int  # agent decisions
    truncated: bool  # it was cut by a time limit


class WorkerFailure(NamedTuple):
    """A process or component that died, hung or was killed."""

    place: str
    reason: str
    traceback: str  # "" if there is none
    is_replaced: bool  # another one continues in its place


@dataclass(frozen=True)
class Unroll:
    """T steps of the K environments of one actor, made with the weights of one version.

    `arrays` are read-only and change after `on_trajectory`: copy what you keep. obs and reset have T+1 rows, the last
    is what follows; final_obs and final_state mean something only where an episode ended (terminated | truncated).
    """

    actor: int
    sequence: int  # of the unroll among those of its actor: 0, 1, 2, …
    version: int  # of the weights that decided
    update: int  # that learned from it
    arrays: Mapping[str, Nested]  # obs, action, reward, terminated, … as `fields.Fields` lists them


class Hooks:
    """Base of a user's observer: every method does nothing until it is overridden.

    They are called one at a time, in a thread or process of their own, with the progress of the run at the moment of
    the event. The constructor should only keep its arguments: it is also called to check a config.
    """

    overflow: Overflow = "drop"  # what happens to events when it is too slow; see `observer.Observer`
    capacity: int = 256  # events that may wait for it
    trajectories_after: float = 0.0  # fraction of the training from which on it gets trajectories

    def on_init(self, progress: Progress, run: Path) -> None:
        """The run folder is there, nothing else yet."""

    def on_start(self, progress: Progress, title: str, plan: tuple[str, ...]) -> None:
        """Everything is built and training begins; `plan` says in lines what runs where."""

    def on_training_step(self, progress: Progress, version: int, metrics: Mapping[str, float]) -> None:
        """The learner made an update; `version` is that of the newest published weights."""

    def on_trajectory(self, progress: Progress, unroll: Unroll) -> None:
        """An update has consumed this unroll; comes before the `on_training_step` of that update."""

    def on_episode(self, progress: Progress, episode: EndedEpisode) -> None:
        """An episode has ended, and the unroll with its end was consumed."""

    def on_checkpoint(self, progress: Progress, path: Path) -> None:
        """A checkpoint is on the disk."""

    def on_worker_failure(self, progress: Progress, failure: WorkerFailure) -> None:
        """A worker failed."""

    def on_stop(self, progress: Progress, status: str, summary: Mapping[str, Any]) -> None:
        """The run is over: "done", "interrupted", "failed" or "detected"; nothing follows."""
