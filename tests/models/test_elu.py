"""The compiled exponential linear unit against torch's, and the same bits at every place."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from rollmill.models.elu import elu_

pytest.importorskip("numba")


def test_it_is_as_exact_as_single_precision_allows():
    x = torch.linspace(-30, 5, 1_000_001)
    exact = F.elu(x.double())
    error = (elu_(x.clone()).double() - exact).abs()
    assert error.max() < 6e-8
    assert (error / exact.abs().clamp_min(1e-30)).max() < 1.2e-7, "also near zero"


def test_nan_stays_nan_and_infinite_values_have_their_limits():
    odd = torch.tensor([float("nan"), float("-inf"), float("inf"), 0.0] + [1.0] * 20)
    assert elu_(odd)[1:4].tolist() == [-1.0, float("inf"), 0.0]
    assert odd[0].isnan()


def test_a_number_has_the_same_result_at_every_place():
    x = torch.randn(4000) * 3
    whole = elu_(x.clone())
    for begin in range(1, 20):
        part = slice(begin, 1000 + 3 * begin)
        assert torch.equal(elu_(x[part].clone()), whole[part])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_gradients_are_those_of_torch(layout):
    torch.manual_seed(0)
    x = torch.randn(4, 3, 5, 7).contiguous(memory_format=layout).requires_grad_()
    ours, theirs = elu_(x * 2), F.elu(x * 2)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    upstream = torch.randn(4, 3, 5, 7)  # of another layout than the result may have
    for a, b in zip(torch.autograd.grad(ours, x, upstream), torch.autograd.grad(theirs, x, upstream), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
