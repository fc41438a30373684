"""Families of environments that are at home here: which ids are theirs, and the module that makes them.

A family is a module that is imported only when one of its ids is used, because what it stands on (a compiler, a game
engine) is large or an extra. It offers what `Family` says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from rollmill.config import Config, Origin, validate
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.names import suggest
from rollmill.envs.players import MakePlayer, Player
from rollmill.errors import Refused

MODULES = {
    "oscillator/": "rollmill.envs.oscillator",
    "dodgeball/": "rollmill.envs.dodgeball",
    "doom/": "rollmill.envs.doom",
    "unity/": "rollmill.envs.unity",
}

PATHS = {
    "oscillator/": ("frozen",),
    "doom/": ("game",),
    "unity/": ("build",),
}  # arguments that name files or folders of the user's

Examine = Callable[[EnvConfig, int, MakePlayer, Path], dict[str, Any]]

C = TypeVar("C", bound=Config)


class Family(Protocol):
    """What the module of a family offers; it may also have an `examine` (see `examine_of`)."""

    SCRIPTS: Mapping[str, Callable[[EnvConfig, int], Player]]  # scripted baselines: config and group size → player

    def names(self) -> list[str]:
        """Every id of the family; none where an extra that it needs is not installed."""
        ...

    def make_group(self, config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
        """A group of the environment that `config.id` names; with `pictures` its `render` will be called."""
        ...


def find_family(env_id: str) -> Family | None:
    """The family that an id belongs to by its prefix."""
    module = next((module for prefix, module in MODULES.items() if env_id.startswith(prefix)), None)
    return None if module is None else cast(Family, import_module(module))


def make_native(family: Family, config: EnvConfig, size: int, pictures: bool) -> EnvGroup:
    """A group of a family; an id that the family doesn't know is refused with the nearest one."""
    known = family.names()
    if known and config.id not in known:  # where nothing is known the family itself says what is missing
        raise Refused(f"env.id={config.id}: no such environment; {suggest(config.id, known)}")
    return family.make_group(config, size, pictures)


def native_names() -> list[str]:
    """The ids of all families."""
    return [name for module in MODULES.values() for name in cast(Family, import_module(module)).names()]


def scripts_of(config: EnvConfig) -> Mapping[str, Callable[[EnvConfig, int], Player]]:
    """The scripted baselines of an environment, by name."""
    family = find_family(config.id)
    return {} if family is None else family.SCRIPTS


def examine_of(config: EnvConfig) -> Examine | None:
    """The environment's own evaluation protocol, where its family has one.

    It is called with the config, a seed, a maker of players and a folder for its files, and returns what goes into
    `evaluation.json`.
    """
    return getattr(find_family(config.id), "examine", None)


def path_args(env_id: str) -> tuple[str, ...]:
    """The arguments of an environment that are paths."""
    return next((keys for prefix, keys in PATHS.items() if env_id.startswith(prefix)), ())


def read_args(config: EnvConfig, schema: type[C]) -> C:
    """The arguments of the environment as the family's own record; what is wrong with them is refused in one line."""
    return validate(schema, config.args, {(): Origin(f"env.id={config.id}, env.args")})
