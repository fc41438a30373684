"""Users' observers: from a config or an object to what the dispatcher delivers to."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Sequence
from itertools import chain, count
from typing import Any, get_args

from rollmill.errors import Refused, nearest
from rollmill.observe.calls import HOOKS, UserObserver, kinds_wanted, load_hooks
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import Hooks
from rollmill.observe.observer import Overflow
from rollmill.observe.process_observer import ProcessObserver

STANDARD = ("jsonl", "csv", "episodes", "logs", "summary", "tensorboard", "curve", "watch", "evaluate", "console")


def make_user_observers(configs: Sequence[ObserverConfig], hooks: Sequence[Hooks] = ()) -> list[UserObserver]:
    """The observers of a config, then those passed from Python; what can't be one is refused."""
    users: list[UserObserver] = []
    for number, config in enumerate(configs):
        key = f"observe.observers[{number}]"
        made = load_hooks(config, key)
        users.append(_user_observer(made, config, key, {user.name for user in users}))
    for number, passed in enumerate(hooks):
        if not isinstance(passed, Hooks):
            kind = "the class itself; make one of it" if inspect.isclass(passed) else f"a {type(passed).__name__}"
            raise Refused(f"observers[{number}]={passed!r} is not a rollmill.Hooks but {kind}")
        users.append(_user_observer(passed, None, f"observers[{number}]", {user.name for user in users}))
    return users


def _user_observer(hooks: Hooks, config: ObserverConfig | None, key: str, taken: Collection[str]) -> UserObserver:
    own = type(hooks).__name__
    overflow: Any = (config and config.overflow) or hooks.overflow
    capacity = (config and config.capacity) or hooks.capacity
    if overflow not in (known := get_args(Overflow)):
        raise Refused(f"{key}: {own}.overflow={overflow!r} is unknown; known: {', '.join(known)}")
    if not isinstance(capacity, int) or capacity < 1:
        raise Refused(f"{key}: {own}.capacity={capacity!r} must be a whole number ≥ 1")
    if not isinstance(hooks.trajectories_after, int | float) or not 0 <= hooks.trajectories_after <= 1:
        raise Refused(f"{key}: {own}.trajectories_after={hooks.trajectories_after!r} must be a number from 0 to 1")
    for unknown in (name for name in dir(hooks) if name.startswith("on_") and name not in HOOKS):
        raise Refused(f"{key}: {own}.{unknown} is not a hook, so it would never be called; {nearest(unknown, HOOKS)}")
    if not kinds_wanted(hooks):
        raise Refused(f"{key}: {own} has no hook, so it would see nothing; give it one of {', '.join(HOOKS)}")
    wanted = (config and config.name) or own
    numbered = chain([wanted], (f"{wanted}-{number}" for number in count(2)))
    name = next(name for name in numbered if name not in taken and name not in STANDARD)
    if config is not None and config.where == "process":
        return ProcessObserver(config, hooks, name, overflow, capacity)
    return UserObserver(hooks, name, overflow, capacity)
