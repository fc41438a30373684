"""The whole configuration of an experiment: one section per owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from rollmill.algorithms.ppo import PPOConfig
from rollmill.algorithms.vpg import VPGConfig
from rollmill.config import Config
from rollmill.config_file import Loaded, build, load
from rollmill.envs.config import EnvConfig
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.observe.config import ObserveConfig
from rollmill.runtime.config import RuntimeConfig


class ExperimentConfig(Config):
    """What `rollmill train` reads."""

    seed: int = Field(default=1, ge=0, description="root of every random number of the run")
    env: EnvConfig = Field(description="what to learn, and how many of it")
    model: ModelConfig = Field(default_factory=ModelConfig, description="the network")
    algorithm: Annotated[PPOConfig | VPGConfig, Field(discriminator="name")] = Field(description="how to learn")
    train: TrainConfig = Field(description="how long to learn")
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig, description="where to run")
    observe: ObserveConfig = Field(default_factory=ObserveConfig, description="what to show and keep")


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Loaded[ExperimentConfig]:
    """Read a YAML file, or take a dict, and apply dotted overrides; every mistake is a `Refused` of one line."""
    if isinstance(source, Mapping):
        return build(source, overrides, ExperimentConfig)
    return load(Path(source), overrides, ExperimentConfig)
