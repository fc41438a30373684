"""The tracer: an environment whose every number says where it belongs."""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollmill.types import Array

MAX_STEPS = 64  # the reward holds the step in its lowest 6 bits
MAX_ACTION = 2**16  # so that action · 64 + step is exact in float32
_SNAPSHOT = struct.Struct("<4q")


class Trace(NamedTuple):
    """What an observation of the tracer says."""

    seed: int  # of the running episode: which environment and which episode
    episode: int  # resets of this instance before the running episode
    step: int  # decisions made in the episode so far
    action: int  # the action that led here; 0 at the start


class Tracer(gym.Env[Array, Array]):
    """Observation [seed mod 2¹⁶, seed div 2¹⁶, episode, step, last action]; reward = 64 · action + step.

    All are whole numbers below 2²⁴, hence exact in float32, as long as the actions are whole numbers within ± 2¹⁶: a
    tracer policy that acts with its version finds it echoed in the next observation. The step of a reward counts from
    1: it is the step of the observation that comes with it. `decode`, `decode_reward` and `plan` read the numbers.
    """

    def __init__(self, max_length: int = 12) -> None:
        if not 1 <= max_length < MAX_STEPS:
            raise ValueError(f"max_length={max_length} must be in 1..{MAX_STEPS - 1}")
        high = np.array([2**16, 2**16, 2**24, MAX_STEPS, MAX_ACTION], np.float32)
        low = np.array([0, 0, 0, 0, -MAX_ACTION], np.float32)
        self.observation_space = gym.spaces.Box(low, high, dtype=np.float32)
        self.action_space = gym.spaces.Box(-MAX_ACTION, MAX_ACTION, (1,), np.float32)
        self._max_length = max_length
        self._trace = Trace(0, -1, 0, 0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start the episode of the seed."""
        super().reset(seed=seed)
        if seed is None:
            raise ValueError("the tracer encodes the seed of its episode: reset it with one")
        self._trace = Trace(seed, self._trace.episode + 1, 0, 0)
        self._length, self._truncates = plan(seed, self._max_length)
        return encode(self._trace), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        """Echo the action; end as planned."""
        trace = self._trace = self._trace._replace(step=self._trace.step + 1, action=int(action[0]))
        over = trace.step == self._length
        reward = float(trace.action * MAX_STEPS + trace.step)
        return encode(trace), reward, over and not self._truncates, over and self._truncates, {}

    def snapshot(self) -> bytes:
        """The running episode; restoring needs a snapshot, because the seed doesn't determine the episode's number."""
        return _SNAPSHOT.pack(*self._trace)

    def restore(self, data: bytes) -> None:
        """Continue from a snapshot."""
        self._trace = Trace(*_SNAPSHOT.unpack(data))
        self._length, self._truncates = plan(self._trace.seed, self._max_length)


def encode(trace: Trace) -> Array:
    """The observation that says so."""
    high, low = divmod(trace.seed, 2**16)
    return np.array([low, high, trace.episode, trace.step, trace.action], np.float32)


def decode(observation: Array) -> Trace:
    """What the observation says."""
    low, high, episode, step, action = (int(number) for number in observation)
    return Trace(high * 2**16 + low, episode, step, action)


def decode_reward(reward: float) -> tuple[int, int]:
    """(action, step) of a reward."""
    return divmod(int(reward), MAX_STEPS)


def plan(seed: int, max_length: int = 12) -> tuple[int, bool]:
    """(length, whether it ends by truncation) of the episode with this seed."""
    generator = np.random.Generator(np.random.PCG64(seed))
    return int(generator.integers(1, max_length + 1)), bool(generator.integers(2))
