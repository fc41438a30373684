"""What `rollmill profile` does: train for some seconds while every process samples its own stacks."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.errors import Refused, RollmillError, SignalExit, exit_code_of
from rollmill.events import Progress, Updated
from rollmill.experiment import Experiment
from rollmill.launch.process import usable_cores
from rollmill.launch.stack_sampler import BEGUN, FOLDER_VARIABLE, OVER, Sampler
from rollmill.numerics import require
from rollmill.persist.run_folder import make_output_folder
from rollmill.profiling.profile_table import lines_of, processes_of, rows_of
from rollmill.profiling.span import Span, Usage, family_usage, spent
from rollmill.profiling.stacks import read_samples, speedscope
from rollmill.settings import load_config

# The profile ends the run and prints the table; everything else is as in any training.
CHANGES = (
    "train.steps=1000000000000",
    "train.updates=null",
    "observe.console=none",
    "observe.baseline_episodes=0",
    "observe.final_episodes=0",
)
SPEEDSCOPE = "profile.speedscope.json"


@dataclass(frozen=True)
class Profiled:
    """A finished profile."""

    folder: Path
    record: dict[str, Any]
    lines: list[str]
    signal: int  # that cut it short; 0 if none did


class Window:
    """The profiled part of a training, from its first update on; stacks and CPU seconds are of the same time."""

    def __init__(self, stacks: Path) -> None:
        stacks.mkdir()
        self._stacks, self._sampler = stacks, Sampler("main", stacks)
        self._opened: float | None = None
        self._closed: float | None = None
        self._before: Usage = {}
        self.used: Usage = {}  # between opening and closing, of every process that existed at the end
        self.span = Span(Progress())

    def see(self, event: Updated) -> None:
        """Open with the first update; count the others until it is closed."""
        if self._opened is None:
            self.span = Span(event.progress)
            self._before = family_usage(os.getpid())
            (self._stacks / BEGUN).touch()
            self._sampler.start()
            self._opened = perf_counter()  # last: a signal in between finds nothing to close
        elif self._closed is None:
            self.span.extend(event)

    def close(self) -> None:
        """Stop sampling. A signal handler may call it, so it never waits for another thread."""
        if self._opened is None or self._closed is not None:
            return
        self._closed = perf_counter()
        self._sampler.end()
        with suppress(OSError):  # a full disk: workers end by themselves soon
            (self._stacks / OVER).touch()
        self.used = spent(self._before, family_usage(os.getpid()))  # while the workers are alive

    def finish(self) -> None:
        """Wait until the stacks are written."""
        self.close()
        if self._opened is not None:
            self._sampler.stop()

    @property
    def seconds(self) -> float:
        """How long it is, or was, open."""
        return 0.0 if self._opened is None else (self._closed or perf_counter()) - self._opened


def profile(config: Path, overrides: Sequence[str], seconds: float, out: Path | None) -> Profiled:
    """Train for some seconds and write the table and the speedscope file into `out`."""
    if not 0 < seconds < math.inf:
        raise Refused(f"--seconds {seconds:g}: a profile takes time: give more than 0")
    changed = {change.partition("=")[0] for change in CHANGES}
    kept = [override for override in overrides if override.partition("=")[0] not in changed]
    loaded = load_config(config, [*kept, *CHANGES])
    require(loaded.config.runtime.numerics)
    folder = make_output_folder(out or Path("profiles") / f"{config.stem}-{time.strftime('%Y%m%d-%H%M%S')}")
    prefix = "rollmill-profile-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as scratch, ExitStack() as on_failure:
        on_failure.callback(shutil.rmtree, folder, ignore_errors=True)  # a profile that fails leaves no folder
        experiment = Experiment(loaded, Path(scratch, "run"))
        window = _watch(experiment, seconds, Path(scratch, "stacks"))
        samples = read_samples(Path(scratch, "stacks"))
        on_failure.pop_all()
    title = f"{loaded.config.algorithm.name} on {loaded.config.env.id}"
    record = {
        "title": title,
        "config": str(config),
        "overrides": list(overrides),
        "wanted_seconds": seconds,
        "is_interrupted": bool(experiment.signal),
        "cores": len(usable_cores()),
        "seconds": window.seconds,
        "steps_per_second": window.span.steps / max(window.span.seconds, 1e-9),
        "updates": window.span.updates,
        "clocks": window.span.shares,
        "overhead": sum(sampled.overhead for sampled in samples) / window.seconds,
        "functions": rows_of(samples),
        "processes": processes_of(samples, window.used),
    }
    lines = lines_of(record)
    (folder / SPEEDSCOPE).write_text(json.dumps(speedscope(samples, title)), encoding="utf-8")
    (folder / "profile.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    (folder / "profile.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return Profiled(folder, record, lines, experiment.signal)


def _watch(experiment: Experiment, seconds: float, stacks: Path) -> Window:
    """Train, and sample from the first update on, for so long or until a signal comes."""
    window = Window(stacks)
    experiment.on_stop = window.close  # before anything is shut down: only training is profiled
    os.environ[FOLDER_VARIABLE] = str(stacks)  # workers that are started meanwhile sample themselves
    try:
        for event in experiment.run():
            if isinstance(event, Updated) and not experiment.signal:
                window.see(event)
                if window.span.updates and window.seconds >= seconds:
                    experiment.stop()
    finally:
        del os.environ[FOLDER_VARIABLE]
        window.finish()
    if not window.span.updates:
        if experiment.signal:
            raise SignalExit(exit_code_of(experiment.signal))
        raise RollmillError("the training ended before its second update, so there is nothing to profile")
    return window
