"""The one place where gradients become steps: zero, backward, reduce, clip, step."""

from __future__ import annotations

import torch

from rollmill.algorithms.recipe import OptimizerSettings


class FlatOptimizer:
    """Adam or RMSprop over one flat buffer that all parameters are views of.

    A small network has a dozen small tensors; clipping and stepping them one by one costs more than the arithmetic.
    Laid out in one buffer, zeroing, the norm, clipping and the step are one operation each, and so is an all-reduce.
    """

    def __init__(self, network: torch.nn.Module, settings: OptimizerSettings) -> None:
        parameters = [p for p in network.parameters() if p.requires_grad]
        self._flat = torch.nn.Parameter(torch.cat([_dense(p) for p in parameters]))
        self._gradient = torch.zeros_like(self._flat.data)
        self._flat.grad = self._gradient
        self._max_norm = settings.max_grad_norm
        offset = 0
        for p in parameters:
            p.data, p.grad = (_view_like(p, buffer, offset) for buffer in (self._flat.data, self._gradient))
            offset += p.numel()
        self._optimizer = _make(settings, self._flat)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the following steps."""
        self._optimizer.param_groups[0]["lr"] = rate

    def step(self, loss: torch.Tensor) -> torch.Tensor:
        """Zero, back-propagate, clip, step; the gradient's norm before clipping."""
        self._gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]
        return self._descend()

    def accumulate(self, loss: torch.Tensor) -> None:
        """Back-propagate only; gradients add up until `apply`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def apply(self) -> torch.Tensor:
        """Clip and step with what was accumulated, then zero; the gradient's norm before clipping."""
        norm = self._descend()
        self._gradient.zero_()
        return norm

    def _descend(self) -> torch.Tensor:
        norm: torch.Tensor = torch.linalg.vector_norm(self._gradient)
        if self._max_norm is not None:
            self._gradient.mul_((self._max_norm / (norm + 1e-6)).clamp(max=1.0))
        self._optimizer.step()
        return norm


def _dense(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The numbers in the order in which they lie in memory, channels-last weights included."""
    data = parameter.data
    return torch.as_strided(data, (data.numel(),), (1,), data.storage_offset()).clone()


def _view_like(parameter: torch.nn.Parameter, buffer: torch.Tensor, offset: int) -> torch.Tensor:
    """The part of `buffer` at `offset` with the shape and strides of `parameter`."""
    return buffer.as_strided(parameter.shape, parameter.stride(), offset)


def _make(settings: OptimizerSettings, flat: torch.nn.Parameter) -> torch.optim.Optimizer:
    if settings.kind == "rmsprop":
        return torch.optim.RMSprop([flat], lr=settings.learning_rate, eps=settings.epsilon, alpha=0.99)
    return torch.optim.Adam([flat], lr=settings.learning_rate, eps=settings.epsilon, fused=True)
