"""Opening a run again: which config, which checkpoint, which weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.errors import Refused
from rollmill.learners.checkpoint import CheckpointConfig, Checkpoints, Found
from rollmill.learners.checkpoint_files import MANIFEST
from rollmill.run_folder import MARK, RunFolder
from rollmill.settings import ExperimentConfig, load_config
from rollmill.types import Array

MAY_CHANGE = ("train.steps", "runtime.", "observe.")  # the rest would make it another run


@dataclass(frozen=True)
class Reopened:
    """A run that is to go on."""

    path: Path
    config: ExperimentConfig  # as it was, with the few changes that a resumed run may have
    checkpoints: Checkpoints
    found: Found  # its newest good checkpoint

    def renewed(self) -> Reopened:
        """The same, looked up again: another process may have gone on meanwhile."""
        return replace(self, found=self.checkpoints.newest() or self.found)


def reopen(path: Path, overrides: Sequence[str] | Mapping[str, Any]) -> Reopened:
    """Find out from where a run can go on."""
    if not (path / MARK).is_file():
        raise Refused(f"{path} is no run folder (it has no {MARK}), so there is nothing to resume; leave out --resume")
    for override in overrides:
        key = override.partition("=")[0]
        if key != MAY_CHANGE[0] and not key.startswith(MAY_CHANGE[1:]):
            raise Refused(
                f"{key} can't be changed when a run is resumed, only train.steps, runtime.* and observe.*; "
                f"for another run with these weights: rollmill train CONFIG --from {path}"
            )
    config = load_config(path / "config.yaml", overrides).config
    checkpoints = Checkpoints(path / "checkpoints", config.checkpoint)
    found = checkpoints.newest()
    if found is None:
        damaged = "; ".join(checkpoints.complaints)
        why = f"no good checkpoint ({damaged})" if damaged else "no checkpoint"
        raise Refused(f"{path} has {why}, so it can't be resumed; start it anew with --overwrite")
    if found.content.env_steps >= config.train.steps:
        raise Refused(
            f"{path} has made all its steps ({found.content.env_steps} of {config.train.steps}); "
            f"raise train.steps to go on: train.steps={2 * config.train.steps}"
        )
    return Reopened(path, config, checkpoints, found)


def weights_at(path: Path) -> dict[str, Array]:
    """The weights of a run, of a checkpoint or in a file."""
    if path.is_file():
        return RunFolder.read_weights(path)
    if (path / MANIFEST).is_file():
        return dict(Checkpoints.read(path).arrays["weights"])
    if not (path / MARK).is_file():
        raise Refused(f"{path} is neither a run nor a checkpoint; give a run folder, or one of its checkpoints")
    folder = RunFolder(path)
    if folder.weights.is_file():
        return RunFolder.read_weights(folder.weights)
    checkpoints = Checkpoints(path / "checkpoints", CheckpointConfig())
    if (found := checkpoints.newest()) is None:
        raise Refused(f"{path} has no weights: neither {folder.weights.name} nor a good checkpoint")
    return dict(found.content.arrays["weights"])
