"""Makes env groups from what `env.id` names."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from inspect import signature
from typing import Any

import gymnasium as gym

from rollmill.config.user_code import load_object
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import find_family, native_names
from rollmill.envs.group import EnvGroup
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.names import LISTED
from rollmill.envs.preprocessing import PreviousGroup, StackedGroup
from rollmill.errors import Refused, RollmillError, nearest

Constructor = Callable[[], gym.Env[Any, Any]]


def make_group(config: EnvConfig, size: int | None = None, verify: bool = False, pictures: bool = False) -> EnvGroup:
    """A group of `size` environments (`env.group_size` by default).

    `verify` checks what third-party code gives; with `pictures` the group can be asked to `render`.
    """
    size = config.group_size if size is None else size
    group = _make_bare(config, size, verify, pictures)
    if config.stacked_frames > 1 and not config.is_atari:  # which stacks its own frames
        group = StackedGroup(group, config.stacked_frames)
    return PreviousGroup(group) if config.previous else group


@contextmanager
def opened_group(config: EnvConfig, size: int, verify: bool = False, pictures: bool = False) -> Iterator[EnvGroup]:
    """A group that is closed at the end; failures to close are ignored, because its episodes are over."""
    group = make_group(config, size, verify, pictures)
    try:
        yield group
    finally:
        with suppress(RollmillError):
            group.close()


def known_environments() -> list[str]:
    """Every id that `env.id` takes by name: those of families, then gymnasium's registry."""
    registered = [env_id for env_id, spec in gym.registry.items() if _is_listed(spec.entry_point)]
    return [*native_names(), *sorted(registered)]


def _is_listed(entry_point: Any) -> bool:
    """Not gymnasium's stubs, functions that only raise, nor what ale-py registers as soon as it is imported."""
    return isinstance(entry_point, str | type) and not str(entry_point).startswith("ale_py.")


def _make_bare(config: EnvConfig, size: int, verify: bool, pictures: bool) -> EnvGroup:
    """The vectorised form where there is one, otherwise single environments in a batch."""
    if (family := find_family(config)) is not None:
        known = family.names()  # a family without names reports what is not installed
        if known and config.id not in known and not config.is_atari:
            raise _unknown(config, known)
        if (group := family.make_group(config, size, pictures)) is not None:
            return group
    if config.id.rpartition(":")[2].isidentifier() and ":" in config.id:  # "package:Name-v0" is for gymnasium
        construct = from_class(config, load_object(config.id, "env.id"), pictures)
    else:
        construct = _from_registry(config, pictures)
    return GymGroup(config.id, construct, size, verify)


def from_class(config: EnvConfig, make: Any, pictures: bool) -> Constructor:
    """A constructor around a class or a function that returns an environment; `render_mode` is set if it takes one."""
    if not callable(make) or (isinstance(make, type) and not issubclass(make, gym.Env)):
        what = "is neither a gymnasium.Env nor a function that returns one"
        raise Refused(f"env.id={config.id}: {config.id.rpartition(':')[2]} {what}; name another or derive it")

    takes_mode = pictures and "render_mode" not in config.args and "render_mode" in signature(make).parameters
    drawing = {"render_mode": "rgb_array"} if takes_mode else {}

    def construct() -> gym.Env[Any, Any]:
        try:
            env = make(**drawing, **config.args)
        except (Exception, SystemExit) as error:
            raise _construction_failed(config, error) from error
        if not isinstance(env, gym.Env):
            raise Refused(f"env.id={config.id}: returned a {type(env).__name__}; it must return a gymnasium.Env")
        return env if config.time_limit is None else gym.wrappers.TimeLimit(env, config.time_limit)

    return construct


def _from_registry(config: EnvConfig, pictures: bool) -> Constructor:
    """A constructor for a registered id; the time limit replaces the registered one."""
    drawing = {"render_mode": "rgb_array"} if pictures and "render_mode" not in config.args else {}

    def construct() -> gym.Env[Any, Any]:
        try:
            # our own check at start-up replaces gymnasium's checker, which costs time on every step
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # refused below, in one line, where it matters
                return gym.make(
                    config.id, max_episode_steps=config.time_limit, disable_env_checker=True, **drawing, **config.args
                )
        except gym.error.DeprecatedEnv as error:
            raise Refused(f"env.id={config.id}: {_one_line(error)}") from error
        except gym.error.UnregisteredEnv as error:
            raise _unknown(config, known_environments()) from error
        except (gym.error.DependencyNotInstalled, ImportError) as error:
            raise Refused(f"env.id={config.id} needs what is not installed: {_one_line(error)}") from error
        except (Exception, SystemExit) as error:
            raise _construction_failed(config, error) from error

    return construct


def _unknown(config: EnvConfig, known: list[str]) -> Refused:
    return Refused(f"env.id={config.id}: no such environment; {nearest(config.id, known, LISTED)}")


def _construction_failed(config: EnvConfig, error: BaseException) -> Refused:
    reason = f"{type(error).__name__}: {_one_line(error)}"
    return Refused(f"env.id={config.id}: can't be made with env.args={config.args}: {reason}; fix env.args")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
