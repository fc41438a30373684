"""Statistics of episode returns."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rollmill.intervals import deviation
from rollmill.types import Array

EMA_WEIGHT = 0.05  # of a new episode; about the last 20 episodes count


class Ended(NamedTuple):
    """Episodes that ended within one batch, ordered by time, then environment."""

    returns: tuple[float, ...]
    lengths: tuple[int, ...]
    truncated: tuple[bool, ...]


class Scores:
    """Smoothed and windowed returns; raw, before reward scale and clip."""

    def __init__(self) -> None:
        self.episodes = 0
        self.return_ema: float | None = None
        self.best_mean_100: float | None = None
        self._window: deque[float] = deque(maxlen=100)

    @property
    def mean_100(self) -> float | None:
        """Mean return of the last 100 episodes, or of fewer at the start."""
        return sum(self._window) / len(self._window) if self._window else None

    @property
    def std_100(self) -> float | None:
        """Standard deviation of the same returns; None for fewer than two."""
        return deviation(self._window)

    def state(self) -> dict[str, Any]:
        """Everything as plain numbers, for a checkpoint."""
        return {
            "episodes": self.episodes,
            "return_ema": self.return_ema,
            "best_mean_100": self.best_mean_100,
            "window": list(self._window),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.episodes, self.return_ema = state["episodes"], state["return_ema"]
        self.best_mean_100 = state["best_mean_100"]
        self._window = deque(state["window"], maxlen=self._window.maxlen)

    def add(self, unrolls: Sequence[Mapping[str, Any]]) -> Ended:
        """Count the episodes that ended within unrolls; of unrolls of one length in the order of time."""
        returns: list[float] = []
        lengths: list[int] = []
        truncated: list[bool] = []
        for part in _side_by_side([_rows(unroll) for unroll in unrolls]):
            ended = part["terminated"] | part["truncated"]
            ended &= part["valid"]
            returns += part["episode_return"][ended].tolist()
            lengths += part["episode_length"][ended].tolist()
            truncated += part["truncated"][ended].tolist()
        for value in returns:
            self.return_ema = (
                value if self.return_ema is None else self.return_ema + EMA_WEIGHT * (value - self.return_ema)
            )
            self._window.append(value)
            if len(self._window) == 100:
                mean = sum(self._window) / 100
                self.best_mean_100 = mean if self.best_mean_100 is None else max(self.best_mean_100, mean)
        self.episodes += len(returns)
        return Ended(tuple(returns), tuple(lengths), tuple(truncated))


_FIELDS = ("terminated", "truncated", "valid", "episode_return", "episode_length")


def _rows(unroll: Mapping[str, Any]) -> dict[str, Array]:
    """The fields that matter here, of the steps really made, without broken environments."""
    length, broken = int(unroll["length"]), unroll["broken"]
    rows = {field: unroll[field][:length] for field in _FIELDS}
    return {field: array[:, ~broken] for field, array in rows.items()} if broken.any() else rows


def _side_by_side(parts: list[dict[str, Array]]) -> list[dict[str, Array]]:
    """Unrolls of one length as a single part [T, B]."""
    if len({len(part["valid"]) for part in parts}) > 1:
        return parts
    return [{field: np.concatenate([part[field] for part in parts], 1) for field in _FIELDS}] if parts else []
