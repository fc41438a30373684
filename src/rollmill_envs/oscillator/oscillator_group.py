"""K ensembles of coupled neurons as a group."""

from __future__ import annotations

import math
import struct
from collections import deque
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.random import PCG64, Generator, SeedSequence
from numpy.typing import NDArray

from rollmill import spaces
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import read_args
from rollmill.envs.group import EnvironmentFailed, StepResult, Trouble, needs_reset
from rollmill.envs.snapshot_bytes import pack, packed_size, unpack
from rollmill.types import Array, FrameStack
from rollmill_envs.oscillator.config import SETTINGS, OscillatorConfig
from rollmill_envs.oscillator.frozen import FrozenAgent
from rollmill_envs.oscillator.kernels import BVP, HINDMARSH_ROSE, SCRATCH_ROWS, advance_rows, coupling_at
from rollmill_envs.oscillator.picture import draw_ensemble
from rollmill_envs.oscillator.stimulus import Floats, action_space_of, amplitude_of, pulse_of

_MODELS = {"oscillator/bvp": BVP, "oscillator/hindmarsh-rose": HINDMARSH_ROSE}
_KNOT_STEPS = 250  # integration steps between two knots of a random walk of ε
_TIME_PER_SECOND = 10.0  # of a video; the ensemble beats about every 35 time units
_COUNTERS = struct.Struct("<2q2d?")  # decisions, clock, amplitude, the frozen agent's part of it, whether it is over


class OscillatorGroup:
    """K ensembles; the contract is `EnvGroup`, the definition is in docs/oscillator.md.

    A decision takes as many integration steps as the pulse is long; frames are integration steps. While `is_muted`,
    no action reaches the neurons.
    """

    def __init__(self, config: EnvConfig, size: int) -> None:
        self.settings = settings = read_args(config, SETTINGS[config.id])
        self.size = size
        self.broken = np.zeros(size, bool)
        self.troubles: deque[Trouble] = deque()
        self.observation_space: gym.Space[Any] = gym.spaces.Box(
            -settings.bound, settings.bound, (settings.window,), np.float32
        )
        self.action_space = action_space_of(settings)
        self.observation_spec = spaces.observation_spec(self.observation_space)
        self.obs: Array = self.observation_spec.lead(size).zeros()
        self.pulse = pulse_of(settings)
        self.frame_skip = len(self.pulse)
        self.stacks: Mapping[str, FrameStack] = {}
        self.frame_rate = _TIME_PER_SECOND / (settings.step * len(self.pulse))
        self.is_muted = False
        self.time_limit = config.time_limit or -(-settings.default_time_limit // len(self.pulse))  # decisions

        self._id = config.id
        self._frozen = settings.frozen and FrozenAgent(config.id, settings, self.observation_space)
        self._target = math.nan if settings.target == "mean" else settings.target
        self.state = np.zeros((size, settings.variables, settings.neurons))
        self.fields = np.zeros((size, 2, settings.window))  # the last means of x and of y, oldest first
        self._current = np.zeros((size, settings.neurons))
        knots = _knot_count(settings, self.time_limit * len(self.pulse))
        self._spacing = self.time_limit * len(self.pulse) if settings.drift == "linear" else _KNOT_STEPS
        self._paths = np.zeros((size, knots))
        self._clock = np.zeros(size, np.int64)
        self._decisions = np.zeros(size, np.int64)
        self._limits = np.zeros(size, np.int64)  # decisions of each row's episode
        self._amplitude = np.zeros(size)
        self._frozen_part = np.zeros(size)
        self._scratch = np.zeros((SCRATCH_ROWS, settings.neurons))
        self._ended = np.ones(size, bool)  # no episode runs before the first reset
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)  # never: the only end is the time limit
        self._truncated = np.zeros(size, bool)
        self._kind = f"{config.id} {settings.variables}×{settings.neurons}, {settings.window}"
        self.snapshot_size = packed_size(self._kind, _COUNTERS.size, self.state[0].nbytes, self.fields[0].nbytes)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """New neurons where `mask` is True, uncontrolled until the window is full."""
        settings = self.settings
        for k in np.flatnonzero(mask).tolist():
            draw = Generator(PCG64(SeedSequence(int(seeds[k]))))
            self._current[k] = draw.normal(*settings.current, settings.neurons)
            for variable, (low, high) in enumerate(settings.starts):
                self.state[k, variable] = draw.uniform(low, high, settings.neurons)
            self._paths[k] = _coupling_path(settings, self._paths.shape[1], draw)
            self._limits[k] = self.time_limit - int(draw.uniform(0, settings.stagger) * self.time_limit)
            fewest, most = settings.warm_up_range
            self._clock[k] = -draw.integers(fewest, most, endpoint=True)
            self._amplitude[k] = self._frozen_part[k] = 0.0
            self._decisions[k] = 0
            self._ended[k] = False
        for k in np.flatnonzero(mask).tolist():
            self._advance(np.arange(self.size) == k, np.zeros(-self._clock[k]))
        self._show()

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Apply one action in the active rows; the reward is −weight·(X − target)² − weight·|a|."""
        if (stale := np.flatnonzero(active & self._ended)).size:
            raise needs_reset(int(stale[0]))
        amplitude, frozen_part = self._stimulus(action)
        np.copyto(self._amplitude, amplitude, where=active)
        np.copyto(self._frozen_part, frozen_part, where=active)
        self._advance(active, self.pulse)
        self._show()
        settings = self.settings
        self._reward *= settings.deviation_weight
        self._reward -= settings.action_weight * np.abs(self._amplitude)
        self._reward[~active] = 0.0
        self._decisions += active
        np.greater_equal(self._decisions, self._limits, self._truncated)
        self._truncated &= active
        self._ended |= self._truncated
        return StepResult(self._reward, self._terminated, self._truncated)

    def snapshot(self, k: int) -> bytes:
        """Neurons, window and counters; currents and ε follow from the seed."""
        counters = _COUNTERS.pack(
            self._decisions[k], self._clock[k], self._amplitude[k], self._frozen_part[k], self._ended[k]
        )
        return pack(self._kind, counters, self.state[k].tobytes(), self.fields[k].tobytes())

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        counters, state, fields = unpack(self._kind, data, 3)
        for part, size in ((counters, _COUNTERS.size), (state, self.state[k].nbytes), (fields, self.fields[k].nbytes)):
            if len(part) != size:
                raise ValueError(f"a snapshot of {self._id} with {len(part)} bytes where there are {size}")
        numbers = _COUNTERS.unpack(counters)
        self._decisions[k], self._clock[k], self._amplitude[k], self._frozen_part[k], self._ended[k] = numbers
        self.state[k] = np.frombuffer(state).reshape(self.state[k].shape)
        self.fields[k] = np.frombuffer(fields).reshape(self.fields[k].shape)
        self._show()

    def render(self, k: int) -> Array:
        """The mean field of the last window, and the state of every neuron."""
        return draw_ensemble(self.fields[k], self.state[k], self._amplitude[k] / self.settings.action_limit)

    def info(self, k: int) -> dict[str, Any]:
        """The mean field X and Y, the coupling, and the action that reached the neurons."""
        said = {
            "X": float(self.fields[k, 0, -1]),
            "Y": float(self.fields[k, 1, -1]),
            "coupling": float(coupling_at(self._paths[k], self._spacing, self._clock[k])),
            "action": float(self._amplitude[k]),
        }
        return said | {"frozen_action": float(self._frozen_part[k])} if self._frozen else said

    def close(self) -> None:
        """Nothing to free."""

    @property
    def amplitude(self) -> Floats:
        """The actions that last reached the neurons, [K]."""
        return self._amplitude

    def _stimulus(self, action: Array) -> tuple[Floats, Floats]:
        """The amplitudes that reach the neurons, [K], and the part of a frozen agent in them."""
        limit, nothing = self.settings.action_limit, np.zeros(self.size)
        if self.is_muted:
            return nothing, nothing
        amplitude = amplitude_of(action, self.action_space, limit)
        if not self._frozen:
            return amplitude, nothing
        frozen_part = self._frozen.amplitudes(self.obs)
        return np.clip(amplitude + frozen_part, -limit, limit), frozen_part

    def _advance(self, rows: NDArray[np.bool_], pulse: Floats) -> None:
        """Integrate the rows through a pulse."""
        advance_rows(
            _MODELS[self._id],
            rows,
            self.state,
            self._current,
            self._paths,
            float(self._spacing),
            self._clock,
            self.settings.step,
            self._amplitude,
            pulse,
            self.fields,
            self._target,
            self._reward,
            self._scratch,
        )
        if not math.isfinite(self._reward.sum()):
            k = int(np.flatnonzero(~np.isfinite(self._reward))[0])
            remedy = "lower env.args.step or env.args.action_limit"
            raise EnvironmentFailed(f"env.id={self._id}: environment {k}: the state of the neurons diverged; {remedy}")

    def _show(self) -> None:
        """The window as the agent sees it; that of a row that wasn't advanced is unchanged."""
        self.obs[...] = self.fields[:, 0 if self.settings.observe == "x" else 1]


def _knot_count(settings: OscillatorConfig, steps: int) -> int:
    """How many knots the path of ε has in an episode of so many integration steps."""
    return {"none": 1, "linear": 2, "walk": steps // _KNOT_STEPS + 2}[settings.drift]


def _coupling_path(settings: OscillatorConfig, knots: int, draw: Generator) -> Floats:
    """The path of ε through an episode: constant, from the low to the high end, or a walk that turns at both."""
    low, high = settings.coupling_range
    if settings.drift == "linear":
        return np.array([low, high])
    start = draw.uniform(low, high) if low < high else low
    if settings.drift == "none":
        return np.array([start])
    away = start - low + np.cumsum(draw.normal(0.0, settings.walk * (high - low), knots))
    return low + (high - low) - np.abs(away % (2 * (high - low)) - (high - low))  # a triangle wave folds it back
