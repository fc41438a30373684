"""Any gymnasium environment as a group: K instances in this process, copied into one array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rollmill import nested, spaces
from rollmill.envs.group import EnvironmentFailed, StepResult, needs_reset
from rollmill.envs.verify import observation_fault, result_fault
from rollmill.errors import Refused
from rollmill.nested import Nested
from rollmill.types import Array, ArraySpec, lead


class GymGroup:
    """K environments made by one constructor and stepped in turn; the contract is `EnvGroup`.

    With `verify`, all that the environments give is first held against their spaces (for the check at start-up).
    """

    frame_skip = 1

    def __init__(
        self, env_id: str, construct: Callable[[], gym.Env[Any, Any]], size: int, verify: bool = False
    ) -> None:
        self.size = size
        self._id = env_id
        self._verify = verify
        self._envs = [construct() for _ in range(size)]
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(self._envs[0], name, None), gym.Space):
                raise Refused(f"env.id={env_id}: the environment has no {name}; set it to a gymnasium space")
        self.observation_space = self._envs[0].observation_space
        self.action_space = self._envs[0].action_space
        self.observation_spec = spaces.observation_spec(self.observation_space, f"env.id={env_id}: observation")
        spaces.action_spec(self.action_space)  # refuses what can't be trained on
        self.obs: Nested = nested.map_leaves(lambda spec: spec.zeros(), lead(self.observation_spec, size))
        self._steps = [0] * size  # of the running episode
        self._running = [False] * size
        self._reward = np.zeros(size)
        self._terminated = np.zeros(size, bool)
        self._truncated = np.zeros(size, bool)

    def reset(self, mask: NDArray[np.bool_], seeds: NDArray[np.int64]) -> None:
        """Call `env.reset(seed=seeds[k])` where `mask` is True."""
        for k in np.flatnonzero(mask).tolist():
            self._steps[k] = 0
            observation, _ = self._unpacked(k, "reset", 2, self._call(k, "reset", seed=int(seeds[k])))
            self._running[k] = True
            self._store(k, observation)

    def step(self, action: Array, active: NDArray[np.bool_]) -> StepResult:
        """Call `env.step` in the active rows."""
        # a copy: an environment that keeps its action must not see the agent's buffer change
        rows = np.array(spaces.to_environment(self.action_space, action))
        for array in (self._reward, self._terminated, self._truncated):
            array.fill(0)
        for k in np.flatnonzero(active).tolist():
            if not self._running[k]:
                raise needs_reset(k)
            result = self._call(k, "step", rows[k])
            observation, reward, terminated, truncated, _ = self._unpacked(k, "step", 5, result)
            self._steps[k] += 1
            if self._verify:
                self._refuse(k, result_fault(reward, terminated, truncated))
            self._store(k, observation)
            self._reward[k] = reward
            self._terminated[k] = terminated
            self._truncated[k] = truncated
            self._running[k] = not (terminated or truncated)
        return StepResult(self._reward, self._terminated, self._truncated)

    def close(self) -> None:
        """Close every environment; the first failure is told when all have been tried."""
        failures: list[EnvironmentFailed] = []
        for k in range(self.size):
            try:
                self._call(k, "close")
            except EnvironmentFailed as failure:
                failures.append(failure)
        if failures:
            raise failures[0]

    def _call(self, k: int, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of environment k; what its code raises is reported with the environment's name."""
        try:
            return getattr(self._envs[k], name)(*args, **kwargs)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise EnvironmentFailed(f"env.id={self._id}: environment {k} raised in {name}(): {reason}") from error

    def _unpacked(self, k: int, name: str, count: int, result: Any) -> Any:
        """What a call gave, if it is as many values as gymnasium's interface has."""
        if not isinstance(result, tuple) or len(result) != count:
            given = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            fault = f"{name}() gives {given}, gymnasium's interface has {count}"
            if self._verify:
                self._refuse(k, fault)
            raise EnvironmentFailed(f"env.id={self._id}: environment {k}: {fault}")
        return result

    def _store(self, k: int, observation: Any) -> None:
        """Copy an observation into row k."""
        if self._verify:
            self._refuse(k, observation_fault(self.observation_space, observation))
        try:
            keyed = _keyed(observation)
            nested.map_leaves(_same_shape, self.observation_spec, keyed)
            nested.assign(self.obs, k, keyed)
        except (ValueError, TypeError, KeyError) as error:
            where = f"env.id={self._id}: environment {k}, step {self._steps[k]}"
            raise EnvironmentFailed(f"{where}: the observation doesn't fit the space: {error}") from error

    def _refuse(self, k: int, fault: str | None) -> None:
        if fault:
            when = f"step {self._steps[k]}" if self._steps[k] else "reset"
            remedy = "mend the environment or its observation_space"
            raise Refused(f"env.id={self._id}: environment {k}, {when}: {fault}; {remedy}")


def _same_shape(spec: ArraySpec, value: Any) -> None:
    """Assigning would broadcast a smaller observation without a word."""
    if np.shape(value) != spec.shape:
        raise ValueError(f"its shape is {np.shape(value)}, the space says {spec.shape}")


def _keyed(observation: Any) -> Nested:
    """Tuples as the dicts that `observation_spec` reads them as."""
    if isinstance(observation, tuple):
        return {str(i): _keyed(part) for i, part in enumerate(observation)}
    if isinstance(observation, dict):
        return {key: _keyed(part) for key, part in observation.items()}
    return observation
