"""From events to the hooks that they are for."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import EndedEpisode, Hooks, Unroll, WorkerFailure
from rollmill.observe.observer import Observer, Overflow


class HookFailed(Exception):
    """A hook raised; the message says which, what and where."""


class HookRefused(HookFailed, OSError):
    """A hook met the system's refusal, a full disk for instance, which may pass."""


@dataclass(frozen=True)
class UnrollLent(Event):
    """An unroll in its slot, lent to an observer until it calls `release`."""

    unroll: Unroll
    release: Callable[[], None]  # once, from any thread


# The hook that an event is for, and the arguments of each of its calls after the progress; what could be written into
# is a copy, because other observers read the same event.
_HOOKS: dict[type[Event], tuple[str, Callable[[Any], Iterable[tuple[Any, ...]]]]] = {
    Opened: ("on_init", lambda opened: [(Path(opened.run),)]),
    RunStarted: ("on_start", lambda started: [(started.title, started.plan)]),
    UnrollLent: ("on_trajectory", lambda lent: [(lent.unroll,)]),
    Updated: ("on_training_step", lambda updated: [(updated.version, dict(updated.metrics))]),
    EpisodesEnded: (
        "on_episode",
        lambda ended: zip(map(EndedEpisode, ended.returns, ended.lengths, ended.truncated)),
    ),
    Checkpointed: ("on_checkpoint", lambda written: [(Path(written.path),)]),
    ComponentFailed: (
        "on_worker_failure",
        lambda failed: [(WorkerFailure(failed.component, failed.message, failed.traceback, False),)],
    ),
    WorkerReplaced: (
        "on_worker_failure",
        lambda replaced: [(WorkerFailure(replaced.place, replaced.reason, replaced.traceback, True),)],
    ),
    Stopped: ("on_stop", lambda stopped: [(stopped.status, deepcopy(stopped.summary))]),
}
HOOKS = tuple(name for name in vars(Hooks) if name.startswith("on_"))


class UserObserver(Observer):
    """A user's hooks as an observer, called in this process; it says which events it wants."""

    def __init__(self, hooks: Hooks, name: str, overflow: Overflow, capacity: int) -> None:
        self.name, self.overflow, self.capacity = name, overflow, capacity  # events that may wait for it
        self.kinds = kinds_wanted(hooks)
        self.trajectories_after = hooks.trajectories_after  # fraction of the training, from which on it gets unrolls
        self._hooks = hooks

    def receive(self, event: Event) -> None:
        """Call the hook that the event is for."""
        call(self._hooks, event)

    def abandon(self) -> None:
        """End what is still busy though the run is over; from another thread than `receive`.

        Nothing here: the thread ends with the process.
        """


def kinds_wanted(hooks: Hooks) -> frozenset[type[Event]]:
    """The events whose hook is overridden: the others need not be handed over at all."""

    def is_overridden(name: str) -> bool:
        return name in vars(hooks) or getattr(type(hooks), name) is not getattr(Hooks, name)

    return frozenset(kind for kind, (name, _) in _HOOKS.items() if is_overridden(name))


def call(hooks: Hooks, event: Event) -> None:
    """Call the hook for an event; whatever it raises becomes a `HookFailed` of one line."""
    hook, calls = _HOOKS[type(event)]
    try:
        for arguments in calls(event):
            getattr(hooks, hook)(event.progress, *arguments)
    except (Exception, SystemExit, KeyboardInterrupt) as error:  # nothing else would report it in a thread of ours
        kind = HookRefused if isinstance(error, OSError) else HookFailed
        raise kind(f"{type(hooks).__name__}.{hook}: {_described(error)}") from error


def _described(error: BaseException) -> str:
    """The exception on one line, with file and line number of the outermost frame of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename != __file__] or list(frames)
    where = f"{Path(own[0].filename).name}, line {own[0].lineno}"
    return f"{type(error).__name__}: {' '.join(str(error).split())} ({where})"


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
