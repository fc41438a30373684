"""What several networks are built of: activations, and linear layers one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill.models.config import ActivationName

ACTIVATIONS: dict[ActivationName, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": F.relu,
    "silu": F.silu,
    "elu": F.elu,
}


class MLP(nn.Module):
    """Linear layers with an activation after each; without layers it returns its input."""

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
