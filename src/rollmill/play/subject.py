"""What is to be played: the named run or checkpoint, with its config and weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.errors import Refused, nearest
from rollmill.numerics import require
from rollmill.persist.newest_weights import Weights, find_weights, run_of
from rollmill.persist.run_folder import MARK
from rollmill.settings import ExperimentConfig, load_run_config

Overrides = Sequence[str] | Mapping[str, Any]


@dataclass(frozen=True)
class Subject:
    """A run, or one of its checkpoints."""

    path: Path  # as it was named
    run: Path
    config: ExperimentConfig  # of the run, with the environment as it is to be played

    def read_weights(self) -> Weights:
        """The weights as they are now: of the checkpoint, or the newest of the run, which may still be training."""
        return find_weights(self.path)


def open_subject(path: str | Path, overrides: Overrides = ()) -> Subject:
    """Find the run that a path means; overrides may change the environment and nothing else."""
    path = Path(path)
    run = run_of(path)
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


def _no_run(path: Path) -> str:
    if path.is_dir():
        return f"{path} is neither a run (it has no {MARK}) nor a checkpoint; give a folder that `rollmill train` made"
    runs = [folder.name for folder in path.parent.glob("*") if (folder / MARK).is_file()]
    remedy = nearest(path.name, runs) if runs else "give a folder that `rollmill train` made"
    return f"{path}: no such run or checkpoint; {remedy}"
