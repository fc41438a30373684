"""What `rollmill tune` does."""

from __future__ import annotations

import math
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rollmill.config_file import flattened
from rollmill.errors import Refused, RollmillError
from rollmill.experiment import check_config
from rollmill.runtime.process import usable_cores
from rollmill.settings import ExperimentConfig, load_config
from rollmill.tuning.contest import Contest, Entry
from rollmill.tuning.display import Display, remarks, table
from rollmill.tuning.fragment import fragment_path, machine, write_fragment
from rollmill.tuning.setups import Setup, every_setup
from rollmill.tuning.stand import Contestant, Stand

# A training that never ends by itself, saves nothing and plays nothing beside: only its speed is wanted.
BARE: dict[str, Any] = {
    "train.steps": 10**12,
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
    base, cores = Setup.of(settings), len(usable_cores())
    display = Display(is_shown, seconds)
    stand = Stand(Path(tempfile.mkdtemp(prefix="rollmill-tune-")))
    try:
        check_config(loaded)  # while the stand loads its libraries
        setups = every_setup(base, cores, may_change_environments)

        def start(setup: Setup) -> Contestant:
            return stand.start(_values(settings, setup, base))

        contest = Contest(start, base, setups, cores, seconds, display)
        title = f"{settings.algorithm.name} on {settings.env.id}"
        display.begin(f"{title}: {len(setups)} candidates on {cores} cores, {seconds:g} s")
        contest.run()
    finally:
        display.finish()
        stand.close()
    ranking, winner, measured = contest.ranking(), contest.winner(), contest.entries[base]
    display.say(["", *table(ranking, measured, winner), ""])
    if winner is None:
        raise RollmillError(f"no candidate could be measured; the config as it is: {measured.failed}")
    display.say(remarks(base, ranking, contest.untried, base.unrolls is not None))
    here, changes = machine(), winner.setup.changes(base)
    write_fragment(path, changes, _notes(config, overrides, here, seconds, winner, measured))
    what = (
        "the config as it is: none that was tried is faster by 3 % or more"
        if winner is measured
        else f"fastest: {winner.setup}"
    )
    display.say([what, f"written: {path}", f"train:   rollmill train {config} --with {path}"])
    return {
        "config": str(config),
        "overrides": list(overrides),
        "seconds": seconds,
        "machine": here,
        "candidates": [_record(entry, measured) for entry in ranking],
        "untried": contest.untried,
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


def _notes(
    config: Path, overrides: Sequence[str], here: dict[str, Any], seconds: float, winner: Entry, base: Entry
) -> list[str]:
    before = "failed" if base.rate is None else f"{base.rate:,.0f} steps/s"
    ratio = "" if (times := winner.ratio(base)) is None else f" ({times:.2f} ×)"
    return [
        f"for {config} {shlex.join(overrides)}".rstrip() + f", measured for {seconds:g} s",
        f"machine: {here['processor']}, {here['cores']} cores",
        f"commit:  {here['commit'] or 'unknown'}",
        f"as it is: {base.setup}: {before}",
        f"fastest:  {winner.setup}: {winner.rate:,.0f} steps/s{ratio}; results: {winner.setup.effect(base.setup)}",
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
        "results": entry.setup.effect(base.setup),
        "failed": entry.failed or None,
    }
