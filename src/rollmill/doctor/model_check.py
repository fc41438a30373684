"""The model before training: settings that have no effect and networks that can't learn are refused."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import gymnasium as gym
import torch

from rollmill import nested
from rollmill.config.base import shown
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.custom import described, guarded, sample_observations
from rollmill.models.initialise import reproducible
from rollmill.models.inputs import image_layout, leaf_spaces
from rollmill.models.network import Network, NetworkOutput
from rollmill.models.torsos import choose_torso
from rollmill.spaces import action_spec

_STEPS, _BATCH = 3, 4
_NAMED = 3  # parameters that a refusal lists


def check_network(network: Network, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> None:
    """Refuse a network whose outputs don't fit the spaces or whose parameters the loss doesn't reach.

    It works on a copy with a generator of its own, so that the check doesn't change the training. A gradient
    may well be zero at the start (a zero last layer makes it so): what counts is that there is one.
    """
    with reproducible(seed=0):
        _check_dtypes(network)
        trial = deepcopy(network).train()
        device = next(trial.parameters()).device
        obs = nested.map_leaves(
            lambda leaf: leaf.to(device), sample_observations(observation_space, _STEPS, _BATCH, seed=0)
        )
        reset = torch.zeros(_STEPS, _BATCH, dtype=torch.bool, device=device)
        reset[0] = reset[1, 0] = True
        state = trial.initial_state(_BATCH)
        output: NetworkOutput = guarded(network.setting, "forward()", lambda: trial(obs, state, reset))
        _check_output(network, output, state)
        _check_gradients(trial, output, action_space)


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


def _check_dtypes(network: Network) -> None:
    for name, parameter in network.named_parameters():
        if parameter.dtype != torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            raise Refused(f"{network.setting}: parameter '{_user_name(name)}' is {dtype}; make it float32")


def _check_output(network: Network, output: NetworkOutput, state: nested.Nested) -> None:
    wanted = (_STEPS, _BATCH, network.distribution.parameter_count)
    if output.params.shape != wanted or output.params.dtype != torch.float32:
        raise Refused(
            f"{network.setting}: the policy head gives {described(output.params)}; the action space needs "
            f"float32 {list(wanted)}"
        )
    before, after = ({path: described(leaf) for path, leaf in nested.leaves(s)} for s in (state, output.state))
    if before != after:
        raise Refused(f"{network.setting}: forward() turns the state {before} into {after}; keep its layout")
    outputs = {"policy": output.params, "value": output.value, **dict(nested.leaves(output.state, "state"))}
    for name, tensor in outputs.items():
        if tensor is not None and not torch.isfinite(tensor).all():
            remedy = "set model.normalise_observations, or bound what forward() computes"
            raise Refused(f"{network.setting}: {name} is not finite for sampled observations; {remedy}")


def _check_gradients(trial: Network, output: NetworkOutput, action_space: gym.Space[Any]) -> None:
    spec = action_spec(action_space)
    action = torch.zeros(_STEPS, _BATCH, *spec.shape, dtype=getattr(torch, spec.dtype), device=output.params.device)
    log_prob, entropy = trial.distribution.log_prob_and_entropy(output.params, action)
    loss = log_prob.mean() + entropy.mean()
    if output.value is not None:
        loss = loss + output.value.mean()
    guarded(trial.setting, "the backward pass", loss.backward)
    missed = [_user_name(name) for name, p in trial.named_parameters() if p.requires_grad and p.grad is None]
    if missed:
        names = ", ".join(f"'{name}'" for name in missed[:_NAMED])
        more = f" and {len(missed) - _NAMED} more" if len(missed) > _NAMED else ""
        raise Refused(
            f"{trial.setting}: parameters {names}{more} are not reached by the loss; "
            "use them in forward() or remove them"
        )


def _user_name(name: str) -> str:
    """A parameter as the author of a custom model knows it."""
    return name.removeprefix("encoder.module.")
