"""How several runs come along, a row for each: redrawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from rollmill.console.outlet import Outlet
from rollmill.observe.config import ObserveConfig
from rollmill.observe.phrases import amount, clock, count

if TYPE_CHECKING:
    from rich.console import RenderableType


HEAD = ("", "", "", "", "steps", "return", "steps/s", "ETA")


@dataclass(frozen=True)
class Row:
    """Status of one seed."""

    seed: int
    status: str
    steps: float
    target: int
    score: float | None  # smoothed return
    rate: float | None  # steps per second

    @property
    def fraction(self) -> float:
        """Share of the steps that is made."""
        return min(1.0, self.steps / self.target)

    @property
    def remaining(self) -> float | None:
        """Seconds to the end; None if it isn't under way."""
        return (self.target - self.steps) / self.rate if self.status == "running" and self.rate else None

    @property
    def words(self) -> tuple[str, ...]:
        """What is shown of it, besides a bar."""
        steps = f"{count(min(self.steps, self.target))}/{count(self.target)}"
        rate = count(self.rate) if self.status == "running" else "-"
        left = clock(max(0.0, self.remaining)) if self.remaining is not None else "-:--"
        return (f"seed {self.seed}", self.status, f"{self.fraction * 100:3.0f}%", steps, amount(self.score), rate, left)


def read_row(seed: int, status: str, target: int, run: Path) -> Row:
    """What the run's newest row of metrics says."""
    newest: dict[str, Any] = {}
    if status != "waiting":
        newest = _last_metrics(run / "metrics.jsonl")
    return Row(
        seed, status, newest.get("env_steps") or 0, target, newest.get("return_ema"), newest.get("steps_per_second")
    )


class Display(Protocol):
    """A way to show the rows."""

    def say(self, line: str) -> None:
        """Print a line that stays."""

    def show(self, rows: Sequence[Row]) -> None:
        """Show how far all have come, if it is time for that."""

    def finish(self) -> None:
        """Give the terminal back."""


class Lines:
    """A line for each run under way, every few seconds."""

    def __init__(self, outlet: Outlet, interval: float) -> None:
        self._outlet, self._interval = outlet, interval
        self._shown = monotonic()
        self._last: Sequence[Row] = ()

    def say(self, line: str) -> None:
        """Print a line."""
        self._outlet.write(f"{line}\n")
        self._outlet.flush()

    def show(self, rows: Sequence[Row]) -> None:
        """Print the lines, if the last ones are old enough."""
        if monotonic() - self._shown < self._interval:
            return
        self._shown = monotonic()
        before, self._last = self._last, rows
        for row in rows:
            if row.status == "running" and row.steps and row not in before:  # no news is no line
                name, _, share, steps, score, rate, left = row.words
                self.say(f"{name}  {share}  {steps} steps  ETA {left}  return {score}  {rate} steps/s")

    def finish(self) -> None:
        """Nothing is left open."""


class Bars:
    """A bar for each seed at the foot of a terminal; rows that are redrawn in place; lines that stay go above them."""

    def __init__(self, outlet: Outlet, interval: float) -> None:
        from rich.live import Live

        from rollmill.console.bar import console_on

        self._console, self._interval = console_on(outlet), interval
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)

    def show(self, rows: Sequence[Row]) -> None:
        """Draw the rows in the place of the last, if those are old enough."""
        if monotonic() - self._drawn < self._interval:
            return
        self._drawn = monotonic()
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)  # rich hides it, and a killed process could not give it back
        self._live.update(_drawn(rows), refresh=True)

    def finish(self) -> None:
        """Take the bars away: the table of results says more."""
        if self._live.is_started:
            self._live.stop()


def _drawn(rows: Sequence[Row]) -> RenderableType:
    """A line per seed, within 80 columns."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, head in enumerate(HEAD):
        is_bar = place == 2
        table.add_column(head, no_wrap=True, ratio=1 if is_bar else None, justify="left" if place < 3 else "right")
    for row in rows:
        name, status, share, *facts = row.words
        table.add_row(name, status, ProgressBar(total=1.0, completed=row.fraction), share, *facts)
    return table


class Silence:
    """Shows nothing."""

    def say(self, line: str) -> None:
        """Not a word."""

    def show(self, rows: Sequence[Row]) -> None:
        """Not a line."""

    def finish(self) -> None:
        """Nothing was begun."""


def make_display(config: ObserveConfig, stream: TextIO | None) -> Display:
    """The display that suits the configuration and the stream."""
    outlet = Outlet(stream)
    if config.console == "none":
        return Silence()
    is_terminal = outlet.isatty() and os.environ.get("TERM") != "dumb"
    if config.console == "bar" or (config.console == "auto" and is_terminal):
        return Bars(outlet, config.interval)
    return Lines(outlet, config.lines_interval)


def _last_metrics(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as lines:
            lines.seek(max(0, os.fstat(lines.fileno()).st_size - 8192))
            *_, newest, _ = lines.read().split(b"\n")  # after the last line break there is nothing, or half a row
        row = json.loads(newest)
    except (OSError, ValueError):  # not there yet
        return {}
    return row if isinstance(row, dict) else {}
