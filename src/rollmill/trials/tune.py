"""What `rollmill tune` does."""

from __future__ import annotations

import math
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollmill.config.load import flattened
from rollmill.console.display import Display
from rollmill.errors import Refused, RollmillError
from rollmill.experiment import check_config
from rollmill.launch.process import usable_cores
from rollmill.numerics import require
from rollmill.settings import ExperimentConfig, load_config
from rollmill.trials.contest import Contest, Entry
from rollmill.trials.fragment import fragment_path, machine, write_fragment
from rollmill.trials.setups import Setup, every_setup
from rollmill.trials.stand import Contestant, Stand
from rollmill.trials.tuning_table import ratio_text, remarks, table, verdict

# A training that never ends by itself, saves nothing and plays nothing besides: only its speed is wanted.
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
    """Measure for about so many seconds, write the fastest setting, and say all that was found."""
    if not 0 < seconds < math.inf:
        raise Refused(f"--seconds {seconds:g}: measuring takes time: give more than 0")
    path = fragment_path(config, out)
    loaded = load_config(config, overrides)
    settings = loaded.config
    require(settings.runtime.numerics)
    base, cores = Setup.of(settings), len(usable_cores())
    display = Display(sys.stdout, "auto" if is_shown else "none")
    stand = Stand(Path(tempfile.mkdtemp(prefix="rollmill-tune-")))
    try:
        check_config(loaded)  # while the stand loads its libraries
        setups = every_setup(base, cores, may_change_environments)

        def start(setup: Setup) -> Contestant:
            return stand.start(_values(settings, setup, base))

        contest = Contest(start, base, setups, cores, seconds, display)
        title = f"{settings.algorithm.name} on {settings.env.id}"
        display.say(f"{title}: the config as it is and {len(setups)} candidates on {cores} cores, {seconds:g} s")
        contest.run()
    finally:
        display.finish()
        stand.close()
    winner, measured = contest.winner(), contest.base
    display.say("", *table(contest), "")
    if winner is None:
        raise RollmillError(f"no candidate could be measured; the config as it is: {measured.failed}")
    here, changes = machine(), winner.setup.changes(base)
    write_fragment(path, changes, _notes(config, overrides, here, seconds, contest))
    display.say(*remarks(contest), *verdict(contest))
    if changes:
        display.say(f"written: {path}", f"train:   rollmill train {config} --with {path}")
    else:
        display.say(f"written: {path}, which changes nothing")
    return {
        "config": str(config),
        "overrides": list(overrides),
        "seconds": seconds,
        "machine": here,
        "candidates": [_record(entry, measured) for entry in contest.ranking()],
        "untried": contest.untried,
        "seconds_for_all": contest.seconds_for_all,
        "fastest": changes,
        "written": str(path),
    }


def _values(settings: ExperimentConfig, setup: Setup, base: Setup) -> dict[str, Any]:
    """The whole config of a candidate, as plain values."""
    values: dict[str, Any] = settings.model_dump(mode="json", by_alias=True)
    known = flattened(settings)
    for key, value in {**{key: value for key, value in BARE.items() if key in known}, **setup.changes(base)}.items():
        *sections, name = key.split(".")
        section = values
        for step in sections:
            section = section[step]
        section[name] = value
    return values


def _notes(config: Path, overrides: Sequence[str], here: dict[str, Any], seconds: float, contest: Contest) -> list[str]:
    winner, base = contest.winner(), contest.base
    assert winner is not None
    before = "failed" if base.rate is None else f"{base.rate:,.0f} steps/s"
    if winner is base:
        fastest = "the same, so there is nothing to change"
    else:
        ratio = f" ({times} ×)" if (times := ratio_text(winner, base)) else ""
        results = f"; results: {effect}" if (effect := winner.setup.effect(base.setup)) else ""
        fastest = f"{winner.setup}: {winner.rate:,.0f} steps/s{ratio}{results}"
    tried = contest.candidates - contest.untried
    return [
        f"for {config} {shlex.join(overrides)}".rstrip() + f", measured for {seconds:g} s",
        f"machine: {here['processor']}, {here['cores']} cores",
        f"commit:  {here['commit'] or 'unknown'}",
        f"as it is: {base.setup}: {before}",
        f"fastest of it and {tried} of {contest.candidates} candidates: {fastest}",
    ]


def _record(entry: Entry, base: Entry) -> dict[str, Any]:
    return {
        "changes": entry.setup.changes(base.setup),
        "setup": str(entry.setup),
        "steps_per_second": entry.rate,
        "ratio": entry.ratio(base),
        "trial": entry.rates,
        "finals": entry.finals,
        "shares": entry.shares,
        "results": entry.setup.effect(base.setup) or None,
        "failed": entry.failed or None,
    }
