"""CartPole as one set of array operations, bit-equal to gymnasium's: state in float64, observations in float32.

Every expression keeps gymnasium's order of operations, since another order rounds differently. The loop is on the hot
path of the headline benchmark, hence preallocated rows, positional `out` arguments and 0-d arrays for constants (a
Python float costs each ufunc a conversion).
"""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from rollmill import spaces
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup, NoPicture, StepResult, Trouble, needs_reset
from rollmill.envs.player import Player
from rollmill.envs.snapshot_bytes import pack, packed_size, unpack
from rollmill.types import Array, FrameStack

TIME_LIMITS = {"CartPole-v0": 200, "CartPole-v1": 500}  # agent decisions

_X_LIMIT = 2.4
_ANGLE_LIMIT = 12 * 2 * math.pi / 360
_KIND = "CartPole"
_SNAPSHOT = struct.Struct("<4dq?")  # state, steps, whether the episode is over
_START = 0.05  # the four state variables start uniformly within ± this


def _constant(value: float) -> NDArray[np.float64]:
    return np.array(value, np.float64)


class CartPoleGroup:
    """K cart-poles; the contract is `EnvGroup`, the physics is gymnasium's `CartPoleEnv` (Euler, reward 1)."""

    frame_skip = 1
    stacks: Mapping[str, FrameStack] = {}
    frame_rate = 50.0

    def __init__(self, size: int, time_limit: int = TIME_LIMITS["CartPole-v1"]) -> None:
        high = np.array([_X_LIMIT * 2, np.inf, _ANGLE_LIMIT * 2, np.inf], np.float32)
        self.size = size
        self.snapshot_size = packed_size(_KIND, _SNAPSHOT.size)
        self.broken = np.zeros(size, bool)
        self.troubles: deque[Trouble] = deque()
        self.observation_space: gym.Space[Any] = gym.spaces.Box(-high, high, dtype=np.float32)
        self.action_space: gym.Space[Any] = gym.spaces.Discrete(2)
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.obs = np.zeros((size, 4), np.float32)

        self._time_limit = time_limit
        self._state = np.zeros((4, size))  # rows: x, x', θ, θ'
        self._steps = np.zeros(size, np.int64)
        self._ended = np.ones(size, bool)  # no episode runs before the first reset
        self._has_ended = True  # any of _ended; a Python bool, because asking an array costs 2 µs
        self._oldest = 0  # an upper bound of _steps: below the limit no row needs to be checked

        self._change = np.zeros((4, size))  # rows: the derivatives of the state's rows
        # views made once: each costs as much as an operation
        self._state_by_env = self._state.T
        _, _, self._angle, self._spin = self._state
        self._positions = self._state[0::2]  # x and θ
        _, self._acceleration, _, self._spin_up = self._change
        self._position_changes = self._change[0::2]
        self._velocities = self._state[1::2]
        self._force, self._cos, self._sin, self._temp, self._scratch = np.zeros((5, size))
        self._distance = np.zeros((2, size))  # |x| and |θ|
        self._outside = np.zeros((2, size), bool)
        self._x_outside, self._angle_outside = self._outside
        self._limits = np.array([[_X_LIMIT], [_ANGLE_LIMIT]])
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)
        self._truncated = np.zeros(size, bool)

        mass_pole, mass_cart, length = 0.1, 1.0, 0.5  # length: half the pole's
        self._forces = np.array([-10.0, 10.0])
        self._gravity = _constant(9.8)
        self._mass_pole = _constant(mass_pole)
        self._total_mass = _constant(mass_pole + mass_cart)
        self._length = _constant(length)
        self._polemass_length = _constant(mass_pole * length)
        self._four_thirds = _constant(4.0 / 3.0)
        self._tau = _constant(0.02)  # seconds per step

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Start new episodes where `mask` is True, with the start state gymnasium draws from that seed."""
        for k in np.flatnonzero(mask).tolist():
            # the construction of gymnasium.utils.seeding.np_random, without its detours
            start = Generator(PCG64(SeedSequence(int(seeds[k])))).uniform(-_START, _START, 4)
            self._state[:, k] = start
            self.obs[k] = start
            self._steps[k] = 0
            self._ended[k] = False
        self._look_again()

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Advance the active rows by 0.02 s; the reward is 1, also for the step on which the pole falls."""
        all_active = b"\0" not in active.tobytes()
        if self._has_ended and (stale := np.flatnonzero(active & self._ended)).size:
            raise needs_reset(int(stale[0]))
        self._differentiate(action)
        change = self._change
        np.multiply(change, self._tau, change)
        if all_active:
            np.add(self._state, change, self._state)
            np.add(self._steps, 1, self._steps)
            self._reward.fill(1.0)
        else:
            np.add(self._state, change, self._state, where=active)
            np.add(self._steps, active, self._steps)
            self._reward[...] = active
        self.obs[...] = self._state_by_env

        np.absolute(self._positions, self._distance)
        np.greater(self._distance, self._limits, self._outside)
        np.logical_or(self._x_outside, self._angle_outside, self._terminated)
        self._oldest += 1
        if self._oldest >= self._time_limit:
            np.greater_equal(self._steps, self._time_limit, self._truncated)
        else:
            self._truncated.fill(False)
        if not all_active:
            np.logical_and(self._terminated, active, self._terminated)
            np.logical_and(self._truncated, active, self._truncated)
        self._remember_ended()
        return StepResult(self._reward, self._terminated, self._truncated)

    def snapshot(self, k: int) -> bytes:
        """Physics, step count and whether the episode is over."""
        return pack(_KIND, _SNAPSHOT.pack(*self._state[:, k].tolist(), int(self._steps[k]), bool(self._ended[k])))

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        (numbers,) = unpack(_KIND, data, 1)
        if len(numbers) != _SNAPSHOT.size:
            raise ValueError(f"a snapshot of {_KIND} with {len(numbers)} bytes where there are {_SNAPSHOT.size}")
        *state, self._steps[k], self._ended[k] = _SNAPSHOT.unpack(numbers)
        self._state[:, k] = state
        self.obs[k] = self._state[:, k]
        self._look_again()

    def render(self, k: int) -> Array:
        """None: for pictures there is gymnasium's own class, whose episodes are the same."""
        raise NoPicture("CartPole as array operations has no pictures")

    def info(self, k: int) -> dict[str, Any]:
        """Nothing, as in gymnasium."""
        return {}

    def close(self) -> None:
        """Nothing to free."""

    def _look_again(self) -> None:
        """Update the flags by which `step` skips its checks, after rows were reset or restored."""
        self._has_ended = b"\1" in self._ended.tobytes()
        self._oldest = int(self._steps.max())

    def _differentiate(self, action: Array) -> None:
        """Write the time derivatives of the state under the force of each action into `_change`."""
        force, cos, sin, temp, scratch = self._force, self._cos, self._sin, self._temp, self._scratch
        acceleration, spin_up = self._acceleration, self._spin_up
        multiply, divide = np.multiply, np.divide
        self._forces.take(action, out=force, mode="clip")
        np.cos(self._angle, cos)
        np.sin(self._angle, sin)

        # temp = (force + polemass_length · θ'² · sin θ) / total_mass
        multiply(self._spin, self._spin, temp)
        multiply(temp, self._polemass_length, temp)
        multiply(temp, sin, temp)
        np.add(force, temp, temp)
        divide(temp, self._total_mass, temp)

        # θ'' = (gravity · sin θ − cos θ · temp) / (length · (4/3 − mass_pole · cos² θ / total_mass))
        multiply(cos, cos, scratch)
        multiply(scratch, self._mass_pole, scratch)
        divide(scratch, self._total_mass, scratch)
        np.subtract(self._four_thirds, scratch, scratch)
        multiply(scratch, self._length, scratch)
        multiply(sin, self._gravity, sin)
        multiply(cos, temp, spin_up)
        np.subtract(sin, spin_up, spin_up)
        divide(spin_up, scratch, spin_up)

        # x'' = temp − polemass_length · θ'' · cos θ / total_mass
        multiply(spin_up, self._polemass_length, acceleration)
        multiply(acceleration, cos, acceleration)
        divide(acceleration, self._total_mass, acceleration)
        np.subtract(temp, acceleration, acceleration)

        self._position_changes[...] = self._velocities

    def _remember_ended(self) -> None:
        """Keep the rows whose episode just ended out of the next step."""
        if b"\1" in self._terminated.tobytes() or b"\1" in self._truncated.tobytes():
            np.logical_or(self._ended, self._terminated, self._ended)
            np.logical_or(self._ended, self._truncated, self._ended)
            self._has_ended = True


PATHS: tuple[str, ...] = ()
SCRIPTS: dict[str, Callable[[EnvConfig, int], Player]] = {}


def names() -> list[str]:
    """No ids of its own: gymnasium lists them."""
    return []


def make_group(config: EnvConfig, size: int, pictures: bool = False) -> EnvGroup | None:
    """The vectorised form; None, for gymnasium's class, with arguments, which change rewards, and for pictures."""
    if config.args or pictures:
        return None
    return CartPoleGroup(size, config.time_limit or TIME_LIMITS[config.id])
