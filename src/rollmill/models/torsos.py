"""From an observation to features: [N, …] → [N, out_features], time and batch being one axis N here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn

from rollmill import nested
from rollmill.config.base import shown
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig, TorsoName
from rollmill.models.convolutions import CNN, build_cnn
from rollmill.models.inputs import Numbers, OneHot, flat_input, image_layout, leaf_spaces, row_input
from rollmill.models.layers import MLP
from rollmill.nested import Nested
from rollmill.spaces import observation_leaf_space

SMALLEST_NATURE_IMAGE = 36  # pixels on a side, below which the Nature CNN's last convolution has nothing left


class RowTorso(nn.Module):
    """An MLP over an observation that is read as a row of numbers."""

    def __init__(self, space: gym.Space[Any], config: ModelConfig) -> None:
        super().__init__()
        self.reader = flat_input(space)
        self.mlp = MLP(self.reader.out_features, config.hidden, config.activation)
        self.out_features = self.mlp.out_features

    def observe(self, obs: Nested) -> None:
        """Nothing: there are no images."""

    def forward(self, obs: Nested) -> Tensor:
        """Features of observations [N, …]."""
        features: Tensor = self.mlp(self.reader(obs))
        return features


class Merged(nn.Module):
    """A dict observation: a reader for every leaf, their features in a row, then an MLP.

    With `vector_hidden` the rows of all leaves that are not images first go through an MLP of their own, and its
    outputs follow the features of the images.
    """

    def __init__(self, space: gym.Space[Any], config: ModelConfig) -> None:
        super().__init__()
        spaces = list(nested.leaves(leaf_spaces(space)))
        # numbered and not named: a key of the environment may not be a valid name of a submodule
        readers = [_leaf_reader(leaf, config, f"observation.{path}") for path, leaf in spaces]
        self.readers = nn.ModuleList(readers)
        self._images = [index for index, reader in enumerate(readers) if isinstance(reader, CNN)]
        self._others = [index for index, reader in enumerate(readers) if not isinstance(reader, CNN)]
        self.vector = None
        inputs = sum(reader.out_features for reader in readers)
        if config.vector_hidden:
            numbers = sum(readers[index].out_features for index in self._others)
            if not numbers:
                setting = f"model.vector_hidden={shown(config.vector_hidden)}"
                raise Refused(f"{setting} is not read: every part of the observation is an image; remove it")
            self.vector = MLP(numbers, config.vector_hidden, config.activation)
            inputs += self.vector.out_features - numbers
        self.mlp = MLP(inputs, config.hidden, config.activation)
        self.out_features = self.mlp.out_features

    def observe(self, obs: Nested) -> None:
        """See `CNN`."""
        for reader, (_, leaf) in zip(self.readers, nested.leaves(obs), strict=True):
            if isinstance(reader, CNN):
                reader.observe(leaf)

    def forward(self, obs: Nested) -> Tensor:
        """Features of the leaves, those of the same kind in path order."""
        parts = [reader(leaf) for reader, (_, leaf) in zip(self.readers, nested.leaves(obs), strict=True)]
        vector = self.vector
        if vector is not None:
            numbers = torch.cat([parts[index] for index in self._others], -1)
            parts = [*(parts[index] for index in self._images), vector(numbers)]
        merged: Tensor = self.mlp(torch.cat(parts, -1))
        return merged


Torso = RowTorso | CNN | Merged


def choose_torso(space: gym.Space[Any], wanted: TorsoName, has_conv: bool = False) -> TorsoName:
    """What `auto` means for a space, with or without `model.conv`; a torso that can't read the space is refused."""
    is_composite, layout = isinstance(observation_leaf_space(space), dict), image_layout(space)
    is_large = layout is not None and min(layout.height, layout.width) >= SMALLEST_NATURE_IMAGE
    if wanted == "auto":
        if is_composite:
            return "merged"
        if layout is None:
            return "mlp"
        return "cnn" if has_conv else "nature_cnn" if is_large else "small_cnn"

    is_image = layout is not None
    fits = {"merged": is_composite, "mlp": True, "nature_cnn": is_large, "small_cnn": is_image, "cnn": is_image}
    if not fits[wanted]:
        raise Refused(
            f"model.torso={wanted} can't read observations of {' '.join(str(space).split())}; "
            f"use {choose_torso(space, 'auto')} or auto"
        )
    return wanted


def build_torso(space: gym.Space[Any], config: ModelConfig) -> Torso:
    """The torso that the config asks for."""
    chosen = choose_torso(space, config.torso, bool(config.conv))
    if chosen == "merged":
        return Merged(space, config)
    if chosen == "mlp":
        return RowTorso(space, config)
    layout = image_layout(space)
    assert layout is not None  # choose_torso saw to it
    return build_cnn(chosen, layout, config)


def _leaf_reader(space: gym.Space[Any], config: ModelConfig, where: str) -> CNN | Numbers | OneHot:
    layout = image_layout(space)
    if layout is None:
        return row_input(space, where)
    return build_cnn(choose_torso(space, "auto", bool(config.conv)), layout, config)
