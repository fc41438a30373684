"""Stacking frames and reading images agree on which axis holds the channels."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

from rollmill.envs.preprocessing import stack_space
from rollmill.models.inputs import image_layout


@pytest.mark.parametrize(
    ("shape", "stacked", "channels"),
    [((64, 64, 3), 4, 12), ((3, 64, 64), 4, 12), ((84, 84), 4, 4), ((84, 84, 2), 1, 2), ((64, 64, 9), 1, 9)],
)
def test_stacked_frames_are_channels(shape, stacked, channels):
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    layout = image_layout(space if stacked == 1 else stack_space(space, stacked))
    assert layout is not None
    assert layout.channels == channels
    assert {layout.height, layout.width} == {max(shape)}
