"""The learning curve of a run as a picture."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import numpy as np

from rollmill.events import Event
from rollmill.launch.caches import font_cache_below_tmp
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import amount, cut
from rollmill.persist.writing import read_record, write_atomically
from rollmill.types import Array

SMOOTHING = 100  # episodes
DOTS = 5000  # more of them only make the file larger
INK, FAINT, LINE, BASELINE = "#1f2430", "#8a93a6", "#2563eb", "#d97706"


class CurveObserver:
    """Draws <run>/curve.png when the observers before it have written their files."""

    name = "curve"
    overflow: Overflow = "drop"

    def __init__(self, run: Path) -> None:
        self._run = run

    def receive(self, event: Event) -> None:
        """Everything that is drawn is read from the files."""

    def close(self) -> None:
        """Draw, unless the run ended before anything was written."""
        if (self._run / "summary.json").exists():
            draw_curve(self._run)


def draw_curve(run: Path) -> Path:
    """Draw episode returns, their mean over 100 episodes and the random baseline into <run>/curve.png."""
    with font_cache_below_tmp():
        # The object interface draws with Agg and keeps no global state, unlike pyplot.
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter

    steps, returns = _read_episodes(run / "episodes.csv")
    summary = read_record(run / "summary.json")
    figure = Figure(figsize=(8, 4.5), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    _draw_returns(axes, steps, returns)
    random_return = (summary.get("random_baseline") or {}).get("return")
    if random_return is not None:
        label = f"random policy {amount(random_return)}"
        axes.axhline(random_return, color=BASELINE, linestyle="--", linewidth=1.5, label=label)
    title = cut(summary.get("title") or run.name, 72)
    axes.set_title(title, loc="left", fontweight="bold", color=INK, pad=22)  # room for the legend beneath it
    axes.set_xlabel("env steps (agent decisions)", color=INK)
    axes.set_ylabel("episode return", color=INK)
    axes.set_xlim(0, max(1, summary.get("env_steps") or 0, *steps[-1:]))
    axes.margins(y=0.08)
    axes.xaxis.set_major_formatter(FuncFormatter(_short_count))
    axes.grid(color="#e5e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    if axes.get_legend_handles_labels()[0]:
        # Between the title and the axes it can't cover anything, however long the title is.
        beneath = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 3, "borderaxespad": 0.2}
        axes.legend(**beneath, frameon=False, fontsize=9, labelcolor=INK, handlelength=1.6, columnspacing=1.2)
    path = run / "curve.png"
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_atomically(path, picture.getvalue())
    return path


def _draw_returns(axes: Any, steps: Array, returns: Array) -> None:
    if not len(returns):
        axes.text(0.5, 0.5, "no episode has ended", transform=axes.transAxes, ha="center", color=FAINT)
        return
    shown = evenly_chosen(len(returns), DOTS)
    axes.scatter(steps[shown], returns[shown], s=7, color=FAINT, alpha=0.45, linewidths=0, label="episodes")
    smooth = running_mean(returns, SMOOTHING)
    is_last = np.append(steps[1:] != steps[:-1], True)  # of its update: one point each, or the line becomes a stair
    axes.plot(steps[is_last], smooth[is_last], color=LINE, linewidth=2, label=f"mean of {SMOOTHING} episodes")
    axes.plot(steps[-1:], smooth[-1:], "o", color=LINE, markersize=6, clip_on=False)
    axes.annotate(
        amount(float(smooth[-1])),
        (steps[-1], smooth[-1]),
        xytext=(8, 0),
        textcoords="offset points",
        va="center",
        color=LINE,
        fontweight="bold",
        annotation_clip=False,
    )


def running_mean(values: Array, size: int) -> Array:
    """Mean of the last `size` values at every place; of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - size)
    means: Array = (sums[ends] - sums[begins]) / (ends - begins)
    return means


def evenly_chosen(count: int, most: int) -> Array:
    """Indices of at most so many of `count` values, evenly spaced from the first to the last."""
    return np.unique(np.linspace(0, max(0, count - 1), min(count, most)).astype(int))


def _short_count(value: float, _position: int) -> str:
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= unit:
            return f"{value / unit:g}{suffix}"
    return f"{value:g}"


def _read_episodes(path: Path) -> tuple[Array, Array]:
    if not path.exists():
        return np.zeros(0), np.zeros(0)
    with path.open(encoding="utf-8", newline="") as file:
        # A killed run may leave half a line, recognised by the lack of its last column.
        rows = [row for row in csv.DictReader(file) if row["truncated"]]
    table = np.array([(float(row["env_steps"]), float(row["return"])) for row in rows]).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return table[:, 0], table[:, 1]
