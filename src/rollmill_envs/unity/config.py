"""Settings of a Unity build: `env.args` of `unity/build`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollmill.config.base import Config


class UnityConfig(Config):
    """Which build, how it is started, and how its observations are taken."""

    build: str = Field(min_length=1, description="path of the executable, or the folder that holds it")
    behaviour: str | None = Field(default=None, description="name of the behaviour to train; null: the first")
    timeout: float = Field(default=30.0, gt=0.0, description="seconds that the build may take to answer")
    no_graphics: bool = Field(
        default=True, description="no window; cameras then see nothing, set false to train on them"
    )
    port: int | None = Field(default=None, ge=1, le=65535, description="first port to try; null: any free one")
    worker_id: int = Field(default=0, ge=0, description="offset to `port`, for several programs that share a config")
    ports: int = Field(default=64, ge=1, description="how many ports to try from there on")
    seed: int | None = Field(
        default=None,
        ge=0,
        lt=2**31,
        description="given to every build at its start; null: the seed of its first episode",
    )
    seed_parameter: str | None = Field(
        default=None, description="float parameter that is set to each episode's seed (modulo 2^24) before it begins"
    )
    restart: bool = Field(default=False, description="restart the build for every episode, so that its seed applies")
    parameters: dict[str, float] = Field(default_factory=dict, description="float parameters of the scene, by name")
    time_scale: float = Field(default=20.0, gt=0.0, description="how much faster than real time the engine may run")
    width: int = Field(default=84, ge=1, description="pixels of the engine's window")
    height: int = Field(default=84, ge=1, description="pixels of the engine's window")
    visual: Literal["bytes", "floats"] = Field(
        default="bytes",
        description="three-axis observations as uint8 (Unity's 0 to 1 times 255) or float32 as they come",
    )
    decisions_per_second: float = Field(
        default=10.0, gt=0.0, description="agent decisions per simulated second; the frame rate of videos"
    )
    log_folder: str | None = Field(default=None, description="where the build's output is kept; null: nowhere")
    log_megabytes: float = Field(default=64.0, gt=0.0, description="most that the log folder may hold; oldest go first")
    arguments: tuple[str, ...] = Field(default=(), description="further arguments of the executable")
