"""Playing episodes: seeds every reset, keeps the score, and says when an unroll is over."""

from __future__ import annotations

import numpy as np

from rollmill import nested
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.nested import Nested
from rollmill.seeding import episode_seed
from rollmill.types import Array, AssemblerSpec, Outcome


class Episodes:
    """One env group in play; every episode is seeded from (root seed, group, environment, episode).

    With the assembler `unroll` episodes follow one another across unroll borders. With `episodes` every environment
    plays exactly one episode per unroll and then sits out: taking the first N finished ones instead would favour
    short episodes.
    """

    def __init__(
        self, group: EnvGroup, config: EnvConfig, assembler: AssemblerSpec, root_seed: int, number: int
    ) -> None:
        size = group.size
        self.group = group
        self._scale, self._clip = config.reward_scale, config.reward_clip
        self._whole_episodes = assembler.kind == "episodes"
        self._steps = assembler.steps
        self._root_seed, self._number = root_seed, number
        self._episode = np.zeros(size, np.int64)  # how many episodes each environment has begun
        self._seeds = np.zeros(size, np.int64)
        self._return = np.zeros(size, np.float64)
        self._length = np.zeros(size, np.int64)
        self._everyone = np.ones(size, np.bool_)
        self._active = self._everyone
        self._final_obs: Nested = nested.map_leaves(np.copy, group.obs)
        self._t = 0

    def begin(self) -> tuple[Nested, Array]:
        """Start every environment; the first observation and which rows begin an episode (all)."""
        self._reset(self._everyone)
        return self.group.obs, self._everyone

    def step(self, action: Array) -> Outcome:
        """Step the environments that are in play and reset those whose episode ended."""
        active = self._active
        reward, terminated, truncated = self.group.step(action, active)
        self._t += 1
        self._return += reward
        self._length += active
        over = self._t == self._steps
        if self._whole_episodes:
            playing = active & ~(terminated | truncated)
            over = over or not playing.any()
            if over:
                truncated = truncated | playing
        ended = terminated | truncated
        episode_return, episode_length = self._return.copy(), self._length.copy()
        if ended.any():
            nested.copy_into(self._final_obs, self.group.obs)
            self._reset(ended)
        begins = ended
        if over:
            self._t = 0
            if self._whole_episodes:
                self._active = begins = self._everyone
        elif self._whole_episodes:
            self._active = active & ~ended
        return Outcome(
            self._shaped(reward),
            terminated,
            truncated,
            self._final_obs,
            episode_return,
            episode_length,
            active,
            over,
            self.group.obs,
            begins,
        )

    def close(self) -> None:
        """Close the environments."""
        self.group.close()

    def _shaped(self, reward: Array) -> Array:
        if self._scale != 1.0:
            reward = reward * self._scale
        if self._clip is not None:
            reward = np.clip(reward, -self._clip, self._clip)
        return reward.astype(np.float32)

    def _reset(self, mask: Array) -> None:
        for k in np.flatnonzero(mask):
            self._seeds[k] = episode_seed(self._root_seed, self._number, int(k), int(self._episode[k]))
        self.group.reset(mask, self._seeds)
        self._episode[mask] += 1
        self._return[mask] = 0.0
        self._length[mask] = 0
