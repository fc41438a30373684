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
from rollmill.models.config import ActivationName, ModelConfig, PaddingName
from rollmill.models.conv2d import conv2d
from rollmill.models.inputs import BYTE_SCALE, ImageLayout
from rollmill.models.layers import ACTIVATIONS
from rollmill.models.normaliser import RunningStatistics

_IN_PLACE: dict[ActivationName, Callable[[Tensor], Tensor]] = {"relu": F.relu_, "tanh": torch.tanh_}
_MOST_OBSERVED = 32  # images per update that the statistics are computed from: a hundred thousand pixels are enough
Margins = tuple[int, int, int, int]  # zeros to the left, to the right, above and below, as `F.pad` counts them


class CNN(nn.Module):
    """Convolutions and one linear layer, each followed by an activation; without `features` no linear layer."""

    def __init__(
        self,
        layout: ImageLayout,
        convolutions: Sequence[nn.Conv2d],
        features: int | None,
        activation: ActivationName = "relu",
        padding: PaddingName = "valid",
        is_normalised: bool = False,
    ) -> None:
        super().__init__()
        self._layout = layout
        # of the channels of bytes; before they have seen anything, they read 0–255 as 0–1
        self.statistics = RunningStatistics((layout.channels,), 1 / BYTE_SCALE) if is_normalised else None
        self.convolutions = nn.ModuleList(convolutions)
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        # in place: saves memory, and ELU's backward pass then uses the result, without another exponential
        self._activation = _in_place(activation)
        height, width = layout.height, layout.width
        self._margins: list[Margins | None] = []
        for convolution in convolutions:
            (size, _), (stride, _) = convolution.kernel_size, convolution.stride
            if padding == "same":
                margins = (*same_margins(width, size, stride), *same_margins(height, size, stride))
                height, width = math.ceil(height / stride), math.ceil(width / stride)
            else:
                margins = (0, 0, 0, 0)
                height, width = (height - size) // stride + 1, (width - size) // stride + 1
            self._margins.append(margins if any(margins) else None)
        flat = convolutions[-1].out_channels * height * width
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


class NatureCNN(CNN):
    """The network of Mnih et al. (2015)."""

    def __init__(self, layout: ImageLayout, features: int | None, is_normalised: bool = False) -> None:
        layers = (nn.Conv2d(layout.channels, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1))
        super().__init__(layout, layers, features, is_normalised=is_normalised)


class SmallCNN(CNN):
    """For images of about 10 to 35 pixels on a side."""

    def __init__(self, layout: ImageLayout, features: int | None, is_normalised: bool = False) -> None:
        stride = 2 if min(layout.height, layout.width) >= 20 else 1  # keep every pixel of the smallest
        layers = (nn.Conv2d(layout.channels, 16, 3, stride), nn.Conv2d(16, 32, 3, 2))
        super().__init__(layout, layers, features, is_normalised=is_normalised)


class ListedCNN(CNN):
    """What `model.conv` lists."""

    def __init__(self, layout: ImageLayout, config: ModelConfig, is_normalised: bool = False) -> None:
        if config.padding == "valid":
            _refuse_too_small(layout, config)
        channels = (layout.channels, *(filters for filters, _, _ in config.conv))
        layers = [
            nn.Conv2d(inputs, filters, size, stride)
            for inputs, (filters, size, stride) in zip(channels[:-1], config.conv, strict=True)
        ]
        super().__init__(layout, layers, config.features, config.activation, config.padding, is_normalised)


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


def _refuse_too_small(layout: ImageLayout, config: ModelConfig) -> None:
    """Refuse convolutions that an image has no room for."""
    height, width = layout.height, layout.width
    for number, (_, size, stride) in enumerate(config.conv, 1):
        if size > min(height, width):
            raise Refused(
                f"model.conv={shown(config.conv)}: the kernel of {size} in layer {number} is larger than the "
                f"{height} × {width} that are left; set model.padding=same or use smaller kernels or strides"
            )
        height, width = (height - size) // stride + 1, (width - size) // stride + 1
