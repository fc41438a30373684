"""Users' observers: from a config or an object to what the dispatcher delivers to."""

from __future__ import annotations

import inspect
import math
from collections.abc import Collection, Sequence
from typing import Any, Protocol

from rollmill.errors import Refused, nearest
from rollmill.events import Event
from rollmill.observe.calls import (
    HOOKS,
    UnrollSeen,
    call,
    has_hooks,
    kinds_wanted,
    load_hooks,
    unknown_hooks,
    wants_trajectories,
)
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import Hooks
from rollmill.observe.loans import UnrollLent
from rollmill.observe.observer import Observer, Overflow
from rollmill.observe.process_observer import ProcessObserver
from rollmill.observe.terms import Terms

OVERFLOWS = ("block", "drop", "thin")
STANDARD = ("jsonl", "csv", "episodes", "logs", "summary", "tensorboard", "curve", "watch", "evaluate", "console")
HOLD_SHARE = 0.02  # of the wall time that a "block" observer may hold up the run, by default


class UserObserver(Observer, Protocol):
    """A user's observer in a run: it says which events it wants, and on which terms."""

    terms: Terms
    kinds: frozenset[type[Event]]
    trajectories_after: float | None  # fraction of the training from which on it gets unrolls; None: never

    def abandon(self) -> None:
        """It is still busy though the run is over; from another thread than `receive`."""


class ThreadObserver:
    """Hooks that are called in this process."""

    def __init__(self, hooks: Hooks, name: str, overflow: Overflow, terms: Terms) -> None:
        self.name, self.overflow, self.terms = name, overflow, terms
        self.kinds = kinds_wanted(hooks)
        self.trajectories_after = hooks.trajectories_after if wants_trajectories(hooks) else None
        self._hooks = hooks

    def receive(self, event: Event) -> None:
        """Call the hook that the event is for."""
        call(self._hooks, UnrollSeen(event.progress, event.unroll) if isinstance(event, UnrollLent) else event)

    def close(self) -> None:
        """Nothing: `on_stop` was the last."""

    def abandon(self) -> None:
        """Nothing: its thread ends with the process."""


def make_user_observers(configs: Sequence[ObserverConfig], hooks: Sequence[Hooks] = ()) -> list[UserObserver]:
    """The observers of a config, then those passed from Python; whatever can't be one is refused."""
    users: list[UserObserver] = []
    for number, config in enumerate(configs):
        key = f"observe.observers[{number}]"
        made = load_hooks(config, key)
        users.append(_user_observer(made, config, key, {user.name for user in users}))
    for number, passed in enumerate(hooks):
        if not isinstance(passed, Hooks):
            kind = "the class itself; make one of it" if inspect.isclass(passed) else f"a {type(passed).__name__}"
            raise Refused(f"observers[{number}]={passed!r} is no rollmill.Hooks but {kind}")
        users.append(_user_observer(passed, None, f"observers[{number}]", {user.name for user in users}))
    return users


def _user_observer(hooks: Hooks, config: ObserverConfig | None, key: str, taken: Collection[str]) -> UserObserver:
    own = type(hooks).__name__
    overflow: Any = (config and config.overflow) or hooks.overflow
    capacity = (config and config.capacity) or hooks.capacity
    if overflow not in OVERFLOWS:
        raise Refused(f"{key}: {own}.overflow={overflow!r} is unknown; known: {', '.join(OVERFLOWS)}")
    if not isinstance(capacity, int) or capacity < 1:
        raise Refused(f"{key}: {own}.capacity={capacity!r} must be a whole number ≥ 1")
    if not isinstance(hooks.trajectories_after, int | float) or not 0 <= hooks.trajectories_after <= 1:
        raise Refused(f"{key}: {own}.trajectories_after={hooks.trajectories_after!r} must be a number from 0 to 1")
    for unknown in unknown_hooks(hooks):
        raise Refused(f"{key}: {own}.{unknown} is no hook, so it would never be called; {nearest(unknown, HOOKS)}")
    if not has_hooks(hooks):
        raise Refused(f"{key}: {own} has no hook, so it would see nothing; give it one of {', '.join(HOOKS)}")
    share = HOLD_SHARE if config is None else config.hold_share
    terms = Terms(capacity, share=share if share < 1 else math.inf)
    name = _unused((config and config.name) or own, taken)
    if config is not None and config.where == "process":
        return ProcessObserver(hooks, config, name, overflow, terms)
    return ThreadObserver(hooks, name, overflow, terms)


def _unused(name: str, taken: Collection[str]) -> str:
    number, unused = 2, name
    while unused in taken or unused in STANDARD:
        unused, number = f"{name}-{number}", number + 1
    return unused
