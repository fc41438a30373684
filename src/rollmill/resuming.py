"""Opening a run again: which config, which checkpoint, which weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollmill.config.base import shown
from rollmill.config.load import Loaded, flattened
from rollmill.errors import Refused
from rollmill.persist.checkpoints import Checkpoints, Content, Found
from rollmill.persist.run_folder import MARK
from rollmill.settings import ExperimentConfig, load_run_config

MAY_CHANGE = ("train.", "runtime.", "observe.")  # the rest would make it another run


@dataclass(frozen=True)
class Reopened:
    """A run that is to continue."""

    path: Path
    config: ExperimentConfig  # as it was, with the few changes that a resumed run may have
    checkpoints: Checkpoints
    found: Found[Content]  # its newest good checkpoint

    def renewed(self) -> Reopened:
        """The same, or the newest checkpoint of another process that has continued the run meanwhile."""
        if not self.checkpoints.has_changed():
            return self
        found = self.checkpoints.newest() or self.found
        _refuse_complete(self.path, self.config, found)
        return replace(self, found=found)


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
    """Refuse a config that was edited, or a checkpoint that was copied here: the run would be neither of the two.

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
