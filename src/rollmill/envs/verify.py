"""What an environment gave, compared with what its spaces promise; a fault is a phrase for an error message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.spaces import observation_leaf_space


def observation_fault(space: gym.Space[Any], value: Any, path: str = "") -> str | None:
    """What is wrong with a raw observation, or None.

    A value of another precision is cast and passes; one of another kind (integers for a float space, objects) does
    not, and neither do integers out of bounds, which a cast would wrap. Floats out of bounds pass: rounding puts many
    a sound environment there, and nothing downstream reads the bounds.
    """
    children = observation_leaf_space(space)
    if isinstance(children, dict):
        return _composite_fault(children, value, path)
    name = f"observation '{path}'" if path else "observation"
    try:
        array = np.asarray(value)
    except ValueError:  # a ragged list
        return f"{name} is a {type(value).__name__} that is not an array"
    if array.shape != space.shape:
        return f"{name} has shape {array.shape}, the space says {space.shape}"
    expected = np.dtype(space.dtype)  # leaves always have one
    if _kind(array.dtype) != _kind(expected):
        return f"{name} has dtype {array.dtype}, the space says {expected}"
    if _kind(expected) == "float":
        return None if np.isfinite(array).all() else f"{name} is not finite: {_first(array[~np.isfinite(array)])}"
    low, high = _integer_bounds(space)
    outside = (array < low) | (array > high)
    return f"{name} is out of bounds: {_first(array[outside])}" if outside.any() else None


def result_fault(reward: Any, terminated: Any, truncated: Any) -> str | None:
    """What is wrong with the scalars of a step, or None."""
    if np.ndim(reward) != 0 or np.asarray(reward).dtype.kind not in "fiub":
        return f"reward is {reward!r}, not a number"
    if not np.isfinite(reward):
        return f"reward is not finite: {reward}"
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if np.ndim(flag) != 0 or np.asarray(flag).dtype != np.bool_:
            return f"{name} is {flag!r}, not a bool"
    return None


def _composite_fault(children: dict[str, gym.Space[Any]], value: Any, path: str) -> str | None:
    """The fault of a dict or tuple observation: of its keys first, then of its parts."""
    name = f"observation '{path}'" if path else "observation"
    if isinstance(value, tuple | list):
        value = {str(i): part for i, part in enumerate(value)}
    if not isinstance(value, Mapping):
        return f"{name} is a {type(value).__name__}, the space says keys {sorted(children)}"
    if set(value) != set(children):
        return f"{name} has keys {sorted(map(str, value))}, the space says {sorted(children)}"
    faults = (observation_fault(sub, value[key], f"{path}.{key}" if path else key) for key, sub in children.items())
    return next(filter(None, faults), None)


def _kind(dtype: np.dtype[Any]) -> str:
    """Float, integer or another kind; bools count as integers, since MultiBinary is int8."""
    return {"f": "float", "i": "integer", "u": "integer", "b": "integer"}.get(dtype.kind, dtype.kind)


def _integer_bounds(space: gym.Space[Any]) -> tuple[Any, Any]:
    """Lowest and highest value of an integer space, both included."""
    if isinstance(space, gym.spaces.Box):
        return space.low, space.high
    if isinstance(space, gym.spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return 0, 1  # MultiBinary


def _first(values: Any) -> Any:
    """One offending value to show."""
    return values.flat[0].item()
