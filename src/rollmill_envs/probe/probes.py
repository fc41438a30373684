"""Small tasks that each prove one property of an agent; all are deterministic given `reset(seed)`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.types import Array
from rollmill_envs.probe.tracer import Tracer

Info = dict[str, Any]


class _Rounds(gym.Env[Any, Any], ABC):
    """A task of independent rounds: show something, reward the answer, show the next thing."""

    def __init__(self, length: int, truncates: bool) -> None:
        self._length = length
        self._truncates = truncates
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Info]:
        """Draw the first round."""
        super().reset(seed=seed)
        self._step = 0
        return self._draw(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        """Reward the answer to this round and draw the next."""
        reward = self._reward(action)
        self._step += 1
        over = self._step >= self._length
        return self._draw(), reward, over and not self._truncates, over and self._truncates, {}

    @abstractmethod
    def _draw(self) -> Any:
        """Choose a round and return what the agent sees of it."""

    @abstractmethod
    def _reward(self, action: Any) -> float:
        """What the answer is worth."""


class Identity(_Rounds):
    """Say which of n lights is on: proves that observation, action and reward belong to the same step.

    Best mean return: `length`; at random: `length / n`.
    """

    def __init__(self, n: int = 4, length: int = 10, truncates: bool = False) -> None:
        super().__init__(length, truncates)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (n,), np.float32)
        self.action_space = gym.spaces.Discrete(n)
        self._lights = np.eye(n, dtype=np.float32)

    def _draw(self) -> Array:
        self._answer = int(self.np_random.integers(len(self._lights)))
        return np.asarray(self._lights[self._answer])

    def _reward(self, action: int) -> float:
        return float(action == self._answer)


class MultiIdentity(_Rounds):
    """Say which light is on in each of several rows: proves the multi-discrete head.

    Each right component earns its share of 1. Best mean return: `length`; at random with (3, 4): `length · 7/24`.
    """

    def __init__(
        self, choices: tuple[int, ...] | list[int] = (3, 4), length: int = 10, truncates: bool = False
    ) -> None:
        super().__init__(length, truncates)
        self.observation_space = gym.spaces.Box(0.0, 1.0, (sum(choices),), np.float32)
        self.action_space = gym.spaces.MultiDiscrete(list(choices))
        self._choices = np.array(choices)

    def _draw(self) -> Array:
        self._answer = self.np_random.integers(self._choices)
        return np.concatenate(
            [np.eye(n, dtype=np.float32)[a] for n, a in zip(self._choices, self._answer, strict=True)]
        )

    def _reward(self, action: Array) -> float:
        return float(np.mean(action == self._answer))


class NestedDict(_Rounds):
    """Say which half of an image is bright and which sign a number has: needs every part of a nested observation.

    The answer is 2 · (right half bright) + (number positive). Best mean return: `length`; half of the observation
    alone earns `length / 2`, chance `length / 4`.
    """

    def __init__(self, size: int = 8, length: int = 10, truncates: bool = False) -> None:
        super().__init__(length, truncates)
        body = gym.spaces.Dict({"vector": gym.spaces.Box(-1.0, 1.0, (2,), np.float32)})
        image = gym.spaces.Box(0, 255, (1, size, size), np.uint8)
        self.observation_space = gym.spaces.Dict({"image": image, "body": body})
        self.action_space = gym.spaces.Discrete(4)
        self._size = size

    def _draw(self) -> dict[str, Any]:
        right, positive = self.np_random.integers(2, size=2)
        half = self._size // 2
        image = np.zeros((1, self._size, self._size), np.uint8)
        image[..., half * right : half * (right + 1)] = 255
        self._answer = int(2 * right + positive)
        sign = np.float32(1 if positive else -1)
        return {"image": image, "body": {"vector": np.array([sign, self.np_random.uniform(-1, 1)], np.float32)}}

    def _reward(self, action: int) -> float:
        return float(action == self._answer)


class Continuous(_Rounds):
    """Repeat the numbers shown: proves the Gaussian head; reward −|a − obs|² per step, best 0.

    With other bounds (`low` and `high`, one number per component) −1 shown means the lower one and 1 the upper one,
    and the error counts in halves of the range: proves that actions reach bounds far from ±1.
    """

    def __init__(
        self,
        dims: int = 1,
        length: int = 10,
        truncates: bool = False,
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
    ) -> None:
        super().__init__(length, truncates)
        lowest, highest = np.array(low or [-1.0] * dims, np.float32), np.array(high or [1.0] * dims, np.float32)
        self.observation_space = gym.spaces.Box(-1.0, 1.0, lowest.shape, np.float32)
        self.action_space = gym.spaces.Box(lowest, highest, dtype=np.float32)
        self._middle, self._half = (lowest + highest) / 2, (highest - lowest) / 2

    def _draw(self) -> Array:
        self._answer = self.np_random.uniform(-1.0, 1.0, self.action_space.shape).astype(np.float32)
        return self._answer

    def _reward(self, action: Array) -> float:
        return -float(np.sum(np.square((action - self._middle) / self._half - self._answer, dtype=np.float64)))


class DelayedReward(gym.Env[Array, Any]):
    """The first action must match a cue, and only the last step pays: proves credit over time without memory.

    Observation [cue ±1 at step 0 and 0 after, step / length]; reward 1 on step `length` if the first action was
    (cue > 0). Best mean return 1, chance ½; an agent that doesn't carry reward back over `length` steps stays there.
    """

    def __init__(self, length: int = 5) -> None:
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, Info]:
        """Show the cue."""
        super().reset(seed=seed)
        self._step = 0
        self._answer = int(self.np_random.integers(2))
        self._was_right = False
        return np.array([2 * self._answer - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, Info]:
        """Remember whether the first action was right and pay for it at the end."""
        if self._step == 0:
            self._was_right = bool(action == self._answer)
        self._step += 1
        over = self._step == self._length
        observation = np.array([0, self._step / self._length], np.float32)
        return observation, float(over and self._was_right), over, False, {}


class MemoryCue(gym.Env[Array, Any]):
    """A T-maze: the cue is seen only at the start, the turn is taken after `length` steps of corridor.

    Observation [cue ±1 at step 0 and 0 after, 1 at the junction]; the action at the junction earns +1 if it is
    (cue > 0) and −1 otherwise, all others are ignored. Best mean return with memory 1; without it 0, whatever the
    agent does.
    """

    def __init__(self, length: int = 5) -> None:
        if length < 1:
            raise ValueError(f"length={length} must be at least 1: the junction may not show the cue")
        self.observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self._length = length

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, Info]:
        """Show the cue."""
        super().reset(seed=seed)
        self._position = 0
        self._answer = int(self.np_random.integers(2))
        return np.array([2 * self._answer - 1, 0], np.float32), {}

    def step(self, action: int) -> tuple[Array, float, bool, bool, Info]:
        """Walk on, or turn at the junction."""
        if self._position == self._length:
            return np.zeros(2, np.float32), 1.0 if action == self._answer else -1.0, True, False, {}
        self._position += 1
        return np.array([0, self._position == self._length], np.float32), 0.0, False, False, {}


PROBES: dict[str, type[gym.Env[Any, Any]]] = {
    "probe/tracer": Tracer,
    "probe/identity": Identity,
    "probe/multi-identity": MultiIdentity,
    "probe/dict": NestedDict,
    "probe/continuous": Continuous,
    "probe/delayed-reward": DelayedReward,
    "probe/memory-cue": MemoryCue,
}
