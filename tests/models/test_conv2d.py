"""Our convolution against torch's: the same forward, and gradients equal but for rounding."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rollmill.models import conv2d as module


@pytest.mark.parametrize("stride", [(1, 1), (2, 2), (2, 1)])
@pytest.mark.parametrize("has_gradient_of_input", [True, False])
def test_gradients_are_those_of_torch(stride, has_gradient_of_input):
    torch.manual_seed(0)
    x = torch.randn(5, 32, 8, 11).contiguous(memory_format=torch.channels_last).requires_grad_(has_gradient_of_input)
    weight = torch.randn(7, 32, 3, 3).contiguous(memory_format=torch.channels_last).requires_grad_()
    bias = torch.randn(7, requires_grad=True)
    ours, theirs = module.conv2d(x, weight, bias, stride), F.conv2d(x, weight, bias, stride)
    assert "_Convolution" in type(ours.grad_fn).__name__, "this shape takes our way"
    assert torch.equal(ours, theirs)
    upstream = torch.randn(theirs.shape)  # not channels-last, as what comes back from a linear layer
    wanted = [x, weight, bias] if has_gradient_of_input else [weight, bias]
    for a, b in zip(
        torch.autograd.grad(ours, wanted, upstream), torch.autograd.grad(theirs, wanted, upstream), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)


def test_other_shapes_and_decisions_take_torchs_way():
    x = torch.randn(2, 32, 8, 8).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(4, 32, 3, 3, requires_grad=True), torch.zeros(4)
    with torch.no_grad():
        assert torch.equal(module.conv2d(x, weight, bias, (1, 1)), F.conv2d(x, weight, bias))
    few = module.conv2d(x[:, :8], torch.randn(4, 8, 3, 3, requires_grad=True), bias, (1, 1))
    assert "_Convolution" not in type(few.grad_fn).__name__
