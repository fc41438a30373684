"""From an observation to features: [N, …] → [N, out_features], time and batch being one axis N here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill import nested
from rollmill.errors import Refused
from rollmill.models.config import ActivationName, ModelConfig, TorsoName
from rollmill.models.inputs import BYTE_SCALE, ImageLayout, Numbers, OneHot, image_layout, row_input
from rollmill.nested import Nested
from rollmill.spaces import observation_leaf_space

ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "silu": F.silu,
    "elu": F.elu,
}
SMALLEST_NATURE_IMAGE = 36  # pixels on a side, below which the Nature CNN's last convolution has nothing left


class MLP(nn.Module):
    """Linear layers with an activation after each; without layers it hands its input on."""

    def __init__(self, inputs: int, hidden: Sequence[int], activation: ActivationName) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.out_features = widths[-1]
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in pairwise(widths))
        self._activation = ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        """[N, inputs] → [N, out_features]."""
        for layer in self.layers:
            x = self._activation(layer(x))
        return x


class RowTorso(nn.Module):
    """An MLP over a single leaf that is read as a row of numbers."""

    def __init__(self, space: gym.Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.reader = row_input(space, "observation")
        self.mlp = MLP(self.reader.out_features, config.hidden, config.activation)
        self.out_features = self.mlp.out_features

    def forward(self, x: Tensor) -> Tensor:
        """Features of a leaf [N, …]."""
        features: Tensor = self.mlp(self.reader(x))
        return features


class CNN(nn.Module):
    """Convolutions and one linear layer, each followed by a rectifier."""

    def __init__(self, layout: ImageLayout, convolutions: Sequence[nn.Conv2d], features: int) -> None:
        super().__init__()
        self.out_features = features
        self._layout = layout
        self.convolutions = nn.ModuleList(convolutions)
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        height, width = layout.height, layout.width
        for convolution in convolutions:
            (size, _), (stride, _) = convolution.kernel_size, convolution.stride
            height, width = (height - size) // stride + 1, (width - size) // stride + 1
        self.linear = nn.Linear(convolutions[-1].out_channels * height * width, features)

    def arrange(self, x: Tensor) -> Tensor:
        """The same images in the order of memory in which convolutions read them."""
        return self._layout.arrange(x)

    def forward(self, x: Tensor) -> Tensor:
        """Features of images [N, *shape]."""
        x = self._layout.planes(x)
        first: Any
        first, *others = self.convolutions
        # Scaling the first layer's few weights saves a pass over the whole batch of pixels.
        weight = first.weight * BYTE_SCALE if self._layout.is_bytes else first.weight
        x = F.relu(F.conv2d(x, weight, first.bias, first.stride), inplace=True)
        for convolution in others:
            x = F.relu(convolution(x), inplace=True)
        return F.relu(self.linear(x.flatten(1)), inplace=True)


class NatureCNN(CNN):
    """The network of Mnih et al. (2015)."""

    def __init__(self, layout: ImageLayout, features: int) -> None:
        layers = (nn.Conv2d(layout.channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
        super().__init__(layout, layers, features)


class SmallCNN(CNN):
    """For images of about 10 to 35 pixels on a side."""

    def __init__(self, layout: ImageLayout, features: int) -> None:
        stride = 2 if min(layout.height, layout.width) >= 20 else 1  # keep every pixel of the smallest
        super().__init__(layout, (nn.Conv2d(layout.channels, 16, 3, stride), nn.Conv2d(16, 32, 3, 2)), features)


class Merged(nn.Module):
    """A dict observation: a reader for every leaf, their features in a row, then an MLP."""

    def __init__(self, space: gym.Space[Any], config: ModelConfig) -> None:
        super().__init__()
        spaces = list(nested.leaves(_leaf_spaces(space)))
        # numbered and not named: a key of the environment may be no valid name for a part of a module
        readers = [_leaf_reader(leaf, config, f"observation.{path}") for path, leaf in spaces]
        self.readers = nn.ModuleList(readers)
        inputs = sum(reader.out_features for reader in readers)
        self.mlp = MLP(inputs, config.hidden, config.activation)
        self.out_features = self.mlp.out_features

    def forward(self, obs: Nested) -> Tensor:
        """Features of the leaves in path order."""
        rows = [reader(leaf) for reader, (_, leaf) in zip(self.readers, nested.leaves(obs), strict=True)]
        merged: Tensor = self.mlp(torch.cat(rows, -1))
        return merged


Torso = RowTorso | NatureCNN | SmallCNN | Merged


def choose_torso(space: gym.Space[Any], wanted: TorsoName) -> TorsoName:
    """What `auto` means for a space; a torso that can't read the space is refused."""
    is_composite, layout = isinstance(observation_leaf_space(space), dict), image_layout(space)
    is_large = layout is not None and min(layout.height, layout.width) >= SMALLEST_NATURE_IMAGE
    if wanted == "auto":
        if is_composite:
            return "merged"
        return "mlp" if layout is None else "nature_cnn" if is_large else "small_cnn"

    fits = {"merged": is_composite, "mlp": not is_composite, "nature_cnn": is_large, "small_cnn": layout is not None}
    if not fits[wanted]:
        raise Refused(
            f"model.torso={wanted} can't read observations of {' '.join(str(space).split())}; "
            f"use {choose_torso(space, 'auto')} or auto"
        )
    return wanted


def build_torso(space: gym.Space[Any], config: ModelConfig) -> Torso:
    """The torso that the config asks for."""
    chosen = choose_torso(space, config.torso)
    if chosen == "merged":
        return Merged(space, config)
    if chosen == "mlp":
        return RowTorso(space, config)
    layout = image_layout(space)
    assert layout is not None  # choose_torso saw to it
    return (NatureCNN if chosen == "nature_cnn" else SmallCNN)(layout, config.features)


def _leaf_reader(space: gym.Space[Any], config: ModelConfig, where: str) -> NatureCNN | SmallCNN | Numbers | OneHot:
    layout = image_layout(space)
    if layout is None:
        return row_input(space, where)
    return (NatureCNN if choose_torso(space, "auto") == "nature_cnn" else SmallCNN)(layout, config.features)


def _leaf_spaces(space: gym.Space[Any]) -> Nested:
    children = observation_leaf_space(space)
    return {key: _leaf_spaces(child) for key, child in children.items()} if isinstance(children, dict) else children
