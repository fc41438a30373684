"""Doom scenarios through ViZDoom: `doom/basic`, `doom/health_gathering_supreme` and all others in its package."""

from __future__ import annotations

from collections.abc import Callable

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.player import Player
from rollmill_envs.doom.scenarios import names

__all__ = ["PATHS", "SCRIPTS", "make_group", "names"]

PATHS = ("game",)
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of games, each with an engine process of its own."""
    from rollmill_envs.doom.doom_group import DoomGroup

    return DoomGroup(config, size, pictures)
