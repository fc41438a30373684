"""What one leaf of an observation is to a network: an image, or a row of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rollmill import nested
from rollmill.errors import Refused
from rollmill.nested import Nested
from rollmill.spaces import is_channel_last, observation_leaf_space

BYTE_SCALE = 1 / 255  # uint8 observations become 0 to 1
SMALLEST_IMAGE = 8  # pixels on the shorter side; what is smaller is a table, not a picture


class ImageLayout(NamedTuple):
    """How the axes of an image are to be read."""

    channels: int
    height: int
    width: int
    is_channel_last: bool
    is_bytes: bool

    def planes(self, x: Tensor) -> Tensor:
        """[N, *shape] of any type → float32 [N, C, H, W], channels last in memory and not yet scaled.

        Convolutions train faster on channels-last tensors (the Nature CNN by 14–20 % on one thread at batch 256). Bytes
        are put in order before they become floats, when a quarter of the memory has to move.
        """
        if x.ndim == 3:
            x = x.unsqueeze(1)
        elif self.is_channel_last:
            x = x.permute(0, 3, 1, 2)
        return _channels_last(x).float()

    def arrange(self, x: Tensor) -> Tensor:
        """The same images [N, *shape], laid out in memory so that `planes` has nothing left to put in order."""
        is_channel_first = x.ndim == 4 and not self.is_channel_last
        return _channels_last(x) if is_channel_first else x


def _channels_last(x: Tensor) -> Tensor:
    """Images [N, C, H, W] with their channels last in memory.

    Plane by plane: for four stacked frames of bytes that takes half (256 images) to two thirds (8) of torch's time.
    """
    if x.is_contiguous(memory_format=torch.channels_last):
        return x
    count, channels, height, width = x.shape
    arranged = x.new_empty(count, height, width, channels)
    for channel in range(channels):
        arranged[..., channel] = x[:, channel]
    return arranged.permute(0, 3, 1, 2)


def image_layout(space: gym.Space[Any]) -> ImageLayout | None:
    """The layout of an image space: [H, W], [C, H, W] or [H, W, C]; None if the space holds no images.

    With three axes the shorter of the first and the last counts the channels.
    """
    if not isinstance(space, gym.spaces.Box) or len(space.shape) not in (2, 3):
        return None
    shape = space.shape
    if len(shape) == 2:
        channels, height, width = 1, *shape
    elif is_channel_last(shape):
        height, width, channels = shape
    else:
        channels, height, width = shape
    if min(height, width) < SMALLEST_IMAGE:
        return None
    return ImageLayout(channels, height, width, is_channel_last(shape), space.dtype == np.uint8)


class Numbers(nn.Module):
    """A Box or MultiBinary leaf as one row of floats; bytes are scaled to 0–1."""

    def __init__(self, shape: tuple[int, ...], is_bytes: bool) -> None:
        super().__init__()
        self.out_features = math.prod(shape)
        self._is_bytes = is_bytes

    def forward(self, x: Tensor) -> Tensor:
        """[N, *shape] → [N, out_features]."""
        if x.ndim != 2:
            x = x.reshape(x.shape[0], -1)
        if x.dtype != torch.float32:
            x = x.float()
        return x * BYTE_SCALE if self._is_bytes else x


class OneHot(nn.Module):
    """A Discrete or MultiDiscrete leaf, one-hot."""

    values: Tensor
    part: Tensor

    def __init__(self, sizes: tuple[int, ...], starts: tuple[int, ...]) -> None:
        super().__init__()
        self.out_features = sum(sizes)
        # constants of the space: not weights, so neither saved nor published
        values = [start + i for size, start in zip(sizes, starts, strict=True) for i in range(size)]
        part = [index for index, size in enumerate(sizes) for _ in range(size)]
        self.register_buffer("values", torch.tensor(values), persistent=False)
        self.register_buffer("part", torch.tensor(part), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """[N] or [N, parts…] → [N, out_features]."""
        return (x.reshape(x.shape[0], -1)[:, self.part] == self.values).float()


def row_input(space: gym.Space[Any], where: str) -> Numbers | OneHot:
    """The reader of a leaf as a row of numbers."""
    if isinstance(space, gym.spaces.Discrete):
        return OneHot((int(space.n),), (int(space.start),))
    if isinstance(space, gym.spaces.MultiDiscrete):
        return OneHot(tuple(space.nvec.flatten().tolist()), tuple(space.start.flatten().tolist()))
    if isinstance(space, gym.spaces.Box | gym.spaces.MultiBinary):
        return Numbers(tuple(space.shape), space.dtype == np.uint8 and isinstance(space, gym.spaces.Box))
    raise Refused(f"{where}: a {type(space).__name__} space can't be read by a network; wrap the environment")


class Rows(nn.Module):
    """All leaves of a dict as one row of numbers, in path order."""

    def __init__(self, readers: Sequence[Numbers | OneHot]) -> None:
        super().__init__()
        # numbered and not named: a key of the environment may not be a valid name of a submodule
        self.readers = nn.ModuleList(readers)
        self.out_features = sum(reader.out_features for reader in readers)

    def forward(self, obs: Nested) -> Tensor:
        """{…: [N, …]} → [N, out_features]."""
        rows = [reader(leaf) for reader, (_, leaf) in zip(self.readers, nested.leaves(obs), strict=True)]
        return torch.cat(rows, -1)


def flat_input(space: gym.Space[Any]) -> Numbers | OneHot | Rows:
    """The reader of a whole observation as one row of numbers, images among them."""
    leaves = leaf_spaces(space)
    if not isinstance(leaves, dict):
        return row_input(space, "observation")
    return Rows([row_input(leaf, f"observation.{path}") for path, leaf in nested.leaves(leaves)])


def leaf_spaces(space: gym.Space[Any]) -> Nested:
    """The spaces of the leaves, nested like the observation."""
    children = observation_leaf_space(space)
    return {key: leaf_spaces(child) for key, child in children.items()} if isinstance(children, dict) else children


def is_row_of_floats(space: gym.Space[Any]) -> bool:
    """A leaf that needs no reader; float64 counts, because it is stored as float32."""
    return isinstance(space, gym.spaces.Box) and len(space.shape) == 1 and space.dtype in (np.float32, np.float64)
