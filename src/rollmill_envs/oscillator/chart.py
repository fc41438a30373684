"""The picture of an examination: the mean field over time, with the phases shaded."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from rollmill.launch.caches import font_cache_below_tmp
from rollmill_envs.oscillator.stimulus import Floats

_PHASES = {"left alone": "#eef1f6", "controlled": "#dbeafe", "released": "#eef1f6"}
_INK, _FAINT, _LINE, _ACTION = "#1f2430", "#8a93a6", "#2563eb", "#d97706"


class Course(NamedTuple):
    """What happened, decision by decision; X at the end of each."""

    field: Floats  # X [T, K]
    action: Floats  # [T, K]
    lengths: tuple[int, ...]  # decisions of each phase
    decision_time: float  # model time per decision


def draw_course(course: Course, path: Path, title: str) -> None:
    """X of the first ensemble above, its action below."""
    with font_cache_below_tmp():
        from matplotlib.figure import Figure  # the object interface: pyplot keeps global state

    time = np.arange(len(course.field)) * course.decision_time
    figure = Figure(figsize=(10, 5), dpi=120, layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    upper.plot(time, course.field[:, 0], color=_LINE, linewidth=0.6)
    upper.set_ylabel("mean field X")
    lower.plot(time, course.action[:, 0], color=_ACTION, linewidth=0.6)
    lower.set_ylabel("action a")
    lower.set_xlabel("time of the model")
    upper.margins(y=0.12)
    top = upper.get_ylim()[1]
    edges = np.cumsum((0, *course.lengths)) * course.decision_time
    for (name, shade), start, end in zip(_PHASES.items(), edges, edges[1:], strict=False):
        for axes in (upper, lower):
            axes.axvspan(start, end, color=shade, linewidth=0, zorder=0)
        deviation = course.field[(time >= start + (end - start) / 3) & (time < end), 0].std()
        label = f"{name}: std X = {deviation:.3g}"
        upper.text((start + end) / 2, top, label, ha="center", va="top", color=_INK)
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
        axes.margins(x=0)
    figure.suptitle(title, color=_INK)
    figure.savefig(path)
