"""Any gymnasium environment as a group: K instances in this process, copied into one array."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from traceback import format_exception
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill import nested, spaces
from rollmill.envs.group import EnvironmentFailed, NoPicture, StepResult, Trouble, even_sided, needs_reset
from rollmill.envs.gym_snapshot import measure_state
from rollmill.envs.instance import Instance, MisshapenResult, OutOfMemory, watched
from rollmill.envs.snapshot_bytes import pack, packed_size, row_bytes, row_size, unpack, write_row
from rollmill.envs.verify import observation_fault, result_fault
from rollmill.errors import Refused
from rollmill.launch.pulse import OTHER
from rollmill.nested import Nested
from rollmill.types import Array, ArraySpec, FrameStack, lead

_KIND = "gymnasium group"
_MOST_TROUBLES = 1000  # kept until they are read, which may never happen


class GymGroup:
    """K environments made by one constructor and stepped in turn; the contract is `EnvGroup`.

    An environment that fails is rebuilt, brought to where it was by its seed and actions, and called once more; if
    that fails too its row is broken. With `verify`, all that the environments give is first compared with their spaces
    (for the check at start-up), and every failure is raised.
    """

    frame_skip = 1
    stacks: Mapping[str, FrameStack] = {}

    def __init__(
        self, env_id: str, construct: Callable[[], gym.Env[Any, Any]], size: int, verify: bool = False
    ) -> None:
        self.size = size
        self._verify = verify
        self._instances = _construct_all(env_id, construct, size)
        first = self._instances[0].env
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(first, name, None), gym.Space):
                raise Refused(f"env.id={env_id}: the environment has no {name}; set it to a gymnasium space")
        self.frame_rate = _frame_rate(first)
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self.observation_spec = spaces.observation_spec(self.observation_space, f"env.id={env_id}: observation")
        spaces.action_spec(self.action_space)  # refuses what can't be trained on
        self.obs: Nested = nested.map_leaves(lambda spec: spec.zeros(), lead(self.observation_spec, size))
        state_size = watched(measure_state, OTHER)(first, construct)
        self.snapshot_size = packed_size(_KIND, state_size, row_size(self.obs), 8) if state_size else 0
        self.broken = np.zeros(size, bool)
        self.troubles: deque[Trouble] = deque(maxlen=_MOST_TROUBLES)
        self._last_trouble = [""] * size
        self._steps = [0] * size  # of the running episode
        self._running = [False] * size
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)
        self._truncated = np.zeros(size, bool)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Call `env.reset(seed=seeds[k])` where `mask` is True."""
        for k in np.flatnonzero(mask).tolist():
            self._running[k] = False
            self._steps[k] = 0
            begin = partial(self._begin, k, int(seeds[k]))
            if failure := _attempt(begin):
                self._save(k, "reset", failure, begin)

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Call `env.step` in the active rows."""
        rows = spaces.to_environment(self.action_space, action)
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        for k in np.flatnonzero(active).tolist():
            self._refuse_idle(k)
            if failure := _attempt(self._advance, k, rows[k]):
                self._save(k, "step", failure, partial(self._advance_again, k, rows[k]))
        return StepResult(self._reward, self._terminated, self._truncated)

    def snapshot(self, k: int) -> bytes:
        """What row k shows and its environment's own snapshot; b"" without one or without a running episode."""
        if not self.snapshot_size or not self._running[k]:
            return b""
        try:
            state = self._instances[k].snapshot()
        except OutOfMemory:
            raise
        except EnvironmentFailed:  # nothing is lost: the episode continues, and can be played again
            return b""
        return pack(_KIND, state, row_bytes(self.obs, k), self._steps[k].to_bytes(8, "little"))

    def restore(self, k: int, data: bytes) -> None:
        """Continue from a snapshot."""
        state, shown, steps = unpack(_KIND, data, 3)
        try:
            self._instances[k].restore(state)
        except OutOfMemory:
            raise
        except EnvironmentFailed as failure:
            raise ValueError(str(failure)) from failure
        write_row(self.obs, k, shown)
        self._steps[k] = int.from_bytes(steps, "little")

    def render(self, k: int) -> Array:
        """What `env.render()` gives, if that is a picture."""
        name = self._instances[k].name
        try:
            picture = np.asarray(self._instances[k].render())
        except EnvironmentFailed as failure:
            raise NoPicture(f"{failure}; it can't be drawn") from failure
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
            what = "nothing" if picture.dtype == object else f"{picture.dtype} {picture.shape}"
            raise NoPicture(f"{name}: render() gives {what}, not an RGB picture; its render_mode must be rgb_array")
        return even_sided(picture)

    def info(self, k: int) -> dict[str, Any]:
        """The info of the last step or reset."""
        info = self._instances[k].info
        return info if isinstance(info, dict) else {}

    def close(self) -> None:
        """Close every environment, then raise the first failure."""
        failures: list[EnvironmentFailed] = []
        for instance in self._instances:
            try:
                instance.close()
            except EnvironmentFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _begin(self, k: int, seed: int) -> None:
        """Start an episode in row k."""
        if self.broken[k]:
            self._instances[k].rebuild()
        self._store(k, 0, self._instances[k].reset(seed))
        self._running[k] = True
        self.broken[k] = False

    def _refuse_idle(self, k: int) -> None:
        """Stepping a row without a running episode is a bug of the caller."""
        if self.broken[k]:
            raise EnvironmentFailed(self._last_trouble[k])
        if not self._running[k]:
            raise needs_reset(k)

    def _advance(self, k: int, action: Array) -> None:
        """Step row k; nothing of the group changes before all that the environment gave is found good."""
        instance, step = self._instances[k], self._steps[k] + 1
        observation, reward, terminated, truncated = instance.step(action)
        if self._verify:
            self._refuse(k, step, result_fault(reward, terminated, truncated))
        try:
            reward, terminated, truncated = float(reward), bool(terminated), bool(truncated)
        except (ValueError, TypeError) as error:
            raise EnvironmentFailed(f"{instance.name}, step {step}: reward or flags aren't numbers: {error}") from error
        self._store(k, step, observation)
        instance.keep(action)
        self._steps[k] = step
        self._reward[k] = reward
        self._terminated[k] = terminated
        self._truncated[k] = truncated
        self._running[k] = not (terminated or truncated)

    def _advance_again(self, k: int, action: Array) -> None:
        """Step row k in a rebuilt environment, once that has been brought to where the old one was."""
        shown = row_bytes(self.obs, k)
        observation = self._instances[k].replay()
        if observation is not None:
            try:
                self._store(k, self._steps[k], observation)
                found = row_bytes(self.obs, k)
            finally:
                write_row(self.obs, k, shown)
            if found != shown:
                name = self._instances[k].name
                raise EnvironmentFailed(f"{name}: the same seed and actions now lead to another observation")
        self._advance(k, action)

    def _save(self, k: int, call: str, failure: EnvironmentFailed, try_again: Callable[[], None]) -> None:
        """Try a failed row once more in a rebuilt environment, unless it was tried already; record the outcome."""
        if self._verify and isinstance(failure, MisshapenResult):
            self._refuse(k, self._steps[k] + (call == "step"), failure.fault)
        if self._verify or isinstance(failure, OutOfMemory):
            raise failure
        message, traceback = str(failure), _traceback(failure)
        if not self.broken[k] and (second := _attempt(self._instances[k].rebuild) or _attempt(try_again)):
            if isinstance(second, OutOfMemory):
                raise second
            again = "the same" if str(second) == message else str(second)
            message = f"{message}; after a rebuild: {again}"
            traceback = f"{traceback}\nAfter a rebuild:\n{_traceback(second)}"
            self.broken[k] = True
            self._running[k] = False
        self._last_trouble[k] = message
        self.troubles.append(Trouble(k, call, message, traceback, is_rebuilt=not self.broken[k]))

    def _store(self, k: int, step: int, observation: Any) -> None:
        """Copy an observation into row k, completely or not at all."""
        if self._verify:
            self._refuse(k, step, observation_fault(self.observation_space, observation))
        try:
            fitting = nested.map_leaves(_fitting, self.observation_spec, _keyed(observation))
        except (ValueError, TypeError, LookupError) as error:
            where = f"{self._instances[k].name}, step {step}"
            raise EnvironmentFailed(f"{where}: the observation doesn't fit the space: {error}") from error
        nested.assign(self.obs, k, fitting)

    def _refuse(self, k: int, step: int, fault: str | None) -> None:
        if fault:
            when = f"step {step}" if step else "reset"
            remedy = "fix the environment or its observation_space"
            raise Refused(f"{self._instances[k].name}, {when}: {fault}; {remedy}")


def _frame_rate(env: gym.Env[Any, Any]) -> float:
    """The rate that the environment gives for its pictures; gymnasium's default where it gives none."""
    rate = (getattr(env, "metadata", None) or {}).get("render_fps")
    return float(rate) if isinstance(rate, int | float) and rate > 0 else 30.0


def _attempt(call: Callable[..., None], *args: Any) -> EnvironmentFailed | None:
    """How a call failed, if it did; the second try is outside of this, so that tracebacks are not chained."""
    try:
        call(*args)
    except EnvironmentFailed as failure:
        return failure
    return None


def _construct_all(env_id: str, construct: Callable[[], gym.Env[Any, Any]], size: int) -> list[Instance]:
    """Construct all environments; if one fails, close the others and raise."""
    instances: list[Instance] = []
    try:
        instances.extend(Instance(f"env.id={env_id}: environment {k}", construct) for k in range(size))
    except BaseException:
        for instance in instances:
            with suppress(Exception):
                instance.close()
        raise
    return instances


def _fitting(spec: ArraySpec, value: Any) -> Array:
    """The value as an array that can be assigned: of the spec's shape (assigning would broadcast) and of numbers."""
    array = np.asarray(value)
    if array.shape != spec.shape:
        raise ValueError(f"its shape is {array.shape}, the space says {spec.shape}")
    return array if array.dtype.kind in "fiub" else array.astype(spec.dtype)


def _keyed(observation: Any) -> Nested:
    """Tuples as the dicts that `observation_spec` reads them as."""
    if isinstance(observation, tuple):
        return {str(i): _keyed(part) for i, part in enumerate(observation)}
    if isinstance(observation, dict):
        return {key: _keyed(part) for key, part in observation.items()}
    return observation


def _traceback(failure: EnvironmentFailed) -> str:
    """The traceback of what the environment's code raised; "" where it raised nothing."""
    return "".join(format_exception(failure.__cause__)) if failure.__cause__ else ""
