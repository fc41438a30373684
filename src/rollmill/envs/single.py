"""One environment of ours as an ordinary gymnasium environment, for other libraries."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.make import make_group
from rollmill.types import Array


def make_env(env_id: str, **args: Any) -> GroupEnv:
    """The environment of an id with its `env.args`, as gymnasium has it: `make_env("oscillator/bvp", neurons=100)`."""
    return GroupEnv(make_group(EnvConfig(id=env_id, args=args, group_size=1), pictures=True))


class GroupEnv(gym.Env[Any, Any]):
    """A group of one; unlike a group it draws its own seed when `reset` gets none."""

    render_mode = "rgb_array"

    def __init__(self, group: EnvGroup) -> None:
        if group.size != 1:
            raise ValueError(f"a group of {group.size} is not one environment")
        self._group = group
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": group.frame_rate}
        self.observation_space, self.action_space = group.observation_space, group.action_space
        self._everyone = np.ones(1, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the episode of the seed, or of one drawn from the last."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(2**31))
        self._group.reset(self._everyone, np.array([seed], np.int64))
        return self._seen(), self._group.info(0)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """One decision."""
        reward, terminated, truncated = self._group.step(self._stored(action), self._everyone)
        return self._seen(), float(reward[0]), bool(terminated[0]), bool(truncated[0]), self._group.info(0)

    def render(self) -> Any:
        """The picture of this moment."""
        return self._group.render(0)

    def close(self) -> None:
        """Close the environment."""
        self._group.close()

    def _seen(self) -> Any:
        return nested.map_leaves(lambda leaf: leaf[0].copy(), self._group.obs)

    def _stored(self, action: Any) -> Array:
        """The action as agents store it: a row of a batch, counted from zero."""
        start = getattr(self.action_space, "start", None)
        row = np.asarray(action)[None]
        return row if start is None else row - start
