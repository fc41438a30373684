"""Doom scenarios through ViZDoom: `doom/basic`, `doom/health_gathering_supreme` and all others in its package."""

from __future__ import annotations

from collections.abc import Callable

from rollmill.envs.config import EnvConfig
from rollmill.envs.doom.scenarios import names
from rollmill.envs.group import EnvGroup
from rollmill.envs.players import Player

__all__ = ["SCRIPTS", "make_group", "names"]

SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of games, each with an engine process of its own."""
    from rollmill.envs.doom.doom_group import DoomGroup

    return DoomGroup(config, size, pictures)
