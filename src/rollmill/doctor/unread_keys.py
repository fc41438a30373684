"""Keys of the `model` section that nothing reads with the spaces of an environment."""

from __future__ import annotations

from typing import Any

import gymnasium as gym

from rollmill import nested
from rollmill.config.base import shown
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.inputs import image_layout, leaf_spaces
from rollmill.models.network import Network
from rollmill.models.torsos import choose_torso


def refuse_unread(
    model: ModelConfig, network: Network, observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    """Refuse keys that have no effect with these spaces; the config itself refuses the others."""
    if model.is_custom:
        return
    torso, default = choose_torso(observation_space, model.torso, bool(model.conv)), ModelConfig()
    sees_rows, is_published = torso == "mlp", torso in ("nature_cnn", "small_cnn")
    leaves = [leaf for _, leaf in nested.leaves(leaf_spaces(observation_space))]
    layouts = [] if sees_rows else [layout for leaf in leaves if (layout := image_layout(leaf)) is not None]
    has_no_image, has_bytes = not layouts, any(layout.is_bytes for layout in layouts)
    for key, is_unread, why in (
        ("features", has_no_image, "the observation is not an image; set model.hidden instead"),
        ("hidden", is_published or torso == "cnn", "the observation is an image; set model.features instead"),
        ("activation", is_published, "the observation is an image, and its torso has ReLUs"),
        ("normalise_images", not has_bytes, "there is no uint8 image"),
        ("conv", has_no_image, "the observation is not an image; set model.hidden instead"),
        ("vector_hidden", torso != "merged", "the observation is not a dict; set model.hidden instead"),
        ("initial_log_std", not isinstance(action_space, gym.spaces.Box), "the actions are discrete"),
        ("rescale_actions", not isinstance(action_space, gym.spaces.Box), "the actions are discrete"),
        ("shared", network.value is None, "this algorithm has no value function"),
    ):
        if is_unread and getattr(model, key) != getattr(default, key):
            raise Refused(f"model.{key}={shown(getattr(model, key))} is not read: {why}, or remove it")
