"""What the page's charts are drawn from: learning curves on a common grid, levels and marks, as plain numbers.

The script in the page turns them into pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np

from rollmill.console.curve import SMOOTHING, evenly_chosen, running_mean
from rollmill.report.groups import LEAST, Group, t_factor
from rollmill.report.run_record import Column, Record

GRID = 160  # points of a curve; more are not visible on a screen
DOTS = 700  # single episodes that are drawn
AXES = ("steps", "minutes")
RANDOM = "random policy"


def return_chart(groups: Sequence[Group], colours: Sequence[int], is_detailed: bool) -> dict[str, Any]:
    """Learning curves; in detail also each run by itself, single episodes and evaluations."""
    series = []
    for group, colour in zip(groups, colours, strict=True):
        entry: dict[str, Any] = {"label": group.label, "colour": colour, **series_of(group, "return")}
        entry["names"] = [_name(group, index) for index in range(len(group.runs))]
        entry["shows_runs"] = len(group.runs) > 1 and (is_detailed or len(group.runs) < LEAST)
        if is_detailed:
            entry["marks"] = _marks(group)
            if len(group.runs) == 1:
                entry["dots"] = episode_dots(group.runs[0])
        series.append(entry)
    return {"quantity": "return", "series": series, "levels": _levels(groups, is_detailed)}


def speed_chart(groups: Sequence[Group], colours: Sequence[int]) -> dict[str, Any]:
    """Steps per second."""
    series = [
        {"label": group.label, "colour": colour, **series_of(group, "speed"), "from_zero": True, "is_plain": True}
        for group, colour in zip(groups, colours, strict=True)
    ]
    return {"quantity": "steps/s", "series": series, "levels": []}


def baselines(group: Group) -> dict[str, float]:
    """Mean returns of the baselines: the random policy, and those of evaluations."""
    found: dict[str, list[float]] = {}
    if random := group.numbers("random_baseline", "return"):
        found[RANDOM] = random
    for run in group.runs:
        for player in run.players[1:]:
            label = RANDOM if player.label == "random" else player.label
            found.setdefault(label, []).append(player.mean)
    return {label: fmean(values) for label, values in found.items()}


def _levels(groups: Sequence[Group], is_detailed: bool) -> list[dict[str, Any]]:
    """Horizontal lines: the random policy, the scripted players, and the best of the constant actions."""
    found: dict[str, list[float]] = {}
    for group in groups:
        for label, value in baselines(group).items():
            found.setdefault(label, []).append(value)
    means = {label: fmean(values) for label, values in found.items()}
    constants = [label for label in means if label.startswith("constant")]
    if constants:
        best = max(constants, key=means.__getitem__)
        means[f"best {best}"] = means[best]
    shown = [label for label in means if label not in constants]
    if not is_detailed:  # where groups are compared, two lines are enough
        others = [label for label in shown if label != RANDOM]
        shown = [label for label in shown if label in (RANDOM, max(others, key=means.__getitem__, default=None))]
    return [{"label": label, "y": means[label]} for label in shown]


def _marks(group: Group) -> list[dict[str, Any]]:
    """Evaluations during training and after it, at the steps of the policy that played."""
    return [
        {
            "steps": found.env_steps,
            "minutes": minutes_at(run, found.env_steps),
            "y": found.mean,
            "low": found.low,
            "high": found.high,
            "label": f"evaluation of {_name(group, index)}",
        }
        for index, run in enumerate(group.runs)
        for found in (*run.periodic, *run.players[:1])
        if found.env_steps is not None
    ]


def _name(group: Group, index: int) -> str:
    run = group.runs[index]
    return f"seed {run.seed}" if run.seed is not None else run.path.name


class Line(NamedTuple):
    """A quantity over the course of a run."""

    steps: Column
    minutes: Column
    values: Column


def return_line(run: Record) -> Line:
    """Mean return of the last 100 episodes, one point per update."""
    episodes, metrics = run.episodes, run.metrics
    if len(returns := episodes["return"]):
        is_last = np.append(episodes["env_steps"][1:] != episodes["env_steps"][:-1], True)
        smooth = running_mean(returns, SMOOTHING)[is_last]
        return Line(episodes["env_steps"][is_last], episodes["seconds"][is_last] / 60, smooth)
    return _known(Line(metrics["env_steps"], metrics["seconds"] / 60, metrics["return_mean_100"]))


def speed_line(run: Record) -> Line:
    """Agent decisions per second."""
    return _known(Line(run.metrics["env_steps"], run.metrics["seconds"] / 60, run.metrics["steps_per_second"]))


def episode_dots(run: Record) -> dict[str, Any]:
    """Single episodes, evenly thinned."""
    chosen = evenly_chosen(len(run.episodes["return"]), DOTS)
    return {
        "steps": rounded(run.episodes["env_steps"][chosen]),
        "minutes": rounded(run.episodes["seconds"][chosen] / 60),
        "y": rounded(run.episodes["return"][chosen]),
    }


def group_curve(runs: Sequence[Record], lines: Sequence[Line], axis: str, is_kept: bool = True) -> dict[str, Any]:
    """Mean over the runs and its interval on a grid; where `is_kept`, a run that is done keeps its last value."""
    drawn = [(run, line) for run, line in zip(runs, lines, strict=True) if len(line.values)]
    if not drawn:
        return {"x": [], "mean": [], "low": [], "high": [], "count": [], "runs": []}
    begin = min(getattr(line, axis)[0] for _, line in drawn)
    end = max(getattr(line, axis)[-1] for _, line in drawn)
    grid = np.linspace(begin, end, GRID if end > begin else 1)
    values = []
    for run, line in drawn:
        after = None if is_kept and run.status == "done" else np.nan  # None: the last value
        values.append(np.interp(grid, getattr(line, axis), line.values, left=np.nan, right=after))
    table = np.ma.masked_invalid(values)
    counts, means = table.count(axis=0), table.mean(axis=0)
    factors = [t_factor(int(count)) if count >= LEAST else np.nan for count in counts]
    halves = factors * table.std(axis=0, ddof=1)
    return {
        "x": rounded(grid),
        "mean": rounded(means),
        "low": rounded(means - halves),
        "high": rounded(means + halves),
        "count": counts.tolist(),
        "runs": [rounded(row) for row in table],
    }


def series_of(group: Group, quantity: str) -> dict[str, Any]:
    """A group's curve along both axes."""
    is_return = quantity == "return"  # what was learned stays; a speed ends with its run
    lines = [return_line(run) if is_return else speed_line(run) for run in group.runs]
    return {axis: group_curve(group.runs, lines, axis, is_return) for axis in AXES}


def minutes_at(run: Record, steps: float) -> float | None:
    """When a run had made so many steps, in minutes since its beginning."""
    line = speed_line(run)
    return float(np.interp(steps, line.steps, line.minutes)) if len(line.steps) else None


def rounded(values: Column) -> list[float | None]:
    """Numbers for JSON, to five digits; NaN and masked ones are null."""
    return [float(f"{value:.5g}") if value == value else None for value in np.ma.filled(values, np.nan).tolist()]


def _known(line: Line) -> Line:
    is_known = ~np.isnan(line.values)
    return Line(*(column[is_known] for column in line))
