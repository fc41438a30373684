"""One gymnasium environment, and what it takes to make it again in the middle of an episode."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import gymnasium as gym
import numpy as np

from rollmill.envs.group import EnvironmentFailed
from rollmill.envs.gym_snapshot import restore_state, take_state
from rollmill.errors import SignalExit
from rollmill.launch.pulse import MAKE, OTHER, PULSE, RESET, STEP
from rollmill.types import LONGEST_REPLAY, Array

T = TypeVar("T")

_COUNTS = {"reset": 2, "step": 5}  # values that gymnasium's interface gives
_PULSES = {"reset": RESET, "step": STEP}


class Instance:
    """An environment whose calls fail as `EnvironmentFailed` and that can be rebuilt where it is."""

    def __init__(self, name: str, construct: Callable[[], gym.Env[Any, Any]]) -> None:
        self.name = name  # "env.id=X: environment k"
        self._construct = watched(construct)
        self.env = self._construct()
        self.info: dict[str, Any] = {}  # of the last call
        self._seed = 0
        self._start: bytes | None = None  # a state within the episode, where one was taken or set
        self._actions = _ActionLog()  # since `_start`, or since the reset

    def reset(self, seed: int) -> Any:
        """Start the episode of this seed: its first observation."""
        self._seed = seed
        self._start = None
        self._actions.clear()
        observation, self.info = self._ask("reset", seed=seed)
        return observation

    def step(self, action: Array) -> tuple[Any, Any, Any, Any]:
        """What the environment gives for an action, `info` aside; `keep` the action once the result is found good."""
        # a copy: an environment may keep or change its action; agent and log must not see that
        observation, reward, terminated, truncated, self.info = self._ask("step", action.copy())
        return observation, reward, terminated, truncated

    def keep(self, action: Array) -> None:
        """Note an action as part of the episode."""
        self._actions.add(action)

    def rebuild(self) -> None:
        """Replace the environment by a new one; errors from closing the old one are ignored."""
        with suppress(Exception):
            self.close()
        try:
            self.env = self._construct()
        except Exception as error:
            raise failed(f"{self.name} can't be made again: {error}", error) from error

    def replay(self) -> Any:
        """Play the kept episode in a rebuilt environment: what it leads to, or None if no step followed a snapshot."""
        if self._actions.is_cut:
            raise EnvironmentFailed(f"{self.name}: its episode has more than {LONGEST_REPLAY} actions to play again")
        observation = self._ask("reset", seed=self._seed)[0]
        if self._start is not None:
            self._set_state(self._start)
            observation = None
        for action in self._actions:
            observation, _, terminated, truncated = self.step(action)
            if terminated or truncated:
                raise EnvironmentFailed(f"{self.name}: the same seed and actions now end the episode earlier")
        return observation

    def snapshot(self) -> bytes:
        """The environment's own snapshot, from which a rebuild then starts."""
        try:
            self._start = watched(take_state, OTHER)(self.env)
        except Exception as error:
            raise failed(f"{self.name} raised in snapshot(): {_described(error)}", error) from error
        self._actions.clear()
        return self._start

    def restore(self, state: bytes) -> None:
        """Restore the environment's own snapshot; it has just been reset."""
        self._set_state(state)
        if self.snapshot() != state:
            raise EnvironmentFailed(f"{self.name}: after restore() its snapshot() differs from what was restored")

    def render(self) -> Any:
        """What the environment draws."""
        return self._call("render")

    def close(self) -> None:
        """Close the environment."""
        self._call("close")

    def _set_state(self, state: bytes) -> None:
        try:
            watched(restore_state, OTHER)(self.env, state)
        except Exception as error:
            raise failed(f"{self.name} raised in restore(): {_described(error)}", error) from error

    def _ask(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """The result of a call; it must have as many values as gymnasium's interface says."""
        result = self._call(method, *args, **kwargs)
        count = _COUNTS[method]
        if not isinstance(result, tuple) or len(result) != count:
            given = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise MisshapenResult(self.name, f"{method}() gives {given}, gymnasium's interface has {count}")
        return result

    def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        PULSE.enter(_PULSES.get(method, OTHER))
        try:
            return getattr(self.env, method)(*args, **kwargs)
        except SignalExit:
            raise
        except (Exception, SystemExit) as error:  # sys.exit() in an environment doesn't end the run
            raise failed(f"{self.name} raised in {method}(): {_described(error)}", error) from error
        finally:
            PULSE.leave()


def watched(call: Callable[..., T], what: int = MAKE) -> Callable[..., T]:
    """The call with the pulse entered around it: it runs code that isn't ours, and may hang."""

    def enter_and_call(*args: Any) -> T:
        PULSE.enter(what)
        try:
            return call(*args)
        finally:
            PULSE.leave()

    return enter_and_call


class MisshapenResult(EnvironmentFailed):
    """An environment returned something other than gymnasium's interface says; `fault` describes it."""

    def __init__(self, name: str, fault: str) -> None:
        super().__init__(f"{name}: {fault}")
        self.fault = fault


class OutOfMemory(EnvironmentFailed):
    """An environment ran out of memory: the whole process is affected, and rebuilding the environment doesn't help."""


def failed(message: str, error: BaseException) -> EnvironmentFailed:
    """The `EnvironmentFailed` for an exception of the environment's code."""
    is_memory = isinstance(error, MemoryError) or isinstance(error.__cause__, MemoryError)
    return (OutOfMemory if is_memory else EnvironmentFailed)(message)


def _described(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class _ActionLog:
    """The actions of an episode as bytes: a list of arrays would take ten times the memory."""

    def __init__(self) -> None:
        self._bytes, self._count = bytearray(), 0
        self._newest: Array = np.zeros(0)  # all have its shape and dtype
        self.is_cut = False

    def add(self, action: Array) -> None:
        self.is_cut = self._count >= LONGEST_REPLAY
        if not self.is_cut:
            self._bytes += action.tobytes()
            self._count += 1
            self._newest = action

    def clear(self) -> None:
        self._bytes.clear()
        self._count = 0
        self.is_cut = False

    def __iter__(self) -> Iterator[Array]:
        actions = np.frombuffer(bytes(self._bytes), self._newest.dtype)
        return iter(actions.reshape(self._count, *self._newest.shape))
