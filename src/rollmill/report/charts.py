"""What the page's charts are drawn from: plain numbers, which the script in the page turns into pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollmill.report.curves import episode_dots, minutes_at, series_of
from rollmill.report.groups import Group
from rollmill.report.spread import LEAST, spread


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
        found["random policy"] = random
    for run in group.runs:
        for player in run.evaluated.players[1:]:
            label = "random policy" if player.label == "random" else player.label
            found.setdefault(label, []).append(player.mean)
    means = {label: spread(values) for label, values in found.items()}
    return {label: mean.mean for label, mean in means.items() if mean}


def _levels(groups: Sequence[Group], is_detailed: bool) -> list[dict[str, Any]]:
    """Horizontal lines: the random policy, the scripted players, and the best of the constant actions."""
    merged: dict[str, list[float]] = {}
    for group in groups:
        for label, value in baselines(group).items():
            merged.setdefault(label, []).append(value)
    means = {label: sum(values) / len(values) for label, values in merged.items()}
    constant = {label: value for label, value in means.items() if label.startswith("constant")}
    chosen = {label: value for label, value in means.items() if label not in constant}
    if constant:
        best = max(constant, key=lambda label: constant[label])
        chosen[f"best {best}"] = constant[best]
    if not is_detailed:  # where groups are compared, two lines are enough
        scripted = {label: value for label, value in chosen.items() if label != "random policy"}
        best_of = max(scripted, key=lambda label: scripted[label], default=None)
        chosen = {label: value for label, value in chosen.items() if label in ("random policy", best_of)}
    return [{"label": label, "y": value} for label, value in chosen.items()]


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
        for found in (*run.evaluated.periodic, *run.evaluated.players[:1])
        if found.env_steps is not None
    ]


def _name(group: Group, index: int) -> str:
    run = group.runs[index]
    return f"seed {run.seed}" if run.seed is not None else run.path.name
