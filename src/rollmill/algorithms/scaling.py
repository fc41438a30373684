"""Rewards and returns in units that a value function learns easily."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from rollmill.algorithms.returns import running_returns
from rollmill.models.network import Network
from rollmill.models.normaliser import RunningStatistics
from rollmill.types import Array

REWARD_BOUND = 10.0  # normalised rewards are clipped to ± this


def in_units_of_rewards(network: Network, value: torch.Tensor) -> torch.Tensor:
    """What the value head predicts in units of the returns, in units of the rewards."""
    assert network.return_statistics is not None
    return network.return_statistics.undo(value)


def in_units_of_values(network: Network, returns: torch.Tensor) -> torch.Tensor:
    """Returns as the value head is to predict them."""
    assert network.return_statistics is not None
    scaled: torch.Tensor = network.return_statistics(returns)
    return scaled


class RewardScaling:
    """Divides rewards by the standard deviation of running discounted returns, as VecNormalize does.

    Without statistics it leaves them as they are.

    The statistics are buffers of the network; each environment's running return is kept here.
    """

    def __init__(self, statistics: RunningStatistics | None, gamma: float) -> None:
        self._statistics, self._gamma = statistics, gamma
        self._running = np.zeros(0)  # discounted return of each environment's running episode

    def __call__(self, batch: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float]]:
        """The batch with scaled rewards, and metrics; the statistics are updated with the batch first."""
        statistics, reward = self._statistics, batch["reward"]
        if statistics is None:
            return batch, {}
        number, rewards, reset = (batch[field].cpu().numpy() for field in ("environment", "reward", "reset"))
        self._running = np.pad(self._running, (0, max(0, number.max() + 1 - len(self._running))))
        returns = np.empty(rewards.shape)
        turn = _occurrences(number)
        for columns in (turn == i for i in range(turn.max() + 1)):  # of one environment in the order of their unrolls
            before = self._running[number[columns]]
            returns[:, columns] = running_returns(rewards[:, columns], reset[:-1, columns], before, self._gamma)
            self._running[number[columns]] = returns[-1, columns]
        statistics.update(torch.from_numpy(returns).to(reward.device))
        scaled = (reward / statistics.deviation.float()).clamp(-REWARD_BOUND, REWARD_BOUND)
        return {**batch, "reward": scaled}, {"return_deviation": float(statistics.deviation)}

    def state(self) -> dict[str, Any]:
        """The running returns, for a checkpoint."""
        return {"running_returns": self._running.tolist()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self._running = np.array(state.get("running_returns", []), np.float64)


def _occurrences(numbers: Array) -> Array:
    """How often each entry has occurred before."""
    seen: dict[int, int] = {}
    counts = []
    for number in numbers.tolist():
        counts.append(seen.get(number, 0))
        seen[number] = counts[-1] + 1
    return np.array(counts)
