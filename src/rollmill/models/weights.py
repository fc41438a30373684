"""The weights of a network as named arrays, their hash, and loading a published version."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rollmill.errors import Refused
from rollmill.types import Array, ArraySpec

_RETURNS, _REWARDS = "return_statistics.", "reward_statistics."  # buffers of the networks of some algorithms


def weights_of(network: torch.nn.Module) -> dict[str, Array]:
    """Every parameter and buffer by name; views where they live on the CPU."""
    return arrays_of(network.state_dict())


def arrays_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, Array]:
    """Named tensors as arrays; views where they live on the CPU."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def weights_spec(tensors: Mapping[str, torch.Tensor]) -> dict[str, ArraySpec]:
    """The layout of named tensors."""
    return {name: ArraySpec(array.shape, array.dtype.name) for name, array in arrays_of(tensors).items()}


def parameters_sha256(weights: dict[str, Array]) -> str:
    """Hash over name, shape, dtype and bytes of all parameters and buffers, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        array = weights[name]
        digest.update(f"{name}|{tuple(array.shape)}|{array.dtype.name}|".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def load_weights(network: torch.nn.Module, weights: Mapping[str, Array]) -> None:
    """Replace the weights in place; Refused if they are another network's."""
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in weights.items()}
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise Refused(f"the weights don't fit the network of this config: {reason}") from error


def in_units_of_rewards(weights: Mapping[str, Array], fresh: Mapping[str, Array]) -> dict[str, Array]:
    """Weights for another network, which has statistics of its own (those of `fresh`) or none.

    What the value head learned in units of the old statistics is put into its own weights.
    """
    kept = {name: array for name, array in weights.items() if not name.startswith((_RETURNS, _REWARDS))}
    for prefix in (_RETURNS, _REWARDS):
        if weights.get(f"{prefix}count", 0) > 0 and "value.weight" in kept:
            deviation = np.sqrt(weights[f"{prefix}var"] + 1e-8)
            mean = weights[f"{prefix}mean"] if prefix == _RETURNS else 0.0  # rewards are divided, not shifted
            kept["value.weight"] = (kept["value.weight"] * deviation).astype(np.float32)
            kept["value.bias"] = (kept["value.bias"] * deviation + mean).astype(np.float32)
    return kept | {name: array for name, array in fresh.items() if name.startswith((_RETURNS, _REWARDS))}


class WeightsLoader:
    """Brings a published version into the tensors of a model (`Model.published`)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors
        self._arrays: dict[str, Any] = arrays_of(tensors)
        # On the CPU the arrays are views of the tensors, so that reading a version is one copy.
        self._is_view = all(tensor.device.type == "cpu" for tensor in self._tensors.values())
        self.version = -1

    def load(self, cell: Any, version: int) -> bool:
        """Make the tensors hold exactly `version`; False while the cell doesn't have it."""
        if version == self.version:
            return True
        self.version = -1  # a read that fails may have torn what was there
        if not cell.read_into(version, self._arrays):
            return False
        if not self._is_view:
            for name, tensor in self._tensors.items():
                tensor.copy_(torch.from_numpy(self._arrays[name]))
        self.version = version
        return True
