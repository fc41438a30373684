"""Stacking frames and reading images agree on which axis holds the channels."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

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


@pytest.mark.parametrize("shape", [(4, 12, 10), (12, 10, 3), (12, 10)])
def test_planes_are_the_images_with_channels_last_in_memory(shape):
    layout = image_layout(gym.spaces.Box(0, 255, shape, np.uint8))
    assert layout is not None
    images = torch.from_numpy(np.random.default_rng(0).integers(0, 255, (5, *shape), np.uint8))
    wanted = {4: images, 12: images.permute(0, 3, 1, 2) if len(shape) == 3 else images[:, None]}[shape[0]]
    arranged = layout.arrange(images)
    assert torch.equal(arranged, images)
    for planes in (layout.planes(images), layout.planes(arranged)):
        assert planes.dtype == torch.float32
        assert planes.is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(planes, wanted.float())
