"""The one place where gradients become steps: zero, backward, reduce, clip, step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np
import torch

from rollmill.algorithms.recipe import OptimizerSettings
from rollmill.models.network import Model
from rollmill.types import Array


def build_optimizers(model: Model, settings_of: Callable[[str], OptimizerSettings]) -> dict[str, FlatOptimizer]:
    """One optimiser per parameter group, with the settings that `settings_of` gives for the group's name."""
    groups = model.parameter_groups()
    listed = [id(parameter) for group in groups.values() for parameter in group]
    for name, parameter in model.named_parameters():
        if listed.count(id(parameter)) != parameter.requires_grad:
            raise ValueError(f"parameter_groups() of {type(model).__name__} must list each parameter once: see {name}")
    is_only = len(groups) == 1
    return {name: FlatOptimizer(group, settings_of(name), is_only=is_only) for name, group in groups.items()}


def optimizer_arrays(optimizers: Mapping[str, FlatOptimizer]) -> dict[str, Array]:
    """The states of all optimisers as named arrays; views where they are on the CPU."""
    return {
        f"{prefix}{name}": tensor.cpu().numpy()
        for prefix, optimizer in _prefixed(optimizers)
        for name, tensor in optimizer.tensors().items()
    }


def restore_optimizers(optimizers: Mapping[str, FlatOptimizer], arrays: Mapping[str, Array]) -> None:
    """Restore what `optimizer_arrays` returned."""
    for prefix, optimizer in _prefixed(optimizers):
        for name, tensor in optimizer.tensors().items():
            tensor.copy_(torch.from_numpy(np.array(arrays[f"{prefix}{name}"])))


def _prefixed(optimizers: Mapping[str, FlatOptimizer]) -> list[tuple[str, FlatOptimizer]]:
    """The arrays of an only optimiser have no prefix."""
    return [("" if len(optimizers) == 1 else f"{group}.", optimizer) for group, optimizer in optimizers.items()]


class FlatOptimizer:
    """Adam or RMSprop over one flat buffer that all parameters of a group are views of.

    A small network has a dozen small tensors; clipping and stepping them one by one costs more than the arithmetic.
    Laid out in one buffer, zeroing, the norm and the step are one operation each, and so is an all-reduce.
    """

    def __init__(
        self, parameters: Sequence[torch.nn.Parameter], settings: OptimizerSettings, *, is_only: bool = True
    ) -> None:
        for p in parameters:
            if p.data.clone().stride() != p.data.stride():  # cloning keeps the strides of dense tensors only
                p.data = p.data.contiguous()
        self._flat = torch.cat([_dense(p) for p in parameters])
        self._gradient = torch.zeros_like(self._flat)
        offset = 0
        for p in parameters:
            p.data, p.grad = (_view_like(p, buffer, offset) for buffer in (self._flat, self._gradient))
            offset += p.numel()
        self._inputs = None if is_only else list(parameters)  # a loss may reach the parameters of other groups
        self._is_spent = False  # the gradient has been applied; it is kept until the next one, for inspection
        self._shard = 0  # whose gradient is being accumulated
        self._sums: list[tuple[int, torch.Tensor]] = []  # subtrees of earlier shards: (shards in it, gradient)
        self._rate = settings.learning_rate
        self._max_norm = settings.max_grad_norm
        self._rule: _Rule = (_RMSprop if settings.kind == "rmsprop" else _Adam)(self._flat, settings.epsilon)

    def set_rate(self, rate: float) -> None:
        """The learning rate of the following steps."""
        self._rate = rate

    def accumulate(self, loss: torch.Tensor, shard: int = 0) -> None:
        """Back-propagate; the gradients of one shard add up in order, shards are summed in a fixed tree."""
        if self._is_spent:
            self._gradient.zero_()
            self._is_spent, self._shard = False, shard
        if shard != self._shard:
            self._close_shard()
            self._shard = shard
        loss.backward(inputs=self._inputs)  # type: ignore[no-untyped-call]

    def apply(self) -> torch.Tensor:
        """Sum the shards, clip and step; the gradient's norm before clipping."""
        if self._sums:
            self._close_shard()
            while len(self._sums) > 1:
                self._join()
            self._gradient.copy_(self._sums.pop()[1])
        norm: torch.Tensor = torch.linalg.vector_norm(self._gradient)
        excess = None if self._max_norm is None else ((norm + 1e-6) / self._max_norm).clamp_(min=1.0)
        with torch.no_grad():
            self._rule.step(self._gradient, excess, self._rate)
        self._is_spent = True
        return norm

    def tensors(self) -> dict[str, torch.Tensor]:
        """What it carries from one step to the next, by name."""
        return self._rule.tensors()

    def _close_shard(self) -> None:
        """Put the shard's gradient into the tree: subtrees of equal size are joined at once, as in a binary counter."""
        self._sums.append((1, self._gradient.clone()))
        self._gradient.zero_()
        while len(self._sums) > 1 and self._sums[-1][0] == self._sums[-2][0]:
            self._join()

    def _join(self) -> None:
        (left, first), (right, second) = self._sums[-2:]
        self._sums[-2:] = [(left + right, first.add_(second))]


class _Rule(Protocol):
    """Updates a flat parameter with a flat gradient."""

    def step(self, gradient: torch.Tensor, excess: torch.Tensor | None, rate: float) -> None:
        """Descend along `gradient / excess`; `excess` is by how much its norm is too large, at least 1."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """The state of the rule between two steps."""


class _Adam:
    """Kingma & Ba 2015, as the fused kernel, called directly: torch.optim's wrapper costs three times the kernel.

    The kernel divides the gradient by a scale (meant for mixed precision), which clips it without another pass.
    """

    def __init__(self, flat: torch.Tensor, epsilon: float) -> None:
        self._flat, self._epsilon = flat, epsilon
        self._mean, self._square = torch.zeros_like(flat), torch.zeros_like(flat)
        self._count = torch.zeros((), device=flat.device)
        self._never = torch.zeros((), device=flat.device)  # the kernel's flag for infinities, checked elsewhere

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"mean": self._mean, "square": self._square, "count": self._count}

    def step(self, gradient: torch.Tensor, excess: torch.Tensor | None, rate: float) -> None:
        self._count += 1
        torch._fused_adam_(
            [self._flat],
            [gradient],
            [self._mean],
            [self._square],
            [],
            [self._count],
            lr=rate,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.0,
            eps=self._epsilon,
            amsgrad=False,
            maximize=False,
            grad_scale=excess,
            found_inf=None if excess is None else self._never,
        )


class _RMSprop:
    """Tieleman & Hinton 2012, with torch's placement of epsilon."""

    DECAY = 0.99

    def __init__(self, flat: torch.Tensor, epsilon: float) -> None:
        self._flat, self._epsilon = flat, epsilon
        self._square = torch.zeros_like(flat)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"square": self._square}

    def step(self, gradient: torch.Tensor, excess: torch.Tensor | None, rate: float) -> None:
        if excess is not None:
            gradient /= excess
        self._square.mul_(self.DECAY).addcmul_(gradient, gradient, value=1 - self.DECAY)
        self._flat.addcdiv_(gradient, self._square.sqrt().add_(self._epsilon), value=-rate)


def _dense(parameter: torch.nn.Parameter) -> torch.Tensor:
    """The numbers in memory order, channels-last weights included."""
    data = parameter.data
    return torch.as_strided(data, (data.numel(),), (1,), data.storage_offset()).clone()


def _view_like(parameter: torch.nn.Parameter, buffer: torch.Tensor, offset: int) -> torch.Tensor:
    """The part of `buffer` at `offset` with the shape and strides of `parameter`."""
    return buffer.as_strided(parameter.shape, parameter.stride(), offset)
