"""Training all seeds of a folder: as many at a time as the cores carry."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollmill.console.display import Display
from rollmill.errors import Refused, RollmillError, exit_code_of
from rollmill.launch.interruption import Interruption
from rollmill.launch.process import usable_cores
from rollmill.numerics import require
from rollmill.persist.run_folder import MARK
from rollmill.resuming import MAY_CHANGE
from rollmill.settings import ExperimentConfig, load_config
from rollmill.trials.seed_display import seeds_view
from rollmill.trials.seed_plan import cores_needed, deal_cores, read_seeds, refuse_seed_override
from rollmill.trials.seed_process import SeedProcess, last_words
from rollmill.trials.seeds_folder import SeedsFolder

LOOK_SECONDS = 0.1
STATUS = {0: "done", 1: "failed", 2: "refused", 3: "detected", 130: "interrupted", 143: "interrupted"}


@dataclass(frozen=True)
class Outcome:
    """How the seeds of a folder ended."""

    path: Path
    exit_code: int  # the highest of the runs', or that of the signal which interrupted them


@dataclass
class Training:
    """The seeds of a folder on their way."""

    folder: SeedsFolder
    config: ExperimentConfig
    words: dict[int, list[str]]  # per seed still to be trained: the command line after `rollmill`
    cores: list[list[int]]  # per run at a time
    display: Display
    interruption: Interruption = field(default_factory=Interruption)
    codes: dict[int, int] = field(default_factory=dict)
    running: list[SeedProcess] = field(default_factory=list)

    def run(self) -> Outcome:
        """Train all; one that fails doesn't stop the others."""
        self.interruption.on_request = self._pass_on
        waiting = list(self.words)
        free = list(self.cores)
        try:
            with self.interruption.by_signals():
                while self.running or (waiting and not self.interruption.is_wanted):
                    while waiting and free and not self.interruption.is_wanted:
                        self._start(waiting.pop(0), free.pop(0))
                    free += [child.cores for child in self._ended()]
                    if self.display.is_due:
                        self.display.show(seeds_view(self.folder, self.config.train.steps))
                    time.sleep(LOOK_SECONDS)
        finally:
            self._end_all()
            self.display.finish()
        if self.interruption.is_wanted:
            return Outcome(self.folder.path, exit_code_of(self.interruption.signal))
        return Outcome(self.folder.path, max(self.codes.values(), default=0))

    def _start(self, seed: int, cores: list[int]) -> None:
        child = SeedProcess(seed, self.words[seed], self.folder.output(seed), cores)
        self.running.append(child)
        if self.interruption.is_wanted:  # by a signal that came while it was being started
            child.signal(self.interruption.signal)
        self.folder.mark(seed, "running")
        self.display.say(f"seed {seed}: begun, output in {self.folder.output(seed)}")

    def _ended(self) -> list[SeedProcess]:
        """The children that have ended since the last look, taken note of."""
        ended = [child for child in self.running if child.exit_code is not None]
        for child in ended:
            self.running.remove(child)
            self._note(child)
        return ended

    def _note(self, child: SeedProcess) -> None:
        code = child.exit_code
        assert code is not None
        status = STATUS.get(code, "interrupted" if self.interruption.is_wanted else "died")
        self.codes[child.seed] = code
        self.folder.mark(child.seed, status)
        reason = "" if code == 0 else f" (exit code {code}): {last_words(self.folder.output(child.seed))}"
        self.display.say(f"seed {child.seed}: {status}{reason}")

    def _pass_on(self) -> None:
        for child in self.running:
            child.signal(self.interruption.signal)

    def _end_all(self) -> None:
        """After a second signal or a fault: nothing is left over."""
        try:
            for child in self.running:
                child.signal(self.interruption.signal or signal.SIGTERM)
        finally:
            while self.running:
                child = self.running.pop()
                child.end()
                self._note(child)


def train_seeds(
    config: Path,
    seeds: str,
    overrides: Sequence[str],
    run: Path | None,
    overwrite: bool,
    dev: bool,
    start_from: Path | None,
    side_by_side: int | None,
) -> Outcome:
    """What `rollmill train CONFIG --seeds …` does."""
    numbers = read_seeds(seeds)
    refuse_seed_override(overrides)
    settings = load_config(config, overrides).config
    require(settings.runtime.numerics)
    cores = deal_cores(usable_cores(), cores_needed(settings, start_from), len(numbers), side_by_side)
    options = ["--dev"] if dev else []
    options += ["--from", str(start_from.resolve())] if start_from is not None else []
    folder = SeedsFolder.create(run, config, settings, numbers, overwrite, options)
    overrides = _options([], settings, cores)
    words = {seed: [*_from_scratch(folder, seed), *overrides] for seed in numbers}
    return _train(folder, settings, words, cores)


def resume_seeds(path: Path, overrides: Sequence[str], side_by_side: int | None) -> Outcome:
    """What `rollmill train DIR --resume` does with the folder of several seeds: train those that are not done."""
    folder = SeedsFolder.open(path)
    for override in overrides:
        if not override.startswith((f"{MAY_CHANGE[0]}=", *MAY_CHANGE[1:])):
            key = override.partition("=")[0]
            raise Refused(f"{key} can't be changed when runs are resumed, only train.steps, runtime.* and observe.*")
    settings = load_config(folder.config, overrides).config
    require(settings.runtime.numerics)
    unfinished = [seed for seed in folder.seeds if not _is_done(folder, seed, settings.train.steps)]
    if not unfinished:
        steps = settings.train.steps
        raise Refused(f"{path}: all seeds have made their {steps} steps; raise train.steps: train.steps={2 * steps}")
    cores = deal_cores(usable_cores(), cores_needed(settings), len(unfinished), side_by_side)
    options = _options(overrides, settings, cores)
    words = {seed: [*(_resumed(folder, seed) or _from_scratch(folder, seed)), *options] for seed in unfinished}
    return _train(folder, settings, words, cores)


def _train(
    folder: SeedsFolder, settings: ExperimentConfig, words: dict[int, list[str]], cores: list[list[int]]
) -> Outcome:
    observe = settings.observe
    display = Display(sys.stdout, observe.console, observe.interval, observe.lines_interval)
    with folder.locked():
        for seed in words:
            folder.mark(seed, "waiting")
        manner = "in turn" if len(cores) == 1 else f"{len(cores)} side by side"
        title = f"{settings.algorithm.name} on {settings.env.id}"
        display.say(f"{title}: seeds {', '.join(map(str, words))}, {manner}, in {folder.path}")
        try:
            return Training(folder, settings, words, cores, display).run()
        except OSError as error:
            where = error.filename or folder.path
            raise RollmillError(f"{where}: {error.strerror}; fix that, then continue with --resume") from None


def _from_scratch(folder: SeedsFolder, seed: int) -> list[str]:
    run = folder.run(seed)
    overwrite = ["--overwrite"] if (run / MARK).is_file() else []  # begun, but without a checkpoint to continue from
    return ["train", str(folder.config), f"seed={seed}", "--run", str(run), *overwrite, *folder.options]


def _resumed(folder: SeedsFolder, seed: int) -> list[str]:
    """How to continue with a run; empty if it has no checkpoint."""
    run = folder.run(seed)
    return ["train", str(run), "--resume"] if any((run / "checkpoints").glob("[0-9]*")) else []


def _options(overrides: Sequence[str], settings: ExperimentConfig, cores: list[list[int]]) -> list[str]:
    """The overrides for the processes of all seeds; what is added to those given changes no result."""
    added = {"observe.console": "auto"}  # lines, into a file; the terminal is ours
    if len(cores) > 1 and not cores[0] and settings.runtime.pin:
        added["runtime.pin"] = "false"  # runs that share cores must not tie their workers to the same ones
    kept = [override for override in overrides if override.partition("=")[0] not in added]
    return [*kept, *(f"{key}={value}" for key, value in added.items())]


def _is_done(folder: SeedsFolder, seed: int, target: int) -> bool:
    """Whether it has made all its steps, so that there is nothing to continue with."""
    return (folder.summary(seed).get("env_steps") or 0) >= target
