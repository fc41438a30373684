"""What is to be played: the named run or checkpoint, with its config and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.errors import Refused, nearest
from rollmill.models.weights import parameters_sha256
from rollmill.numerics import require
from rollmill.persist.checkpoint_files import MANIFEST
from rollmill.persist.checkpoints import CheckpointConfig, Checkpoints
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.settings import ExperimentConfig, load_run_config
from rollmill.types import Array

Overrides = Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Weights:
    """The weights of a policy, and where they were found."""

    arrays: Mapping[str, Array]
    path: Path  # of the checkpoint or file
    env_steps: int | None  # made when they were saved; None where it is unknown


@dataclass(frozen=True)
class Subject:
    """A run, or one of its checkpoints."""

    path: Path  # as it was named
    run: Path
    config: ExperimentConfig  # of the run, with the environment as it is to be played

    def read_weights(self) -> Weights:
        """The weights as they are now: of the checkpoint, or the newest of the run, which may still be training."""
        if self.path != self.run:
            return _of_checkpoint(self.path)
        return newest_weights(self.run)


def open_subject(path: str | Path, overrides: Overrides = ()) -> Subject:
    """Find the run that a path means; overrides may change the environment and nothing else."""
    path = Path(path)
    run = path.resolve().parents[1] if (path / MANIFEST).is_file() else path
    if not (run / MARK).is_file():
        raise Refused(_no_run(path))
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith("env."):
            raise Refused(f"{key} can't be changed for a policy that is trained, only env.*; leave it out")
        if key == "env.atari.preset":  # the run's config has all values written out, and those win
            raise Refused(f"{key} changes nothing in a run; change its values instead, such as env.atari.sticky=0.25")
    config = load_run_config(run, overrides).config
    require(config.runtime.numerics)
    return Subject(path, run, config)


def newest_weights(run: Path) -> Weights:
    """The newest weights of a run: those that it left at its end, or those of its newest good checkpoint."""
    folder = RunFolder(run)
    found = Checkpoints(folder.checkpoints, CheckpointConfig()).newest()
    saved = (
        None if found is None else Weights(dict(found.content.arrays["weights"]), found.path, found.content.env_steps)
    )
    if folder.weights.is_file():
        final = RunFolder.read_weights(folder.weights)
        is_saved = saved is not None and parameters_sha256(final) == parameters_sha256(dict(saved.arrays))
        return saved if saved is not None and is_saved else Weights(final, folder.weights, None)
    if saved is None:
        raise Refused(f"{run} has no weights yet: neither {folder.weights.name} nor a good checkpoint; train it first")
    return saved


def _of_checkpoint(path: Path) -> Weights:
    content = Checkpoints.read(path)
    return Weights(dict(content.arrays["weights"]), path, content.env_steps)


def _no_run(path: Path) -> str:
    if path.is_dir():
        return f"{path} is neither a run (it has no {MARK}) nor a checkpoint; give a folder that `rollmill train` made"
    runs = [folder.name for folder in path.parent.glob("*") if (folder / MARK).is_file()]
    remedy = nearest(path.name, runs) if runs else "give a folder that `rollmill train` made"
    return f"{path}: no such run or checkpoint; {remedy}"
