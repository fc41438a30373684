"""K drones stepped by compiled functions, all rows in one call."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from rollmill import spaces
from rollmill.envs.group import StepResult, Trouble, needs_reset
from rollmill.envs.snapshot_bytes import pack, packed_size, unpack
from rollmill.types import Array, FrameStack
from rollmill_envs.dodgeball.arena import (
    ATTITUDE,
    HALF_X,
    HALF_Y,
    HALF_Z,
    SPAWN,
    SPAWN_SPEED,
    SPAWN_YAW,
    TERMS,
    VELOCITY,
    constants_of,
    empty_scene,
)
from rollmill_envs.dodgeball.config import RATE, TIME_LIMIT, DodgeballConfig
from rollmill_envs.dodgeball.senses import HEIGHT, VECTOR, WIDTH, feel_rows, ray_directions, see_rows
from rollmill_envs.dodgeball.step import step_rows

_KIND = "Dodgeball"
_LAUNCHER_MARGIN = 1.5  # metres from the launchers to the edges of the front wall
_CLEARING = 1.5  # metres around waypoint and spawn that trees leave free


class DodgeballGroup:
    """K drones, each in a box of its own; the contract is `EnvGroup`."""

    frame_skip = 1
    stacks: Mapping[str, FrameStack] = {}
    frame_rate = float(RATE)

    def __init__(self, settings: DodgeballConfig, size: int, time_limit: int | None = None) -> None:
        self.settings = settings
        self.size = size
        self.broken = np.zeros(size, bool)
        self.troubles: deque[Trouble] = deque()
        self.scene = empty_scene(settings, size)
        self.constants = constants_of(settings)
        self.time_limit = TIME_LIMIT if time_limit is None else time_limit

        vector = gym.spaces.Box(-np.inf, np.inf, (VECTOR,), np.float32)
        image = gym.spaces.Box(0, 255, (1, HEIGHT, WIDTH), np.uint8)
        self.observation_space: gym.Space[Any] = (
            gym.spaces.Dict({"rays": image, "vector": vector}) if settings.rays else vector
        )
        self.action_space: gym.Space[Any] = (
            gym.spaces.Discrete(81) if settings.flatten else gym.spaces.MultiDiscrete([3, 3, 3, 3])
        )
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self._rays = np.zeros((size, 1, HEIGHT, WIDTH), np.uint8)
        self._vector = np.zeros((size, VECTOR), np.float32)
        self.obs = {"rays": self._rays, "vector": self._vector} if settings.rays else self._vector

        self.snapshot_size = packed_size(_KIND, *(array[0].nbytes for array in self.scene) if size else ())
        self._directions = ray_directions()
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)
        self._truncated = np.zeros(size, bool)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Put new drones around the waypoint, upright and with a push in some direction."""
        for k in np.flatnonzero(mask).tolist():
            self._spawn(k, Generator(PCG64(SeedSequence(int(seeds[k])))))
        self._look(mask)

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Advance the active rows by 1/50 s."""
        if (active & self.scene.ended).any():
            raise needs_reset(int(np.flatnonzero(active & self.scene.ended)[0]))
        commands = split_actions(action) if self.settings.flatten else action
        step_rows(
            self.scene,
            self.constants,
            commands,
            active,
            self.time_limit,
            self._reward,
            self._terminated,
            self._truncated,
        )
        self._look(active)
        return StepResult(self._reward, self._terminated, self._truncated)

    def render(self, k: int) -> Array:
        """A picture of row k from behind the drone, whatever the drone itself sees."""
        from rollmill_envs.dodgeball.camera import picture  # compiled only when pictures are drawn

        return picture(self.scene, self.constants, k)

    def info(self, k: int) -> dict[str, Any]:
        """The terms of the last reward, where the drone is, and what ended the episode."""
        terms = dict(zip(TERMS, self.scene.terms[k].tolist(), strict=True))
        position = self.scene.drone[k, :3]
        return {
            "reward": terms,
            "distance": float(np.linalg.norm(position)),
            "position": position.tolist(),
            "cause": self.cause(k),
        }

    def cause(self, k: int) -> str:
        """What ended row k's episode: flip, hit, exit or time; nothing while it runs."""
        if not self.scene.ended[k]:
            return ""
        return TERMS[cause] if (cause := int(self.scene.cause[k])) else "time"

    def snapshot(self, k: int) -> bytes:
        """Row k of every array of the scene."""
        return pack(_KIND, *(array[k].tobytes() for array in self.scene))

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot of the same settings."""
        parts = unpack(_KIND, data, len(self.scene))
        for array, part in zip(self.scene, parts, strict=True):
            if len(part) != array[k].nbytes:
                raise ValueError(f"a snapshot of {_KIND} with {len(part)} bytes where there are {array[k].nbytes}")
        for array, part in zip(self.scene, parts, strict=True):
            array[k] = np.frombuffer(part, array.dtype).reshape(array[k].shape)
        self._look(np.arange(self.size) == k)

    def close(self) -> None:
        """Nothing to free."""

    def _look(self, mask: NDArray[np.bool_]) -> None:
        feel_rows(self.scene, mask, self._vector)
        if self.settings.rays:
            see_rows(self.scene, self.constants, mask, self._directions, self._rays)

    def _spawn(self, k: int, generator: Generator) -> None:
        """Draw the start of an episode; the order of the draws is part of what a seed means."""
        scene = self.scene
        for array in scene:
            array[k] = 0
        scene.drone[k, :3] = generator.uniform(-1, 1, 3) * SPAWN
        scene.drone[k, VELOCITY : VELOCITY + 3] = generator.uniform(-SPAWN_SPEED, SPAWN_SPEED, 3)
        yaw = generator.uniform(-SPAWN_YAW, SPAWN_YAW)
        scene.drone[k, ATTITUDE], scene.drone[k, ATTITUDE + 3] = math.cos(yaw / 2), math.sin(yaw / 2)
        launchers = scene.launchers.shape[1]
        scene.launchers[k, :, 0] = HALF_X
        scene.launchers[k, :, 1] = generator.uniform(-1, 1, launchers) * (HALF_Y - _LAUNCHER_MARGIN)
        scene.launchers[k, :, 2] = generator.uniform(-1, 1, launchers) * (HALF_Z - _LAUNCHER_MARGIN)
        interval = self.settings.interval_steps
        scene.waits[k] = generator.integers((interval + 1) // 2, interval + 1, launchers)
        scene.chance[k] = generator.integers(2**64, dtype=np.uint64)
        self._plant(k, generator)

    def _plant(self, k: int, generator: Generator) -> None:
        """Scatter the trees, away from the waypoint and from where the drone starts."""
        free = _CLEARING + self.settings.tree_radius
        start = self.scene.drone[k, :2]
        for tree in self.scene.trees[k]:
            while True:
                tree[:] = generator.uniform(-1, 1, 2) * (HALF_X, HALF_Y)
                if math.hypot(*tree) > free and math.hypot(*(tree - start)) > free:
                    break


def split_actions(flat: Array) -> Array:
    """Actions 0 … 80 as pitch, roll, thrust, yaw: the digits in base 3."""
    return np.stack((flat // 27, flat // 9 % 3, flat // 3 % 3, flat % 3), -1)
