"""`rollmill tune`: measure which setup trains fastest, and write a file with the settings that changed."""

from __future__ import annotations

import math
import os
import platform
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rollmill.config.load import flattened
from rollmill.config.yaml_text import written
from rollmill.console.display import Display
from rollmill.errors import Refused, RollmillError
from rollmill.experiment import check_config
from rollmill.launch.process import usable_cores
from rollmill.numerics import require
from rollmill.persist.run_folder import git_commit
from rollmill.persist.writing import write_atomically
from rollmill.settings import load_config
from rollmill.trials.candidates import CandidateServer
from rollmill.trials.search import Search, Trial
from rollmill.trials.setups import Setup, every_setup
from rollmill.trials.tuning_table import ratio_text, remarks, table, verdict

HEADING = "# Written by rollmill tune"  # a file that begins so may be replaced
# A training that never ends by itself, saves nothing and evaluates nothing: only its speed is wanted.
BARE: dict[str, Any] = {
    "train.steps": 10**12,
    "train.updates": None,
    "checkpoint.seconds": 1e9,
    "checkpoint.updates": None,
    "checkpoint.milestone_steps": None,
    "checkpoint.best": "mean_100",
    "observe.evaluate.seconds": None,
    "observe.baseline_episodes": 0,
    "observe.final_episodes": 0,
    "observe.observers": [],
}


def tune(
    config: Path,
    overrides: Sequence[str],
    seconds: float,
    out: Path | None,
    may_change_environments: bool,
    is_shown: bool,
) -> dict[str, Any]:
    """Measure for about so many seconds and write the fastest settings; the record of all measurements."""
    if not 0 < seconds < math.inf:
        raise Refused(f"--seconds {seconds:g}: measuring takes time: give more than 0")
    path = fragment_path(config, out)
    loaded = load_config(config, overrides)
    settings = loaded.config
    require(settings.runtime.numerics)
    base, cores = Setup.of(settings), len(usable_cores())
    display = Display(sys.stdout, "auto" if is_shown else "none")
    known = flattened(settings)
    bare = {key: value for key, value in BARE.items() if key in known}
    server = CandidateServer(Path(tempfile.mkdtemp(prefix="rollmill-tune-")))
    try:
        check_config(loaded)  # while the server loads its libraries
        setups = every_setup(base, cores, may_change_environments)
        search = Search(
            lambda setup: server.start(settings, {**bare, **setup.changes(base)}), base, setups, cores, seconds, display
        )
        title = f"{settings.algorithm.name} on {settings.env.id}"
        display.say(f"{title}: the config as it is and {len(setups)} candidates on {cores} cores, {seconds:g} s")
        search.run()
    finally:
        display.finish()
        server.close()
    winner, measured = search.winner(), search.base
    display.say("", *table(search), "")
    if winner is None:
        raise RollmillError(f"no candidate could be measured; the config as it is: {measured.failed}")
    here, changes = _machine(), winner.setup.changes(base)
    write_fragment(path, changes, _notes(config, overrides, here, seconds, search))
    display.say(*remarks(search), *verdict(search))
    if changes:
        display.say(f"written: {path}", f"train:   rollmill train {config} --with {path}")
    else:
        display.say(f"written: {path}, which changes nothing")
    return {
        "config": str(config),
        "overrides": list(overrides),
        "seconds": seconds,
        "machine": here,
        "candidates": [_record(trial, measured) for trial in search.ranking()],
        "untried": search.untried,
        "seconds_for_all": search.seconds_for_all,
        "fastest": changes,
        "written": str(path),
    }


def _notes(config: Path, overrides: Sequence[str], here: dict[str, Any], seconds: float, search: Search) -> list[str]:
    winner, base = search.winner(), search.base
    assert winner is not None
    before = "failed" if base.rate is None else f"{base.rate:,.0f} steps/s"
    if winner is base:
        fastest = "the same, so there is nothing to change"
    else:
        ratio = f" ({times} ×)" if (times := ratio_text(winner, base)) else ""
        results = f"; results: {effect}" if (effect := winner.setup.effect(base.setup)) else ""
        fastest = f"{winner.setup}: {winner.rate:,.0f} steps/s{ratio}{results}"
    tried = search.candidates - search.untried
    return [
        f"for {config} {shlex.join(overrides)}".rstrip() + f", measured for {seconds:g} s",
        f"machine: {here['processor']}, {here['cores']} cores",
        f"commit:  {here['commit'] or 'unknown'}",
        f"as it is: {base.setup}: {before}",
        f"fastest of it and {tried} of {search.candidates} candidates: {fastest}",
    ]


def _record(trial: Trial, base: Trial) -> dict[str, Any]:
    return {
        "changes": trial.setup.changes(base.setup),
        "setup": str(trial.setup),
        "steps_per_second": trial.rate,
        "ratio": trial.ratio(base),
        "trial": trial.rates,
        "finals": trial.finals,
        "shares": trial.shares,
        "results": trial.setup.effect(base.setup) or None,
        "failed": trial.failed or None,
    }


def fragment_path(config: Path, out: Path | None) -> Path:
    """The file to write; refused before measuring if that would replace something else."""
    path = out or Path(f"{config.stem}.tuned.yaml")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else f"can't be made: there is no folder {path.parent}"
        raise Refused(f"--out {path} {what}; name a file in a folder that exists")
    if path.exists() and not _is_ours(path):
        raise Refused(f"--out {path} exists and wasn't written by rollmill tune; name another file")
    return path


def write_fragment(path: Path, changes: Mapping[str, Any], notes: list[str]) -> None:
    """Write the settings as nested sections below a comment."""
    tree: dict[str, Any] = {}
    for key, value in changes.items():
        *sections, name = key.split(".")
        section = tree
        for step in sections:
            section = section.setdefault(step, {})
        section[name] = value
    header = [f"{HEADING}, {time.strftime('%Y-%m-%d %H:%M %z')}", *(f"# {line}".rstrip() for line in notes)]
    try:
        write_atomically(path, "\n".join([*header, written(tree)]))
    except OSError as error:
        raise Refused(f"--out {path} can't be written: {error.strerror}; name another file") from None


def _machine() -> dict[str, Any]:
    """The machine and commit that the measurements are valid for."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {"processor": model, "cores": len(os.sched_getaffinity(0)), "commit": git_commit()}


def _is_ours(path: Path) -> bool:
    try:
        return path.read_text(encoding="utf-8").startswith(HEADING)
    except (OSError, UnicodeDecodeError):
        return False
