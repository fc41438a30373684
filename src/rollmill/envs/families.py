"""Families of environments: packages that add ids such as `doom/basic`, found by entry points.

A package registers a family in the entry point group `rollmill.envs`. The name of the entry point is the prefix of the
family's ids, or one of gymnasium's ids that the family plays faster (`CartPole-v1`); its value is a module that has
what `Family` says. The module is imported only when one of its ids is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

from rollmill.config.base import Config, Origin, validate
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.player import MakePlayer, Player
from rollmill.errors import Refused

ENTRY_POINTS = "rollmill.envs"
ATARI = "ALE"  # the family of Atari games, whose ids have several spellings (`names.is_atari`)

Examine = Callable[[EnvConfig, int, MakePlayer, Path], dict[str, Any]]

C = TypeVar("C", bound=Config)


class Family(Protocol):
    """What the module of a family must have; it may also have an `examine` (see `examine_of`)."""

    SCRIPTS: Mapping[str, Callable[[EnvConfig, int], Player]]  # scripted baselines: config and group size → player
    PATHS: tuple[str, ...]  # arguments that name files or folders of the user's

    def names(self) -> list[str]:
        """Every id of the family; none where an extra that it needs is not installed."""

    def make_group(self, config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup | None:
        """A group of the environment that `config.id` names; with `pictures` its `render` will be called.

        None: gymnasium's own environment is used.
        """


@cache
def _registered() -> dict[str, EntryPoint]:
    """The entry points of all installed packages by the prefix of their ids."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=ENTRY_POINTS):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            raise Refused(
                f"environments {point.name}/ are registered twice, by {other.value} and {point.value}; "
                "uninstall one of the packages"
            )
    return found


def _loaded(point: EntryPoint) -> Family:
    try:
        return cast(Family, point.load())
    except Exception as error:
        package = point.dist.name if point.dist else point.value
        reason = f"{type(error).__name__}: {error}"
        raise Refused(
            f"environments {point.name}/ of {package} can't be imported: {reason}; fix or uninstall it"
        ) from error


def find_family(config: EnvConfig) -> Family | None:
    """The family that an id belongs to."""
    point = _registered().get(ATARI if config.is_atari else config.id.partition("/")[0])
    return None if point is None else _loaded(point)


def native_names() -> list[str]:
    """The ids of all families."""
    return [name for point in _registered().values() for name in _loaded(point).names()]


def scripts_of(config: EnvConfig) -> Mapping[str, Callable[[EnvConfig, int], Player]]:
    """The scripted baselines of an environment, by name."""
    family = find_family(config)
    return {} if family is None else family.SCRIPTS


def examine_of(config: EnvConfig) -> Examine | None:
    """The environment's own evaluation protocol, where its family has one.

    It is called with the config, a seed, a maker of players and a folder for its files, and returns what goes into
    `evaluation.json`.
    """
    return getattr(find_family(config), "examine", None)


def path_args(config: EnvConfig) -> tuple[str, ...]:
    """The arguments of an environment that are paths."""
    family = find_family(config)
    return () if family is None else family.PATHS


def read_args(config: EnvConfig, schema: type[C]) -> C:
    """The arguments of the environment as the family's own record; mistakes are refused in one line."""
    return validate(schema, config.args, {(): Origin(f"env.id={config.id}, env.args")})
