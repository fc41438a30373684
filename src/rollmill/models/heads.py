"""From features to the parameters of an action distribution."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill.models.distributions import ActionDistribution, DiagonalGaussian


class PolicyHead(nn.Linear):
    """The policy's last layer; for a Gaussian it gives the mean, and the deviation is a parameter of its own."""

    log_std: Tensor | None

    def __init__(self, features: int, distribution: ActionDistribution, initial_log_std: float) -> None:
        if isinstance(distribution, DiagonalGaussian):
            super().__init__(features, distribution.size)
            self.log_std = nn.Parameter(torch.full((distribution.size,), initial_log_std))
        else:
            super().__init__(features, distribution.parameter_count)
            self.log_std = None

    def forward(self, features: Tensor) -> Tensor:
        """[N, F] → [N, P]."""
        outputs = F.linear(features, self.weight, self.bias)
        log_std = self.log_std
        return outputs if log_std is None else torch.cat((outputs, log_std.expand_as(outputs)), -1)
