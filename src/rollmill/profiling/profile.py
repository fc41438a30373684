"""What `rollmill profile` does: a training under observation, for so many seconds."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.errors import Refused, RollmillError, SignalExit, exit_code_of
from rollmill.experiment import Experiment
from rollmill.numerics import require
from rollmill.observe.events import Updated
from rollmill.profiling.flame import write_flame_graph
from rollmill.profiling.native import NativeSampler
from rollmill.profiling.stacks import folded, read_samples
from rollmill.profiling.table import heading, lines_of, processes_of, rows_of
from rollmill.profiling.window import Window
from rollmill.runtime.process import usable_cores
from rollmill.sampling import FOLDER_VARIABLE
from rollmill.settings import load_config

# It ends when we have seen enough, and the screen is ours; all else is as in any training.
CHANGES = (
    "train.steps=1000000000000",
    "observe.console=none",
    "observe.baseline_episodes=0",
    "observe.final_episodes=0",
)


@dataclass(frozen=True)
class Profiled:
    """A profile that was made."""

    folder: Path
    record: dict[str, Any]
    lines: list[str]
    signal: int  # that cut it short; 0 if none did


def profile(config: Path, overrides: Sequence[str], seconds: float, out: Path | None, is_native: bool) -> Profiled:
    """Train for so many seconds and write table, stacks and flame graph below `out`."""
    if not 0 < seconds < math.inf:
        raise Refused(f"--seconds {seconds:g}: a profile takes time: give more than 0")
    changed = {change.partition("=")[0] for change in CHANGES}
    kept = [override for override in overrides if override.partition("=")[0] not in changed]
    loaded = load_config(config, [*kept, *CHANGES])
    require(loaded.config.runtime.numerics)
    folder = _make_folder(config, out)
    with _scratch(folder) as scratch:
        experiment = Experiment(loaded, scratch / "run")
        native = NativeSampler(folder, seconds) if is_native else None
        window = _watch(experiment, seconds, scratch / "stacks", native)
        samples = read_samples(scratch / "stacks")
    title = f"{loaded.config.algorithm.name} on {loaded.config.env.id}"
    record = {
        "title": title,
        "config": str(config),
        "overrides": list(overrides),
        "seconds": window.seconds,
        "wanted_seconds": seconds,
        "is_interrupted": bool(experiment.signal),
        "cores": len(usable_cores()),
        "steps_per_second": window.steps_per_second,
        "updates": window.updates,
        "overhead": sum(sampled.overhead for sampled in samples) / window.seconds,
        "clocks": window.clocks,
        "activities": rows_of(samples),
        "processes": processes_of(samples, window.used, window.seconds),
    }
    lines = lines_of(record)
    stacks = [stack for sampled in samples for stack in sampled.stacks]
    (folder / "stacks.txt").write_text(folded(stacks), encoding="utf-8")
    (folder / "profile.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / "profile.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    write_flame_graph(folder / "flame.svg", stacks, heading(record))
    if native is not None:
        lines = [*lines, native.finish(heading(record))]
    return Profiled(folder, record, lines, experiment.signal)


def _watch(experiment: Experiment, seconds: float, stacks: Path, native: NativeSampler | None) -> Window:
    """Train, and look from the first update on, for so long or until a signal comes."""
    window = Window(stacks, native)
    experiment.on_stop = window.close  # before anything is torn down: what is looked at is training only
    with _told(stacks):
        try:
            for event in experiment.run():
                if isinstance(event, Updated) and not experiment.signal:
                    window.see(event)
                    if window.updates and window.seconds >= seconds:
                        experiment.stop()
        finally:
            window.finish()
    if not window.updates:
        if experiment.signal:
            raise SignalExit(exit_code_of(experiment.signal))
        raise RollmillError("the training ended before its second update, so there is nothing to look at")
    return window


@contextmanager
def _told(stacks: Path) -> Iterator[None]:
    """Have the workers that are started meanwhile sample themselves."""
    os.environ[FOLDER_VARIABLE] = str(stacks)
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A place for the run itself, which nobody wants to keep; a profile that came to nothing leaves no folder."""
    with tempfile.TemporaryDirectory(prefix="rollmill-profile-", ignore_cleanup_errors=True) as scratch:
        try:
            yield Path(scratch)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _make_folder(config: Path, out: Path | None) -> Path:
    folder = out or Path("profiles") / f"{config.stem}-{time.strftime('%Y%m%d-%H%M%S')}"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise Refused(f"--out {folder} exists; name a folder that doesn't")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--out {folder} can't be made: {error.strerror}; name another folder") from None
    return folder
