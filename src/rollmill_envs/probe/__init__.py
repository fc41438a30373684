"""Small tasks that each prove one property of an agent: `probe/memory-cue` and others."""

from __future__ import annotations

from collections.abc import Callable

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.make import from_class
from rollmill.envs.player import Player
from rollmill_envs.probe.probes import PROBES

PATHS: tuple[str, ...] = ()
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}


def names() -> list[str]:
    """Every probe."""
    return list(PROBES)


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """Single environments in a batch, as for any gymnasium class."""
    return GymGroup(config.id, from_class(config, PROBES[config.id], pictures), size)
