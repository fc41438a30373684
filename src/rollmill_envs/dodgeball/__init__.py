"""Drone dodgeball: hold a quadcopter at a waypoint while balls are thrown at it (docs/dodgeball.md)."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec

from rollmill.envs.config import EnvConfig
from rollmill.envs.families import read_args
from rollmill.envs.group import EnvGroup
from rollmill.envs.player import Player
from rollmill.errors import Refused
from rollmill_envs.dodgeball.config import TREES, DodgeballConfig

__all__ = ["PATHS", "SCRIPTS", "DodgeballConfig", "make_group", "names"]


def names() -> list[str]:
    """The open box and the one with trees; none without the compiler."""
    return list(TREES) if find_spec("numba") else []


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of drones; each can be drawn at any time, so `pictures` changes nothing."""
    if not find_spec("numba"):
        raise Refused(f"env.id={config.id} needs the extra 'native': pip install \"rollmill[native]\"")
    from rollmill_envs.dodgeball.dodgeball_group import DodgeballGroup

    settings = read_args(config, DodgeballConfig)
    return DodgeballGroup(settings.with_trees_of(config.id), size, config.time_limit)


def _hover(config: EnvConfig, size: int) -> Player:
    from rollmill_envs.dodgeball.scripts import Pilot

    return Pilot(size, dodges=False)


def _dodger(config: EnvConfig, size: int) -> Player:
    from rollmill_envs.dodgeball.scripts import Pilot

    return Pilot(size, dodges=True)


PATHS: tuple[str, ...] = ()
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {"hover": _hover, "dodger": _dodger}
