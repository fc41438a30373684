"""Snapshots of gymnasium environments that can take them: the optional protocol of `envs/group.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rollmill.envs.snapshot_bytes import pack, unpack

_KIND = "gymnasium"
_PLAIN_WRAPPERS = (OrderEnforcing, PassiveEnvChecker, TimeLimit)  # whose state within an episode we know


def measure_state(env: gym.Env[Any, Any], construct: Callable[[], gym.Env[Any, Any]]) -> int:
    """Twice the bytes of a first state, since states may grow within an episode; 0 without snapshots.

    A separate instance is measured, because an extra reset could change the one that will play.
    """
    if _owner(env)[0] is None:
        return 0
    spare = construct()
    try:
        spare.reset(seed=0)
        return 2 * len(take_state(spare))
    except Exception:  # an environment that fails here is played without snapshots
        return 0
    finally:
        with suppress(Exception):
            spare.close()


def take_state(env: gym.Env[Any, Any]) -> bytes:
    """The environment's own snapshot and what gymnasium's wrappers count around it."""
    owner, limits = _owner(env)
    if owner is None:
        raise TypeError("the environment has no snapshot() and restore()")
    state = owner.snapshot()
    if not isinstance(state, bytes):
        raise TypeError(f"snapshot() gives a {type(state).__name__}, not bytes")
    return pack(_KIND, state, b"".join((limit._elapsed_steps or 0).to_bytes(8, "little") for limit in limits))


def restore_state(env: gym.Env[Any, Any], data: bytes) -> None:
    """Set an environment that has just been reset to such a state."""
    owner, limits = _owner(env)
    state, elapsed = unpack(_KIND, data, 2)
    if owner is None or len(elapsed) != 8 * len(limits):
        raise ValueError("the snapshot is of an environment with other wrappers")
    owner.restore(state)
    for i, limit in enumerate(limits):
        steps = int.from_bytes(elapsed[8 * i : 8 * i + 8], "little")
        limit._elapsed_steps = steps  # type: ignore[assignment]  # gymnasium annotates nothing here


def _owner(env: gym.Env[Any, Any]) -> tuple[Any, list[TimeLimit[Any, Any]]]:
    """The outermost layer that has the two methods, and the time limits around it.

    None if there is none, or if it is covered by a wrapper that may have a state of its own.
    """
    limits: list[TimeLimit[Any, Any]] = []
    while not (callable(getattr(env, "snapshot", None)) and callable(getattr(env, "restore", None))):
        if not isinstance(env, _PLAIN_WRAPPERS):
            return None, limits
        if isinstance(env, TimeLimit):
            limits.append(env)
        env = env.env
    return env, limits
