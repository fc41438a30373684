"""The one look-up of weights: those of a run, of a checkpoint, or in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rollmill.errors import Refused
from rollmill.persist.checkpoints import Checkpoint, CheckpointConfig, Checkpoints
from rollmill.persist.parts import MANIFEST, array_bytes
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.types import Array


@dataclass(frozen=True)
class Weights:
    """The weights of a policy, and where they were found."""

    arrays: Mapping[str, Array]
    path: Path  # of the checkpoint or file
    env_steps: int | None  # made when they were saved; None where it is unknown


def run_of(path: Path) -> Path:
    """The run folder that a path means: itself, or the one in which a checkpoint lies."""
    return path.resolve().parents[1] if (path / MANIFEST).is_file() else path


def find_weights(path: Path) -> Weights:
    """The weights in a file, of a checkpoint, or the newest of a run, which may still be training."""
    if path.is_file():
        return Weights(RunFolder.read_weights(path), path, None)
    if (path / MANIFEST).is_file():
        return _of_checkpoint(Checkpoint(path))
    if not (path / MARK).is_file():
        raise Refused(f"{path} is neither a run nor a checkpoint; give a run folder, or one of its checkpoints")
    return _newest(RunFolder(path))


def _of_checkpoint(checkpoint: Checkpoint) -> Weights:
    return Weights(checkpoint.part("weights"), checkpoint.path, checkpoint.manifest.env_steps)


def _newest(run: RunFolder) -> Weights:
    """Those that the run left at its end, or those of its newest checkpoint whose weights are good."""
    found = Checkpoints(run.checkpoints, CheckpointConfig()).newest_with(_of_checkpoint)
    if run.weights.is_file():
        try:
            final = RunFolder.read_weights(run.weights)
        except Refused as refusal:
            if found is None:
                raise
            raise Refused(f"{refusal}; give the checkpoint {found.content.path} in place of the run") from None
        is_same = found is not None and array_bytes(final) == array_bytes(found.content.arrays)
        return found.content if found and is_same else Weights(final, run.weights, None)
    if found is None:
        name = run.weights.name
        raise Refused(f"{run.path} has no weights yet: neither {name} nor a good checkpoint; train it first")
    return found.content
