"""Initial weights: drawn from a seed, independently of anything else in the process."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from rollmill.models.layers import TwinLinear

HIDDEN_GAIN = math.sqrt(2)
POLICY_GAIN = 0.01  # nearly uniform actions at the start
VALUE_GAIN = 1.0


@contextmanager
def lent_generator(seed: int) -> Iterator[None]:
    """Seed torch's global generator for the code inside, and restore its state afterwards.

    Constructors of torch's modules, dropout, and a user's model draw from the global generator and take no other.
    """
    # the generator itself: torch.manual_seed would also reseed the accelerators, and fork_rng take twice as long
    state = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(state)


@contextmanager
def reproducible(seed: int) -> Iterator[None]:
    """A seeded generator and one thread, because the bits of a QR factorisation depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with lent_generator(seed):
            yield
    finally:
        torch.set_num_threads(threads)


@torch.no_grad()
def orthogonal(module: nn.Module, gain: float, generator: torch.Generator) -> None:
    """Orthogonal weights and zero biases in every layer of the module, in the order of its parts."""
    for part in module.modules():
        if isinstance(part, nn.Linear | nn.Conv2d):
            _fill(part.weight, gain, generator)
            if part.bias is not None:
                part.bias.zero_()
        elif isinstance(part, TwinLinear):
            for half in part.weight:
                _fill(half, gain, generator)
            part.bias.zero_()
        elif isinstance(part, nn.RNNBase):
            # the gates have activations of their own, so the gain is 1
            for name, parameter in part.named_parameters(recurse=False):
                if name.startswith("weight"):
                    _fill(parameter, 1.0, generator)
                else:
                    parameter.zero_()


def _fill(weight: Tensor, gain: float, generator: torch.Generator) -> None:
    # by way of a plain copy: torch's function can't view a channels-last weight as a matrix
    weight.copy_(nn.init.orthogonal_(torch.empty(weight.shape), gain, generator=generator))
