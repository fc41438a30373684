"""What is shown and kept of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollmill.config import Config


class EvaluateConfig(Config):
    """How the policy is evaluated while it learns, by a process of its own that gets what the training leaves over."""

    seconds: float | None = Field(
        default=None, gt=0, description="from one evaluation of the newest checkpoint to the next, at least; null: none"
    )
    episodes: int = Field(default=10, ge=1, description="greedy episodes per evaluation")
    niceness: int = Field(
        default=10, ge=0, le=19, description="of its process; 19: what is left over, 0: as much as the training"
    )
    finish_seconds: float = Field(
        default=10.0, ge=0, le=20, description="that a finished run waits for the evaluation of its last checkpoint"
    )


class ObserveConfig(Config):
    """How a run is watched; nothing here changes what is learned."""

    console: Literal["auto", "bar", "lines", "none"] = Field(
        default="auto", description="a progress bar, plain lines or nothing; auto: a bar on a terminal, lines elsewhere"
    )
    interval: float = Field(default=1.0, ge=0, description="seconds between two refreshes of the bar")
    lines_interval: float = Field(default=5.0, ge=0, description="seconds between two plain lines")
    log_interval: float = Field(
        default=0.5, ge=0, description="seconds between two rows of metrics, averaged in between; 0: every update"
    )
    tensorboard: bool = Field(default=True, description="also write the rows for TensorBoard, below <run>/tensorboard")
    curve: bool = Field(default=True, description="draw the learning curve <run>/curve.png at the end")
    baseline_episodes: int = Field(default=20, ge=0, description="episodes of the random policy measured at the start")
    baseline_seconds: float = Field(default=1.0, ge=0, description="seconds that measuring the random policy may take")
    final_episodes: int = Field(
        default=20, ge=0, description="episodes that the finished policy plays greedily for the summary; 0: none"
    )
    final_seconds: float = Field(default=10.0, gt=0.0, description="bound on playing them, in seconds")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="evaluation during training")
    watch_niceness: int = Field(
        default=5, ge=0, le=19, description="priority of what shows the policy playing, once that is asked for"
    )
    keys: bool = Field(default=True, description="take keys on a terminal: w shows the policy playing")
