"""Stable-Baselines3 callbacks that drive the shared clocks."""

from __future__ import annotations

from benchmarks.driver import MUJOCO_STEPS, FixedLength, SolveClock, Throughput
from stable_baselines3.common.callbacks import BaseCallback


class ThroughputCallback(BaseCallback):
    """Marks the end of every update; the next rollout's start is the first hook after it."""

    def __init__(self, clock: Throughput) -> None:
        super().__init__()
        self.clock = clock
        self.is_over = False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps > 0:
            self.is_over = self.clock.updated(self.num_timesteps)

    def _on_step(self) -> bool:
        return not self.is_over


class LearningCallback(BaseCallback):
    """Feeds the episodes that end to the clock of a training of fixed length."""

    def _on_training_start(self) -> None:
        self.clock = FixedLength(MUJOCO_STEPS)

    def _on_step(self) -> bool:
        if self.locals["dones"].any():
            ended = [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            self.clock.ended(self.num_timesteps, ended)
        return True


class SolveCallback(BaseCallback):
    """Feeds the episodes that end to the clock and stops when the task is solved."""

    def __init__(self) -> None:
        super().__init__()

    def _on_training_start(self) -> None:
        self.clock = SolveClock()

    def _on_step(self) -> bool:
        if not self.locals["dones"].any():
            return True
        return not self.clock.ended(info["episode"]["r"] for info in self.locals["infos"] if "episode" in info)
