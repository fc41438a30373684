"""Small networks without torch: the decisions of a twin MLP for a few rows, in numpy.

Deciding for 8 environments is 10 µs of arithmetic; torch needs as much again for each of its dozen calls. Only acting
uses it, and only where the network is small enough that the product of matrices stays on one thread: then the
numbers are the same in every process. Learning, larger batches and all other networks use torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from rollmill.models.distributions import Categorical
from rollmill.models.encoders import TwinEncoder
from rollmill.models.network import Network
from rollmill.types import Array

LARGEST_PRODUCT = 2**17  # multiplications in one product of matrices; BLAS takes more threads from twice that on


def _relu(x: Array, out: Array) -> Array:
    return np.maximum(x, 0, out=out)


_ACTIVATIONS: dict[Any, Callable[..., Array]] = {torch.tanh: np.tanh, torch.nn.functional.relu: _relu}


class PlainNetwork:
    """Works on the memory of the network's own parameters, so it always has the weights that were loaded last."""

    def __init__(self, network: Network, rows: int) -> None:
        encoder, value = network.encoder, network.value
        assert isinstance(encoder, TwinEncoder)
        assert value is not None
        self._layers = [
            (_array(layer.weight), _array(layer.bias), np.zeros((2, rows, layer.outputs), np.float32))
            for layer in encoder.twin.linears()
        ]
        self._activation = _ACTIVATIONS[encoder.twin.activation]
        self._policy = _array(network.policy.weight).T, _array(network.policy.bias)
        self._value = _array(value.weight)[0], _array(value.bias)
        self._rows = np.arange(rows)

    def decide(self, obs: Array, noise: Array | None) -> tuple[Array, Array, Array]:
        """Action, its log-probability and the value of observations [K, …]; without noise, greedily."""
        x = obs
        for weight, bias, out in self._layers:
            x = np.matmul(x, weight, out=out)
            x += bias
            x = self._activation(x, out=x)
        weight, bias = self._policy
        logits = x[0] @ weight
        logits += bias
        value_weight, value_bias = self._value
        value = x[1] @ value_weight
        value += value_bias
        action = (logits if noise is None else logits + noise).argmax(-1)
        logits -= logits.max(-1, keepdims=True)
        log_prob = logits[self._rows, action] - np.log(np.exp(logits).sum(-1))
        return action, log_prob, value


def plain_network(network: Network, rows: int) -> PlainNetwork | None:
    """The network without torch, where that is possible and pays."""
    encoder = network.encoder
    if (
        not isinstance(encoder, TwinEncoder)
        or encoder.reader is not None
        or not encoder.twin.linears()
        or encoder.twin.activation not in _ACTIVATIONS
        or network.normaliser is not None
        or not isinstance(network.distribution, Categorical)
        or next(network.parameters()).device.type != "cpu"
        or rows * _largest_layer(network, encoder) > LARGEST_PRODUCT
    ):
        return None
    return PlainNetwork(network, rows)


def _largest_layer(network: Network, encoder: TwinEncoder) -> int:
    hidden = [layer.inputs * layer.outputs for layer in encoder.twin.linears()]
    return max(*hidden, network.policy.weight.numel())


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().numpy()
    return array
