"""Unity builds through ML-Agents' protocol, as the family `unity/`: `env.id: unity/build`, `env.args: {build: …}`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym

from rollmill.envs.config import EnvConfig
from rollmill.envs.families import read_args
from rollmill.envs.group import EnvGroup
from rollmill.envs.gym_group import GymGroup
from rollmill.envs.player import Player
from rollmill.errors import Refused
from rollmill_envs.unity.build import find_build
from rollmill_envs.unity.config import UnityConfig
from rollmill_envs.unity.protocol import is_installed
from rollmill_envs.unity.rendering import Looks
from rollmill_envs.unity.unity_env import UnityEnv

ENV_ID = "unity/build"
PATHS = ("build",)
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}  # no scripts: the scene is unknown


def names() -> list[str]:
    """The one id, where the extra is installed."""
    return [ENV_ID] if is_installed() else []


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup:
    """`size` builds in processes of their own; the first is started at once, to see what the agent looks like."""
    if not is_installed():
        raise Refused(f"env.id={config.id} needs the extra 'unity': pip install \"rollmill[unity]\"")
    settings = read_args(config, UnityConfig)
    path = find_build(settings)
    looks: list[Looks] = []  # of the first, for all that follow

    def construct() -> gym.Env[Any, Any]:
        env = UnityEnv(path, settings, looks[0] if looks else None)
        looks[:] = [env.looks]
        return env if config.time_limit is None else gym.wrappers.TimeLimit(env, config.time_limit)

    return GymGroup(config.id, construct, size)
