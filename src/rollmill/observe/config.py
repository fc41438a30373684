"""What is shown and kept of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from rollmill.config.base import Config
from rollmill.observe.observer import Overflow


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


class ObserverConfig(Config):
    """An observer of the user's own."""

    path: str = Field(description="its class, derived from rollmill.Hooks: path/to/file.py:Name or package.module:Name")
    args: dict[str, Any] = Field(default_factory=dict, description="arguments of its constructor")
    name: str | None = Field(
        default=None, pattern=r"^[\w.-]+$", description="in logs and summary; null: the name of the class"
    )
    overflow: Overflow | None = Field(
        default=None,
        description="when it is too slow: the run waits for it, 10 s at most at a time, or it loses events; "
        "null: as the class says, which is drop unless it sets `overflow`",
    )
    capacity: int | None = Field(
        default=None, ge=1, description="events that may wait for it; null: as the class says, 256 unless it does"
    )
    where: Literal["thread", "process"] = Field(
        default="thread", description="where it runs: in a thread of the learner's process, or in a process of its own"
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
    flight_log: bool = Field(default=True, description="keep <run>/flight.log, from which the run can be retraced")
    flight_hash_every: int = Field(default=50, ge=1, description="updates between two hashes of all parameters in it")
    evaluate: EvaluateConfig = Field(default_factory=EvaluateConfig, description="evaluation during training")
    watch_niceness: int = Field(
        default=5, ge=0, le=19, description="priority of what shows the policy playing, once that is asked for"
    )
    keys: bool = Field(default=True, description="take keys on a terminal: w shows the policy playing")
    observers: tuple[ObserverConfig, ...] = Field(default=(), description="observers of your own; docs/observers.md")
    spare_slots: int = Field(
        default=2, ge=1, le=64, description="unrolls per actor that observers of trajectories may hold at a time"
    )
