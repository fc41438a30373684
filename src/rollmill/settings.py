"""The whole configuration of an experiment: one section per owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, Union

from pydantic import Field, model_validator

from rollmill.algorithms.recipe import AlgorithmConfig
from rollmill.algorithms.registry import RECIPES
from rollmill.config.base import Config
from rollmill.config.load import Loaded, build, load
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import path_args
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.observe.config import ObserveConfig, ObserverConfig
from rollmill.persist.checkpoints import EVALUATION, CheckpointConfig
from rollmill.runtime.config import RuntimeConfig

if TYPE_CHECKING:
    AnyAlgorithm = AlgorithmConfig
else:  # the config of every algorithm in the registry; `name` decides which
    AnyAlgorithm = Annotated[Union[tuple(r.config for r in RECIPES.values())], Field(discriminator="name")]  # noqa: UP007


class ExperimentConfig(Config):
    """What `rollmill train` reads."""

    seed: int = Field(default=1, ge=0, description="root of every random number of the run")
    env: EnvConfig = Field(description="environment, number of them, and preprocessing")
    model: ModelConfig = Field(default_factory=ModelConfig, description="the network")
    algorithm: AnyAlgorithm = Field(description="how to learn")
    train: TrainConfig = Field(description="how long to learn")
    runtime: RuntimeConfig = Field(default_factory=RuntimeConfig, description="where to run")
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig, description="what to save, and when")
    observe: ObserveConfig = Field(default_factory=ObserveConfig, description="what to show and keep")

    @model_validator(mode="after")
    def _evaluates_what_it_chooses_by(self) -> Self:
        if self.checkpoint.best == EVALUATION and self.observe.evaluate.seconds is None:
            raise ValueError("checkpoint.best=evaluation needs observe.evaluate.seconds; set it, e.g. to 60")
        return self


def load_config(
    source: str | Path | Mapping[str, Any], overrides: Sequence[str] | Mapping[str, Any] = ()
) -> Loaded[ExperimentConfig]:
    """Read a YAML file, or take a dict, and apply dotted overrides; every mistake raises `Refused` with one line."""
    if isinstance(source, Mapping):
        return _anchored(build(source, overrides, ExperimentConfig), Path.cwd())
    return _anchored(load(Path(source), overrides, ExperimentConfig), Path(source).parent)


def load_run_config(run: Path, overrides: Sequence[str] | Mapping[str, Any] = ()) -> Loaded[ExperimentConfig]:
    """The config of a run folder, which names every setting that there was when the run began.

    Settings that came later have their defaults; runs from before actions were rescaled keep clipping them.
    """
    loaded = load_config(run / "config.yaml", overrides)
    if loaded.origins["model.rescale_actions"] != "default":
        return loaded
    model = loaded.config.model.model_copy(update={"rescale_actions": False})
    return replace(loaded, config=loaded.config.model_copy(update={"model": model}))


def _anchored(loaded: Loaded[ExperimentConfig], folder: Path) -> Loaded[ExperimentConfig]:
    """Make the user's own files absolute, so that the run's copy of the config still finds them from anywhere.

    They are looked for next to the config file, then in the working folder.
    """
    config = loaded.config
    if config.model.file is not None:
        model = config.model.model_copy(update={"file": _absolute(config.model.file, folder)})
        config = config.model_copy(update={"model": model})
    place, _, name = config.env.id.rpartition(":")
    if place.endswith(".py"):
        env = config.env.model_copy(update={"id": f"{_absolute(place, folder)}:{name}"})
        config = config.model_copy(update={"env": env})
    paths = {key: config.env.args[key] for key in path_args(config.env) if key in config.env.args}
    if paths:
        args = {key: _absolute(path, folder) if isinstance(path, str) else path for key, path in paths.items()}
        env = config.env.model_copy(update={"args": {**config.env.args, **args}})
        config = config.model_copy(update={"env": env})
    if config.observe.observers:
        observers = tuple(_with_absolute_path(observer, folder) for observer in config.observe.observers)
        observe = config.observe.model_copy(update={"observers": observers})
        config = config.model_copy(update={"observe": observe})
    return replace(loaded, config=config)


def _with_absolute_path(observer: ObserverConfig, folder: Path) -> ObserverConfig:
    place, _, name = observer.path.rpartition(":")
    if not place.endswith(".py"):
        return observer
    return observer.model_copy(update={"path": f"{_absolute(place, folder)}:{name}"})


def _absolute(file: str, folder: Path) -> str:
    """The absolute path, searched next to the config, then in the working directory; unchanged if there is none.

    Then the refusal names what the user wrote.
    """
    found = next((path for path in (folder / file, Path(file)) if path.exists()), None)
    return file if found is None else str(found.resolve())
