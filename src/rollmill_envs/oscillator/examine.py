"""The examination of a controller: the ensemble left alone, controlled, and released again."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np

from rollmill import seeding
from rollmill.envs.config import EnvConfig
from rollmill.envs.families import read_args
from rollmill.envs.player import MakePlayer, Player, base_group
from rollmill_envs.oscillator.chart import Course, draw_course
from rollmill_envs.oscillator.config import SETTINGS, OscillatorConfig
from rollmill_envs.oscillator.controllers import SCRIPTS
from rollmill_envs.oscillator.stimulus import action_of

PHASES = ("free", "controlled", "released")
FORMS = {"short": (7_500, 7_500, 5_000), "long": (25_000, 25_000, 5_000)}  # integration steps of the phases
SETTLING = 1 / 3  # of a phase, before it is measured


def examine(config: EnvConfig, seed: int, make_player: MakePlayer, folder: Path) -> dict[str, Any]:
    """Suppression S = std(X free) / std(X controlled) of each ensemble, and a picture of X over time.

    The classical controllers are examined with the same ensembles. `env.args.examination` chooses the lengths of the
    phases, `env.args.ensembles` how many are examined.
    """
    settings = read_args(config, SETTINGS[config.id])
    course = run_course(config, settings, seed, make_player(settings.ensembles))
    draw_course(course, folder / "mean_field.png", f"{config.id}, {settings.neurons} neurons")
    alone = _without_first_agent(config)
    others = {
        name: measure(run_course(alone, settings, seed, make(alone, settings.ensembles)))
        for name, make in SCRIPTS.items()
    }
    said = (f"{name} {found['S']:.1f} (|a| {found['mean_abs_action']:.2g})" for name, found in others.items())
    found = measure(course)
    return found | {
        "S costs": f"mean |a| {found['mean_abs_action']:.2g}",
        "S beside": ", ".join(said),
        "controllers": others,
        "picture": "mean_field.png",
    }


def measure(course: Course) -> dict[str, Any]:
    """Deviations of X in the settled part of each phase, what the control costs, and S."""
    deviations, means, costs = {}, {}, {}
    start = 0
    for phase, length in zip(PHASES, course.lengths, strict=True):
        settled = slice(start + int(length * SETTLING), start + length)
        deviations[phase] = course.field[settled].std(0)
        means[phase] = course.field[settled].mean(0)
        costs[phase] = np.abs(course.action[settled]).mean(0)
        start += length
    suppression = deviations["free"] / deviations["controlled"]
    return {
        "S": float(suppression.mean()),
        "S_of_each": suppression.tolist(),
        "mean_abs_action": float(costs["controlled"].mean()),
        "std_X": {phase: float(deviations[phase].mean()) for phase in PHASES},
        "mean_X": {phase: float(means[phase].mean()) for phase in PHASES},
        "decisions": dict(zip(PHASES, course.lengths, strict=True)),
    }


def run_course(config: EnvConfig, settings: OscillatorConfig, seed: int, player: Player) -> Course:
    """Play the three phases in one go, in `settings.ensembles` ensembles; actions are taken only in the second."""
    from rollmill.envs.make import make_group

    size = settings.ensembles
    period = base_group(make_group(config, 1)).frame_skip
    lengths = tuple(steps // period for steps in FORMS[settings.examination])
    # a coupling that drifts would be another in each phase, and S would compare two ensembles; it is drawn instead
    args = {key: value for key, value in config.args.items() if key not in ("drift", "walk")}
    whole = {"time_limit": sum(lengths), "args": args | {"stagger": 0.0}}
    group = make_group(config.model_copy(update=whole), size)
    base = cast(Any, base_group(group))
    everyone, none = np.ones(size, bool), np.zeros(size, bool)
    group.reset(everyone, np.array([seeding.integer_seed(seed, "examination", k) for k in range(size)]))
    idle = action_of(np.zeros(size), base.action_space, settings.action_limit)  # may be observed as last action
    field, action = np.zeros((2, sum(lengths), size))
    t = 0
    for phase, length in zip(PHASES, lengths, strict=True):
        base.is_muted = phase != "controlled"
        for first in [True] + [False] * (length - 1):
            chosen = idle if base.is_muted else player(group, everyone if first else none)
            group.step(chosen, everyone)
            field[t], action[t] = base.fields[:, 0, -1], base.amplitude
            t += 1
    group.close()
    return Course(field, action, lengths, settings.step * period)


def _without_first_agent(config: EnvConfig) -> EnvConfig:
    """The environment as the classical controllers have it: without other actions."""
    return config.model_copy(update={"args": {key: value for key, value in config.args.items() if key != "frozen"}})
