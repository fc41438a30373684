"""Beginning from another run: which config, which checkpoint, which weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.config.base import shown
from rollmill.config.load import Loaded, flattened
from rollmill.errors import Refused
from rollmill.models.weights import in_units_of_rewards, load_weights, weights_of
from rollmill.persist.checkpoints import Checkpoints, Content, Found
from rollmill.persist.newest_weights import find_weights, run_of
from rollmill.persist.rewind import trim
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.runtime.blueprint import Blueprint
from rollmill.settings import ExperimentConfig, load_run_config
from rollmill.spaces import action_scale
from rollmill.types import Array

MAY_CHANGE = ("train.", "runtime.", "observe.")  # the rest would make it another run


@dataclass(frozen=True)
class Reopened:
    """A run that is to continue."""

    path: Path
    config: ExperimentConfig  # as it was, with the few changes that a resumed run may have
    checkpoints: Checkpoints
    found: Found[Content]  # its newest good checkpoint

    def claimed(self) -> Reopened:
        """Call it once no other process writes: its files are taken back to its newest checkpoint.

        That may be one of another process, which has continued the run meanwhile.
        """
        reopened = self
        if self.checkpoints.has_changed():
            reopened = replace(self, found=self.checkpoints.newest() or self.found)
            _refuse_complete(self.path, self.config, reopened.found)
        try:
            trim(self.path, reopened.found.content.env_steps)
            RunFolder(self.path).weights.unlink(missing_ok=True)  # soon outdated; until then the checkpoint has them
        except OSError as error:
            raise Refused(f"{self.path} can't be written to: {error.strerror}; make it writable") from error
        return reopened


def reopen(path: Path, overrides: Sequence[str] | Mapping[str, Any]) -> Reopened:
    """Find out from where a run can continue."""
    if not (path / MARK).is_file():
        raise Refused(f"{path} is no run folder (it has no {MARK}), so there is nothing to resume; leave out --resume")
    for override in overrides:
        key = override.partition("=")[0]
        if not key.startswith(MAY_CHANGE):
            raise Refused(
                f"{key} can't be changed when a run is resumed, only train.*, runtime.* and observe.*; "
                f"for another run with these weights: rollmill train CONFIG --from {path}"
            )
    loaded = load_run_config(path, overrides)
    config = loaded.config
    checkpoints = Checkpoints(path / "checkpoints", config.checkpoint)
    found = checkpoints.newest()
    if found is None:
        damaged = "; ".join(checkpoints.complaints)
        why = f"no good checkpoint ({damaged})" if damaged else "no checkpoint"
        raise Refused(f"{path} has {why}, so it can't be resumed; start it again with --overwrite")
    _refuse_complete(path, config, found)
    refuse_edited_config(path, loaded, found.content.state, found.path)
    return Reopened(path, config, checkpoints, found)


def identity(config: ExperimentConfig) -> dict[str, Any]:
    """All settings that make a run the run it is, by dotted name."""
    return {k: v for k, v in flattened(config).items() if not k.startswith((*MAY_CHANGE, "checkpoint."))}


def refuse_edited_config(path: Path, loaded: Loaded[ExperimentConfig], state: Mapping[str, Any], where: Path) -> None:
    """Raise `Refused` if config.yaml differs from the config in the checkpoint: it was edited or copied here.

    `state` is that of the checkpoint `where`. Settings that neither file names are those of a newer version.
    """
    before, now = state.get("run", {}).get("config"), identity(loaded.config)
    for key in sorted(now.keys() | before.keys()) if before is not None else ():
        is_newer = key not in before and loaded.origins.get(key) == "default"
        if before.get(key) != now.get(key) and not is_newer:
            difference = f"{key} is {shown(now.get(key))} in config.yaml but {shown(before.get(key))} in {where}"
            raise Refused(f"{path}: {difference}; put it back, or begin another run with these weights (--from)")


def _refuse_complete(path: Path, config: ExperimentConfig, found: Found[Content]) -> None:
    counted, target = config.train.goal
    done = found.content.update if counted == "updates" else found.content.env_steps
    if done >= target:
        what = counted.removeprefix("env_")
        raise Refused(
            f"{path} has made all its {what} ({done} of {target}); "
            f"raise train.{what} to continue: {config.train.continued(done)}"
        )


def fitting_weights(path: Path, blueprint: Blueprint) -> dict[str, Array]:
    """The weights for `--from path`, tried on a network before anything is made."""
    run = run_of(path)
    if action_scale(blueprint.action_space) is not None and (run / MARK).is_file():  # a single file doesn't say
        then = load_run_config(run).config.model.rescale_actions
        if then != blueprint.model.rescale_actions:
            raise Refused(f"--from {path} was trained with model.rescale_actions={shown(then)}; set it to the same")
    network = blueprint.network("cpu")
    try:
        weights = in_units_of_rewards(find_weights(path).arrays, weights_of(network))
        load_weights(network, weights)
    except Refused as refusal:
        raise Refused(f"--from {path}: {refusal}") from None
    return weights
