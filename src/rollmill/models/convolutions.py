"""From images to features: published networks, and convolutions as the config lists them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill.config.base import shown
from rollmill.errors import Refused
from rollmill.models.config import ActivationName, Convolution, ModelConfig, PaddingName, TorsoName
from rollmill.models.conv2d import conv2d
from rollmill.models.inputs import BYTE_SCALE, ImageLayout
from rollmill.models.layers import ACTIVATIONS
from rollmill.models.normaliser import RunningStatistics

_IN_PLACE: dict[ActivationName, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "tanh": torch.tanh_}
NATURE_CNN: tuple[Convolution, ...] = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # Mnih et al. (2015)
_MOST_OBSERVED = 32  # images per update that the statistics are computed from: a hundred thousand pixels are enough
Margins = tuple[int, int, int, int]  # zeros to the left, to the right, above and below, as `F.pad` counts them


class CNN(nn.Module):
    """Convolutions and one linear layer, each followed by an activation; without `features` no linear layer."""

    def __init__(
        self,
        layout: ImageLayout,
        listed: Sequence[Convolution],
        features: int | None,
        activation: ActivationName = "relu",
        padding: PaddingName = "valid",
        is_normalised: bool = False,
    ) -> None:
        super().__init__()
        self._layout = layout
        # of the channels of bytes; before they have seen anything, they read 0–255 as 0–1
        self.statistics = RunningStatistics((layout.channels,), 1 / BYTE_SCALE) if is_normalised else None
        channels = (layout.channels, *(filters for filters, _, _ in listed))
        self.convolutions = nn.ModuleList(
            nn.Conv2d(inputs, filters, size, stride)
            for inputs, (filters, size, stride) in zip(channels[:-1], listed, strict=True)
        )
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        # in place: saves memory, and ELU's backward pass then uses the result, without another exponential
        self._activation = _in_place(activation)
        height, width = layout.height, layout.width
        self._margins: list[Margins | None] = []
        for number, (_, size, stride) in enumerate(listed, 1):
            if padding == "same":
                margins = (*same_margins(width, size, stride), *same_margins(height, size, stride))
                height, width = math.ceil(height / stride), math.ceil(width / stride)
            elif size > min(height, width):
                raise Refused(
                    f"model.conv={shown(listed)}: the kernel of {size} in layer {number} is larger than the "
                    f"{height} × {width} that are left; set model.padding=same or use smaller kernels or strides"
                )
            else:
                margins = (0, 0, 0, 0)
                height, width = (height - size) // stride + 1, (width - size) // stride + 1
            self._margins.append(margins if any(margins) else None)
        flat = channels[-1] * height * width
        self.linear = None if features is None else nn.Linear(flat, features)
        self.out_features = flat if features is None else features

    def arrange(self, x: Tensor) -> Tensor:
        """The same images in the memory format that convolutions read."""
        return self._layout.arrange(x)

    def observe(self, x: Tensor) -> None:
        """Update the statistics, if there are any, with an evenly spaced sample of images [N, *shape]."""
        if self.statistics is not None and len(x):
            planes = self._layout.planes(x[:: -(-len(x) // _MOST_OBSERVED)])
            self.statistics.update(planes.permute(0, 2, 3, 1).flatten(0, 2).unsqueeze(0))

    def forward(self, x: Tensor) -> Tensor:
        """Features of images [N, *shape]."""
        x = self._layout.planes(x)
        convolution: Any
        for index, (convolution, margins) in enumerate(zip(self.convolutions, self._margins, strict=True)):
            weight, bias = convolution.weight, convolution.bias
            if index == 0 and self._layout.is_bytes:
                weight, bias = self._for_bytes(weight, bias)
            if margins is not None:
                x = F.pad(x, margins)
            x = self._activation(conv2d(x, weight, bias, convolution.stride))
        x = x.flatten(1)
        linear = self.linear
        return x if linear is None else self._activation(linear(x))

    def _for_bytes(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the first layer, folded with the scaling so that they take raw bytes.

        Scaling and shifting these few numbers saves a pass over the whole batch of pixels.
        """
        statistics = self.statistics
        if statistics is None:
            return weight * BYTE_SCALE, bias
        scaled = weight / statistics.deviation.float().view(1, -1, 1, 1)
        return scaled, bias - (scaled * statistics.mean.float().view(1, -1, 1, 1)).sum((1, 2, 3))


def build_cnn(kind: TorsoName, layout: ImageLayout, config: ModelConfig) -> CNN:
    """The torso `nature_cnn`, `small_cnn` (for images of about 10 to 35 pixels on a side) or `cnn`, as it is listed."""
    is_normalised = config.normalise_images and layout.is_bytes
    if kind == "cnn":
        return CNN(layout, config.conv, config.features, config.activation, config.padding, is_normalised)
    stride = 2 if min(layout.height, layout.width) >= 20 else 1  # keep every pixel of the smallest
    listed = NATURE_CNN if kind == "nature_cnn" else ((16, 3, stride), (32, 3, 2))
    return CNN(layout, listed, config.features, is_normalised=is_normalised)


def _in_place(activation: ActivationName) -> Callable[[Tensor], Tensor]:
    if activation == "elu":
        from rollmill.models.elu import elu_  # loads numba

        return elu_
    return _IN_PLACE.get(activation, ACTIVATIONS[activation])


def same_margins(length: int, size: int, stride: int) -> tuple[int, int]:
    """Zeros before and after an axis so that ⌈length / stride⌉ steps of a kernel fit, as TensorFlow's SAME has it.

    An odd number of them leaves the smaller half before.
    """
    steps = math.ceil(length / stride)
    total = max((steps - 1) * stride + size - length, 0)
    return total // 2, total - total // 2
