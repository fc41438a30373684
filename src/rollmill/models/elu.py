"""The exponential linear unit, in the place of its argument: x where x > 0, otherwise eˣ - 1.

Torch's takes a careful exponential and 2.5 ns a number on one thread, 13 % of an update of Sample Factory's network for
Doom. Compiled, with a polynomial that is as exact in single precision, it takes half of that.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional as F

from rollmill.native import compiled

# eᵐ = 2ᵏ eʳ with |r| ≤ ln 2 / 2: ln 2 in two parts, and the polynomial of eʳ - 1 (Moshier's Cephes, expf)
_LOG2E, _LN2_HIGH, _LN2_LOW = np.float32(1.44269504), np.float32(0.693359375), np.float32(-2.12194440e-4)
_C2, _C3, _C4 = np.float32(5.0000001201e-1), np.float32(1.6666665459e-1), np.float32(4.1665795894e-2)
_C5, _C6, _C7 = np.float32(8.3334519073e-3), np.float32(1.3981999507e-3), np.float32(1.9875691500e-4)
_ZERO, _ONE = np.float32(0), np.float32(1)
_IS_COMPILED = find_spec("numba") is not None
_LEAST = np.float32(-17.5)  # from there on eˣ - 1 is -1


def elu_(x: Tensor) -> Tensor:
    """Change x, which may have any dense layout, and return it."""
    if x.device.type != "cpu" or x.dtype != torch.float32 or not _IS_COMPILED:
        return F.elu_(x)
    if torch.is_grad_enabled() and x.requires_grad:
        changed: Tensor = _Elu.apply(x)  # type: ignore[no-untyped-call]
        return changed
    _apply(x)
    return x


class _Elu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        _apply(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (result,) = ctx.saved_tensors
        slopes: Tensor = torch.ops.aten.elu_backward(gradients[0], 1.0, 1.0, 1.0, True, result)
        return slopes


def _apply(x: Tensor) -> None:
    """Number by number, in the order of memory."""
    _change(x.detach().as_strided((x.numel(),), (1,)).numpy())


def _change_each(numbers: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    for i in range(numbers.size):
        x = numbers[i]
        m = max(min(x, _ZERO), _LEAST)
        k = np.rint(m * _LOG2E)
        r = (m - k * _LN2_HIGH) - k * _LN2_LOW
        p = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
        p = p * r * r + r
        scale = np.int32((np.int32(k) + np.int32(127)) << np.int32(23)).view(np.float32)  # 2ᵏ, by its bits
        numbers[i] = x if x > _ZERO else scale * p + (scale - _ONE)


_change = compiled(_change_each, is_fused=True)
