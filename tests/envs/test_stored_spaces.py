"""The spaces of a run are stored as plain JSON and come back equal, bounds and order included."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

from rollmill.errors import Refused
from rollmill.spaces import action_scale, observation_spec, space_from, space_record

UNEVEN = np.array([[0.1, -np.inf], [-0.0, np.nextafter(np.float32(1), np.float32(2))]], np.float32)
LARGE = np.iinfo(np.int64).max  # which no float holds

SPACES = {
    "bounds of their own": Box(UNEVEN, np.array([[0.2, np.inf], [np.inf, 7e30]], np.float32)),
    "image": Box(0, 255, (84, 84, 4), np.uint8),
    "float64": Box(-np.array([0.1, 1 / 3]), np.array([0.1, 1e300]), dtype=np.float64),
    "scalar": Box(-np.inf, np.inf, (), np.float32),
    "integers": Box(np.array([-LARGE, 0]), np.array([LARGE, LARGE - 1]), dtype=np.int64),
    "discrete": Discrete(5, start=-2),
    "narrow": Discrete(5, dtype=np.int32),
    "multi-discrete": MultiDiscrete([3, 4], start=[0, 7]),
    "multi-discrete, two axes": MultiDiscrete([[3, 4], [5, 6]], dtype=np.int32),
    "bits": MultiBinary(4),
    "nested": Dict(
        OrderedDict(
            z=Tuple((Box(-1, 1, (2,)), Dict(inner=Discrete(2), bits=MultiBinary([2, 3])))),
            a=Box(0, 255, (8, 8, 1), np.uint8),
            previous_action=MultiDiscrete([2, 2]),
        )
    ),
}


def bits(space: gym.Space[Any]) -> Any:
    """A form in which two spaces are equal exactly if everything that a network or an action depends on is."""
    if isinstance(space, Dict):
        return [(key, bits(sub)) for key, sub in space.spaces.items()]
    if isinstance(space, Tuple):
        return [bits(sub) for sub in space.spaces]
    kind = type(space).__name__, space.shape, np.dtype(space.dtype).str
    if isinstance(space, Box):
        return *kind, space.low.tobytes(), space.high.tobytes(), space.low.dtype, space.high.dtype
    if isinstance(space, Discrete):
        return *kind, int(space.n), int(space.start)
    if isinstance(space, MultiDiscrete):
        return *kind, space.nvec.tobytes(), space.start.tobytes()
    return kind


@pytest.mark.parametrize("name", SPACES)
def test_a_space_comes_back_bit_for_bit_from_strict_json(name):
    space = SPACES[name]
    text = json.dumps(space_record(space), allow_nan=False)
    back = space_from(json.loads(text))
    assert bits(back) == bits(space)
    assert back == space
    assert observation_spec(back) == observation_spec(space)
    assert len(text) < 1000, "an image's bounds are two numbers"


def test_actions_are_scaled_as_before():
    space = Box(np.array([-2, 0], np.float32), np.array([2, 0.3], np.float32))
    before, after = action_scale(space), action_scale(space_from(space_record(space)))
    assert [array.tobytes() for array in before] == [array.tobytes() for array in after]


def test_zeros_of_both_signs_are_kept_apart():
    space = Box(np.array([-0.0, 0.0], np.float32), np.ones(2, np.float32))
    assert bits(space_from(space_record(space))) == bits(space)


def test_what_cannot_be_stored_or_read_is_refused():
    with pytest.raises(Refused, match="a Text space can't be stored"):
        space_record(Dict(text=gym.spaces.Text(5)))
    with pytest.raises(Refused, match="Graph is unknown"):
        space_from({"kind": "Graph"})
