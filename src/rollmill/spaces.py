"""From gymnasium spaces to array specs, and what a space must be to be trained on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from rollmill.errors import Refused
from rollmill.nested import Nested
from rollmill.types import Array, ArraySpec

FARTHEST_BOUND = 1e9  # of an action; environments use larger ones for "no bound"


def observation_spec(space: gym.Space[Any], where: str = "observation") -> Nested:
    """The nested spec of an observation; a tuple space is read as a dict with keys "0", "1" and so on."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and not space.spaces:
        raise Refused(f"{where}: the space is empty, so there is nothing to learn from; give it a part")
    if isinstance(space, gym.spaces.Dict):
        return {key: observation_spec(sub, f"{where}.{key}") for key, sub in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): observation_spec(sub, f"{where}.{i}") for i, sub in enumerate(space.spaces)}
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary | gym.spaces.MultiDiscrete):
        assert space.shape is not None
        assert space.dtype is not None
        if 0 in space.shape:
            raise Refused(f"{where}: the shape {space.shape} holds no numbers; give it some")
        # float64 observations are stored as float32: that is what every network computes with
        dtype = "float32" if space.dtype == np.float64 else np.dtype(space.dtype).name
        return ArraySpec(space.shape, dtype)
    if isinstance(space, gym.spaces.Discrete):
        return ArraySpec((), "int64")
    raise Refused(
        f"{where}: a {type(space).__name__} space can't be trained on; "
        "wrap the environment so that it gives Box, Discrete or Dict"
    )


def observation_leaf_space(space: gym.Space[Any]) -> dict[str, gym.Space[Any]] | gym.Space[Any]:
    """The spaces of the children of a composite space under the keys of `observation_spec`; a leaf is itself."""
    if isinstance(space, gym.spaces.Dict):
        return dict(space.spaces)
    if isinstance(space, gym.spaces.Tuple):
        return {str(i): sub for i, sub in enumerate(space.spaces)}
    return space


def space_record(space: gym.Space[Any]) -> dict[str, Any]:
    """A space as plain JSON, from which `space_from` makes an equal one, bounds and order included."""
    kind = type(space).__name__
    if isinstance(space, gym.spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, space_record(sub)] for key, sub in space.spaces.items()]}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "spaces": [space_record(sub) for sub in space.spaces]}
    if isinstance(space, gym.spaces.Box):
        record = {"kind": "Box", "shape": list(space.shape), "low": _numbers(space.low), "high": _numbers(space.high)}
    elif isinstance(space, gym.spaces.Discrete):
        record = {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    elif isinstance(space, gym.spaces.MultiDiscrete):
        record = {"kind": "MultiDiscrete", "n": space.nvec.tolist(), "start": space.start.tolist()}
    elif isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": np.asarray(space.n).tolist()}
    else:
        raise Refused(f"a {kind} space can't be stored; give Box, Discrete, MultiDiscrete, MultiBinary, Dict or Tuple")
    return {**record, "dtype": np.dtype(space.dtype).name}


def space_from(record: Mapping[str, Any]) -> gym.Space[Any]:
    """The space of a `space_record`."""
    match record["kind"]:
        case "Dict":
            return gym.spaces.Dict(OrderedDict((key, space_from(sub)) for key, sub in record["spaces"]))
        case "Tuple":
            return gym.spaces.Tuple([space_from(sub) for sub in record["spaces"]])
        case "MultiBinary":
            return gym.spaces.MultiBinary(record["n"])
        case "Box":
            shape, dtype = tuple(record["shape"]), np.dtype(record["dtype"])
            low, high = (_array(record[bound], shape, dtype) for bound in ("low", "high"))
            return gym.spaces.Box(low, high, shape, dtype.type)
        case "Discrete":
            narrow = {} if record["dtype"] == "int64" else {"dtype": np.dtype(record["dtype"]).type}
            return gym.spaces.Discrete(record["n"], start=record["start"], **narrow)
        case "MultiDiscrete":
            n, start = (np.array(record[name], record["dtype"]) for name in ("n", "start"))
            return gym.spaces.MultiDiscrete(n, record["dtype"], start=start)
        case kind:
            raise Refused(f"a space of kind {kind} is unknown here; it was stored by a newer rollmill")


def _numbers(bounds: Array) -> Any:
    """One number if all bounds are the same, else all of them; JSON has no infinities, so those are text."""
    numbers = [x if np.isfinite(x) else str(x) for x in bounds.ravel().tolist()]
    is_same = bounds.size > 0 and bounds.tobytes() == np.full_like(bounds, bounds.flat[0]).tobytes()
    return numbers[0] if is_same else numbers


def _array(numbers: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    if isinstance(numbers, list):
        return np.array([float(x) if isinstance(x, str) else x for x in numbers], dtype).reshape(shape)
    return np.full(shape, float(numbers) if isinstance(numbers, str) else numbers, dtype)


def is_channel_last(shape: tuple[int, ...]) -> bool:
    """Whether a three-axis image is [H, W, C]: its channel axis is the shorter of the first and the last."""
    return len(shape) == 3 and shape[2] < shape[0]


def action_spec(space: gym.Space[Any]) -> ArraySpec:
    """The spec of an action as the agent stores it."""
    if isinstance(space, gym.spaces.Discrete):
        return ArraySpec((), "int64")
    if isinstance(space, gym.spaces.MultiDiscrete):
        assert space.shape is not None
        if len(space.shape) != 1:
            raise Refused(f"action space {space}: MultiDiscrete must be flat; flatten it in the environment")
        return ArraySpec(space.shape, "int64")
    if isinstance(space, gym.spaces.Box):
        return ArraySpec(space.shape, "float32")
    raise Refused(f"action space {space}: must be Discrete, MultiDiscrete or Box; wrap the environment")


class ActionScale(NamedTuple):
    """Maps the numbers of a policy to the actions of a bounded Box: -1 is the lower bound, 1 the upper one."""

    middle: Array
    half: Array

    def __call__(self, action: Array) -> Array:
        """The action in the environment's units; `to_environment` clips it."""
        scaled: Array = self.middle + self.half * action
        return scaled


def action_scale(space: gym.Space[Any]) -> ActionScale | None:
    """The scale of a Box; None where the policy's numbers are the actions themselves: bounds of ±1, or none.

    Components with a bound missing, or so far away that it only means infinity, keep their units.
    """
    if not isinstance(space, gym.spaces.Box):
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    is_bounded = (np.abs(low) < FARTHEST_BOUND) & (np.abs(high) < FARTHEST_BOUND)
    low, high = np.where(is_bounded, low, -1.0), np.where(is_bounded, high, 1.0)
    middle, half = (low + high) / 2, (high - low) / 2
    if (middle == 0).all() and (half == 1).all():
        return None
    return ActionScale(middle.astype(np.float32), half.astype(np.float32))


def to_environment(space: gym.Space[Any], action: Array) -> Array:
    """The action as the environment takes it: counted from the space's start, or clipped to its bounds."""
    if isinstance(space, gym.spaces.Box):
        return np.clip(action, space.low, space.high).astype(space.dtype, copy=False)
    if isinstance(space, gym.spaces.Discrete | gym.spaces.MultiDiscrete) and np.any(space.start != 0):
        return np.asarray(action + space.start)
    return action
