"""`rollmill train --seeds`: one config with several seeds, as many at a time as the cores carry."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rollmill.console.display import Display
from rollmill.doctor.preflight import draw_blueprint
from rollmill.errors import Refused, RollmillError, exit_code_of
from rollmill.launch.children import Child, rollmill_command
from rollmill.launch.interruption import Interruption
from rollmill.launch.proc import die_with
from rollmill.launch.process import usable_cores
from rollmill.launch.pulse import watchdog
from rollmill.numerics import require
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.persist.writing import last_line
from rollmill.resuming import MAY_CHANGE, fitting_weights
from rollmill.runtime.topology import draw_graph
from rollmill.settings import ExperimentConfig, load_config
from rollmill.trials.seeds_folder import SeedsFolder, seeds_view

POLL_SECONDS = 0.1
END_SECONDS = 5.0  # that a process has to end after a signal
STATUS = {0: "done", 1: "failed", 2: "refused", 3: "detected", 130: "interrupted", 143: "interrupted"}
EXAMPLE = "write whole numbers with commas between them, such as --seeds 1,2,3"


@dataclass(frozen=True)
class SeedsResult:
    """How the seeds of a folder ended."""

    path: Path
    exit_code: int  # the highest of the runs', or that of the signal which interrupted them


def train_seeds(
    config: Path,
    seeds: str,
    overrides: Sequence[str],
    run: Path | None,
    overwrite: bool,
    dev: bool,
    start_from: Path | None,
    side_by_side: int | None,
) -> SeedsResult:
    """What `rollmill train CONFIG --seeds …` does."""
    numbers = read_seeds(seeds)
    for override in overrides:
        key, _, value = override.partition("=")
        if key.strip() == "seed":
            raise Refused(f"seed={value} and --seeds exclude each other: leave one of them out")
    settings = load_config(config, overrides).config
    require(settings.runtime.numerics)
    cores = deal_cores(usable_cores(), cores_needed(settings, start_from), len(numbers), side_by_side)
    options = ["--dev"] if dev else []
    options += ["--from", str(start_from.resolve())] if start_from is not None else []
    folder = SeedsFolder.create(run, config, settings, numbers, overwrite, options)
    return _train(folder, settings, {seed: _from_scratch(folder, seed) for seed in numbers}, [], cores)


def resume_seeds(path: Path, overrides: Sequence[str], side_by_side: int | None) -> SeedsResult:
    """What `rollmill train DIR --resume` does with the folder of several seeds: train those that are not done."""
    folder = SeedsFolder.open(path)
    for override in overrides:
        if not override.startswith(MAY_CHANGE):
            key = override.partition("=")[0]
            raise Refused(f"{key} can't be changed when runs are resumed, only train.*, runtime.* and observe.*")
    settings = load_config(folder.config, overrides).config
    require(settings.runtime.numerics)
    counted, target = settings.train.goal
    unfinished = [seed for seed in folder.seeds if folder.made(seed, counted) < target]
    if not unfinished:
        what = counted.removeprefix("env_")
        remedy = f"raise train.{what}: {settings.train.continued(0)}"
        raise Refused(f"{path}: all seeds have made their {target} {what}; {remedy}")
    cores = deal_cores(usable_cores(), cores_needed(settings), len(unfinished), side_by_side)
    words = {seed: _resumed(folder, seed) or _from_scratch(folder, seed) for seed in unfinished}
    return _train(folder, settings, words, overrides, cores)


def read_seeds(text: str) -> list[int]:
    """`1,2,3`, or `1-5` for all of them, as numbers in the order given."""
    seeds: list[int] = []
    for word in text.split(","):
        first, dash, last = (part.strip() for part in word.partition("-"))
        if not (first.isdecimal() and first.isascii()) or (dash and not (last.isdecimal() and last.isascii())):
            what = f"'{word.strip()}' is no seed" if word.strip() else "a seed is missing"
            raise Refused(f"--seeds {text!r}: {what}: {EXAMPLE}")
        begin, end = int(first), int(last or first)
        if end < begin or end - begin >= 1000:
            raise Refused(f"--seeds {text!r}: '{word.strip()}' is no range of up to 1000 seeds: {EXAMPLE}")
        seeds += range(begin, end + 1)
    for place, seed in enumerate(seeds):
        if seed in seeds[:place]:
            raise Refused(f"--seeds {text!r}: {seed} is given twice: keep one")
    return seeds


def cores_needed(config: ExperimentConfig, start_from: Path | None = None) -> int:
    """How many cores one run keeps busy: the threads of all its processes; weights that don't fit it are refused."""
    with watchdog(config.runtime.env_seconds):
        blueprint = draw_blueprint(config)
        graph = draw_graph(blueprint)
    if start_from is not None:  # each seed would refuse it by itself, after its folder was made
        fitting_weights(start_from, blueprint)
    threads: dict[str, int] = {}
    for node in graph.nodes:
        threads[node.place] = max(threads.get(node.place, 1), config.runtime.threads_of(node.role))
    return sum(threads.values())


def deal_cores(cores: Sequence[int], need: int, runs: int, wanted: int | None) -> list[list[int]]:
    """The cores of each run that is trained at the same time; empty lists where they have to share.

    Without a share of its own each run would pin its first worker to the same core.
    """
    carried = max(1, len(cores) // need)
    places = min(runs, wanted or carried)
    if places == 1 or places * need > len(cores):
        return [[] for _ in range(places)]
    return [list(cores[place::places]) for place in range(places)]


def _from_scratch(folder: SeedsFolder, seed: int) -> list[str]:
    run = folder.run(seed)
    overwrite = ["--overwrite"] if (run / MARK).is_file() else []  # begun, but without a checkpoint to continue from
    return ["train", str(folder.config), f"seed={seed}", "--run", str(run), *overwrite, *folder.options]


def _resumed(folder: SeedsFolder, seed: int) -> list[str]:
    """How to continue a run; empty if it has no checkpoint."""
    run = folder.run(seed)
    return ["train", str(run), "--resume"] if any((run / "checkpoints").glob("[0-9]*")) else []


def _train(
    folder: SeedsFolder,
    config: ExperimentConfig,
    words: dict[int, list[str]],
    overrides: Sequence[str],
    cores: list[list[int]],
) -> SeedsResult:
    """Train the seeds of `words`; the overrides that are added to those given change no result."""
    added = {"observe.console": "auto"}  # lines, into a file; the terminal is ours
    if len(cores) > 1 and not cores[0] and config.runtime.pin:
        added["runtime.pin"] = "false"  # runs that share cores must not pin their workers to the same ones
    kept = [override for override in overrides if override.partition("=")[0] not in added]
    changes = [*kept, *(f"{key}={value}" for key, value in added.items())]
    observe = config.observe
    display = Display(sys.stdout, observe.console, observe.interval, observe.lines_interval)
    with RunFolder(folder.path).locked():
        for seed in words:
            folder.mark(seed, "waiting")
        manner = "in turn" if len(cores) == 1 else f"{len(cores)} side by side"
        title = f"{config.algorithm.name} on {config.env.id}"
        display.say(f"{title}: seeds {', '.join(map(str, words))}, {manner}, in {folder.path}")
        commands = {seed: [*line, *changes] for seed, line in words.items()}
        try:
            return _Training(folder, config.train.goal, commands, cores, display).run()
        except OSError as error:
            where = error.filename or folder.path
            raise RollmillError(f"{where}: {error.strerror}; fix that, then continue with --resume") from None


class _SeedProcess(NamedTuple):
    """One seed in training: an ordinary `rollmill train`, which dies with the process that started it."""

    seed: int
    cores: list[int]
    process: Child


def _prepare(parent: int, cores: Sequence[int]) -> None:
    die_with(parent)
    if cores:
        os.sched_setaffinity(0, cores)


@dataclass
class _Training:
    """The seeds of a folder in training."""

    folder: SeedsFolder
    goal: tuple[str, int]  # what is counted, and how many each seed makes
    commands: dict[int, list[str]]  # per seed still to be trained: the command line after `rollmill`
    cores: list[list[int]]  # per run at a time
    display: Display
    interruption: Interruption = field(default_factory=Interruption)
    codes: dict[int, int] = field(default_factory=dict)
    running: list[_SeedProcess] = field(default_factory=list)

    def run(self) -> SeedsResult:
        """Train all; one that fails doesn't stop the others."""
        self.interruption.on_request = lambda: self._signal(self.interruption.signal)
        waiting, free = list(self.commands), list(self.cores)
        try:
            with self.interruption.by_signals():
                while self.running or (waiting and not self.interruption.is_wanted):
                    while waiting and free and not self.interruption.is_wanted:
                        self._start(waiting.pop(0), free.pop(0))
                    for ended in [one for one in self.running if one.process.exit_code is not None]:
                        self.running.remove(ended)
                        self._record(ended)
                        free.append(ended.cores)
                    if self.display.is_due:
                        self.display.show(seeds_view(self.folder, *self.goal))
                    time.sleep(POLL_SECONDS)
        finally:
            self._end_all()
            self.display.finish()
        if self.interruption.is_wanted:
            return SeedsResult(self.folder.path, exit_code_of(self.interruption.signal))
        return SeedsResult(self.folder.path, max(self.codes.values(), default=0))

    def _start(self, seed: int, cores: list[int]) -> None:
        command, prepare = rollmill_command(*self.commands[seed]), partial(_prepare, os.getpid(), cores)
        with self.folder.output(seed).open("ab") as file:
            process = Child(command, file, subprocess.STDOUT, has_input=False, prepare=prepare)
        self.running.append(_SeedProcess(seed, cores, process))
        if self.interruption.is_wanted:  # by a signal that came while it was being started
            process.signal(self.interruption.signal)
        self.folder.mark(seed, "running")
        self.display.say(f"seed {seed}: begun, output in {self.folder.output(seed)}")

    def _record(self, ended: _SeedProcess) -> None:
        """Keep and show how a process ended."""
        seed, code = ended.seed, ended.process.exit_code
        assert code is not None
        code = code if code >= 0 else 128 - code  # by a signal: as in shells
        status = STATUS.get(code, "interrupted" if self.interruption.is_wanted else "died")
        self.codes[seed] = code
        self.folder.mark(seed, status)
        reason = "" if code == 0 else f" (exit code {code}): {last_line(self.folder.output(seed))}"
        self.display.say(f"seed {seed}: {status}{reason}")

    def _signal(self, number: int) -> None:
        for one in self.running:
            one.process.signal(number)

    def _end_all(self) -> None:
        """After a second signal or a fault: no process is left."""
        try:
            self._signal(self.interruption.signal or signal.SIGTERM)
        finally:
            while self.running:
                last = self.running.pop()
                last.process.end(END_SECONDS)
                self._record(last)
