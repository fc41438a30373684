"""From events to the hooks that they belong to."""

from __future__ import annotations

import inspect
import traceback
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

from rollmill import nested
from rollmill.config.user_code import load_object
from rollmill.errors import Refused
from rollmill.events import (
    Checkpointed,
    ComponentFailed,
    EpisodesEnded,
    Event,
    Opened,
    RunStarted,
    Stopped,
    Updated,
    WorkerReplaced,
)
from rollmill.learners.tap import Trajectory
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import EndedEpisode, Hooks, Unroll, WorkerFailure
from rollmill.types import Array


class HookFailed(Exception):
    """A hook raised; the message says which, what and where."""


class HookRefused(HookFailed, OSError):
    """A hook met the system's refusal, a full disk for instance, which may pass."""


@dataclass(frozen=True)
class UnrollLent(Event):
    """An unroll in its slot, lent to an observer until it calls `trajectory.release`."""

    trajectory: Trajectory

    @property
    def unroll(self) -> Unroll:
        """The unroll as an observer may see it: read-only, so that it can't change what others read."""
        t = self.trajectory
        arrays = {name: nested.map_leaves(_read_only, tree) for name, tree in t.arrays.items()}
        return Unroll(t.actor, t.sequence, t.version, t.update, arrays)


def _read_only(array: Array) -> Array:
    view = array.view()
    view.flags.writeable = False
    return view


HOOKS = tuple(name for name in vars(Hooks) if name.startswith("on_"))
_HOOKS: dict[type[Event], str] = {
    Opened: "on_init",
    RunStarted: "on_start",
    UnrollLent: "on_trajectory",
    Updated: "on_training_step",
    EpisodesEnded: "on_episode",
    Checkpointed: "on_checkpoint",
    ComponentFailed: "on_worker_failure",
    WorkerReplaced: "on_worker_failure",
    Stopped: "on_stop",
}


def unknown_hooks(hooks: Hooks) -> list[str]:
    """Attributes that look like hooks and would never be called."""
    return [name for name in dir(hooks) if name.startswith("on_") and name not in HOOKS]


def kinds_wanted(hooks: Hooks) -> frozenset[type[Event]]:
    """The events whose hook is overridden: the others need not be handed over at all."""

    def is_overridden(name: str) -> bool:
        return name in vars(hooks) or getattr(type(hooks), name) is not getattr(Hooks, name)

    return frozenset(kind for kind, name in _HOOKS.items() if is_overridden(name))


def call(hooks: Hooks, event: Event) -> None:
    """Call the hook for an event; whatever it raises becomes a `HookFailed` of one line."""
    try:
        _call(hooks, event)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # nothing else would report it in a thread of ours
        kind = HookRefused if isinstance(error, OSError) else HookFailed
        raise kind(_described(hooks, event, error)) from error


def _call(hooks: Hooks, event: Event) -> None:
    progress = event.progress
    match event:
        case UnrollLent():
            hooks.on_trajectory(progress, event.unroll)
        case Updated():
            hooks.on_training_step(progress, event.version, dict(event.metrics))  # theirs: others read ours
        case EpisodesEnded():
            for ended in zip(event.returns, event.lengths, event.truncated, strict=True):
                hooks.on_episode(progress, EndedEpisode(*ended))
        case Checkpointed():
            hooks.on_checkpoint(progress, Path(event.path))
        case WorkerReplaced():
            hooks.on_worker_failure(progress, WorkerFailure(event.place, event.reason, event.traceback, True))
        case ComponentFailed():
            failure = WorkerFailure(event.component, event.message, event.traceback, False)
            hooks.on_worker_failure(progress, failure)
        case Opened():
            hooks.on_init(progress, Path(event.run))
        case RunStarted():
            hooks.on_start(progress, event.title, event.plan)
        case Stopped():
            hooks.on_stop(progress, event.status, deepcopy(event.summary))


def _described(hooks: Hooks, event: Event, error: BaseException) -> str:
    """Which hook, what it raised, and the line of the user's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    hook, where = _HOOKS[type(event)], f"{Path(own[0].filename).name}, line {own[0].lineno}"
    return f"{type(hooks).__name__}.{hook}: {type(error).__name__}: {' '.join(str(error).split())} ({where})"


def load_hooks(config: ObserverConfig, key: str) -> Hooks:
    """An instance of the class that the config names; refusals name the config's `key`."""
    found = load_object(config.path, f"{key}.path")
    where = f"{key}.path={config.path}"
    if not (inspect.isclass(found) and issubclass(found, Hooks)):
        raise Refused(f"{where} is not a class derived from rollmill.Hooks; derive it, or name another")
    try:
        inspect.signature(found).bind(**config.args)
    except TypeError as error:
        takes = ", ".join(inspect.signature(found).parameters) or "none"
        raise Refused(f"{key}.args={config.args}: {error}; arguments of {found.__name__}: {takes}") from None
    try:
        return found(**config.args)
    except (Exception, SystemExit) as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise Refused(f"{key}.args={config.args}: {found.__name__} can't be made: {said}; fix them") from error
