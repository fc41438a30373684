"""Atari games over ale-py: `ALE/Pong-v5` and all others whose files ale-py brings."""

from __future__ import annotations

from collections.abc import Callable

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.names import known_roms
from rollmill.envs.player import Player

__all__ = ["PATHS", "SCRIPTS", "make_group", "names"]

PATHS: tuple[str, ...] = ()
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}


def game_name(rom: str) -> str:
    """The game's name as ids spell it: `ms_pacman` → `MsPacman`."""
    return rom.title().replace("_", "")


def names() -> list[str]:
    """Every game; none where ale-py is not installed."""
    return [f"ALE/{game_name(rom)}-v5" for rom in known_roms()]


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """A group of games; each can be drawn at any time, so `pictures` changes nothing."""
    from rollmill_envs.atari.atari_group import AtariGroup

    return AtariGroup(config, size)
