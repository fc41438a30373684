"""What a build's behaviour looks like to an agent: its spaces, and how messages become observations and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rollmill.errors import Refused, nearest
from rollmill.types import Array
from rollmill_envs.unity.config import UnityConfig


@dataclass(frozen=True)
class Looks:
    """One behaviour of a build; `keys` are those of a dict observation, empty where there is a single sensor."""

    behaviour: str
    keys: tuple[str, ...]
    as_bytes: tuple[bool, ...]  # by sensor: sent as 0 to 1, given as 0 to 255
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def observe(self, sensors: Sequence[Array]) -> Any:
        """The observation in what the sensors of one agent gave."""
        taken = [_bytes(data) if is_bytes else data for data, is_bytes in zip(sensors, self.as_bytes, strict=True)]
        return dict(zip(self.keys, taken, strict=True)) if self.keys else taken[0]

    def picture(self, observation: Any) -> Array | None:
        """What the first camera sees, in colours; None where there is no camera."""
        parts = [observation[key] for key in self.keys] if self.keys else [observation]
        for part in parts:
            if part.ndim == 3:
                image = part if part.dtype == np.uint8 else np.rint(np.clip(part, 0.0, 1.0) * 255).astype(np.uint8)
                # newest frame of a stack; anything but colours is shown as grey
                return image[:, :, -3:] if image.shape[2] % 3 == 0 else np.repeat(image[:, :, -1:], 3, axis=2)
        return None


def look_at(specs: Mapping[str, Any], settings: UnityConfig) -> Looks:
    """The looks of the behaviour that is to be trained; refuses what can't be."""
    behaviour = _choose(list(specs), settings)
    spec = specs[behaviour]
    sensors = spec.observation_specs
    if not sensors:
        raise Refused(f"env.args.behaviour={behaviour}: it has no sensors, so there is nothing to learn from; add one")
    as_bytes = tuple(len(sensor.shape) == 3 and settings.visual == "bytes" for sensor in sensors)
    boxes = [_box(tuple(sensor.shape), is_bytes) for sensor, is_bytes in zip(sensors, as_bytes, strict=True)]
    keys = _keys([sensor.name for sensor in sensors]) if len(sensors) > 1 else ()
    space: gym.Space[Any] = gym.spaces.Dict(dict(zip(keys, boxes, strict=True))) if keys else boxes[0]
    return Looks(behaviour, keys, as_bytes, space, _action_space(spec.action_spec, behaviour))


def _choose(known: list[str], settings: UnityConfig) -> str:
    """A behaviour by its name, with or without the "?team=0" that Unity appends."""
    if not known:
        raise Refused(f"env.args.build={settings.build}: no agent asks for decisions; set its Behavior Type to Default")
    if settings.behaviour is None:
        return known[0]
    for name in known:
        if settings.behaviour in (name, name.partition("?")[0]):
            return name
    hint = nearest(settings.behaviour, [name.partition("?")[0] for name in known])
    raise Refused(f"env.args.behaviour={settings.behaviour}: the build has no such behaviour; {hint}")


def _action_space(spec: Any, behaviour: str) -> gym.Space[Any]:
    branches = list(map(int, spec.discrete_branches))
    if spec.continuous_size and branches:
        what = f"{spec.continuous_size} continuous and {len(branches)} discrete actions at once"
        raise Refused(f"env.args.behaviour={behaviour}: {what} can't be trained; use one kind in the scene")
    if spec.continuous_size:
        return gym.spaces.Box(-1.0, 1.0, (spec.continuous_size,), np.float32)
    if not branches:
        raise Refused(f"env.args.behaviour={behaviour}: it takes no actions; give it some in the scene")
    return gym.spaces.Discrete(branches[0]) if len(branches) == 1 else gym.spaces.MultiDiscrete(branches)


def _box(shape: tuple[int, ...], is_bytes: bool) -> gym.spaces.Box:
    if is_bytes:
        return gym.spaces.Box(0, 255, shape, np.uint8)
    return gym.spaces.Box(-np.inf, np.inf, shape, np.float32)


def _keys(names: list[str]) -> tuple[str, ...]:
    """Sensor names as keys: without dots, which separate keys elsewhere, and each of them once."""
    keys: list[str] = []
    for i, name in enumerate(names):
        key = name.replace(".", "_").replace("/", "_") or f"sensor_{i}"
        keys.append(key if key not in keys else f"{key}_{i}")
    return tuple(keys)


def _bytes(data: Array) -> Array:
    if data.min() < 0.0 or data.max() > 1.0:
        found = f"values from {data.min():g} to {data.max():g}"
        raise Refused(f"env.args.visual=bytes: a visual sensor gives {found}, not 0 to 1; set it to floats")
    return np.rint(data * 255.0).astype(np.uint8)
