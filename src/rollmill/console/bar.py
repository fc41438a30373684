"""The progress bar, three lines at the foot of a terminal, four where training is asynchronous.

It imports rich, so it is imported only when shown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.console.outlet import Outlet
from rollmill.console.view import Scene
from rollmill.observe.phrases import amount, clock, count, decimals, shares


class BarDisplay:
    """Progress that is redrawn in place; lines that stay go above it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        # We redraw when there is news; rich's own thread would redraw ten times a second.
        self._live = Live(console=console, auto_refresh=False)

    def say(self, lines: Iterable[str]) -> None:
        """Print lines above the bar, as they are: a bracket is no markup and a long path is not cut."""
        for line in lines:
            self._console.print(Text(line), soft_wrap=True)

    def show(self, scene: Scene) -> None:
        """Draw the scene in the place of the last."""
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)  # rich hides it, and a killed run could not give it back
        self._live.update(draw(scene), refresh=True)

    def finish(self) -> None:
        """Leave the last scene where it is and give the terminal back."""
        if self._live.is_started:
            self._live.stop()


def console_on(outlet: Outlet) -> Console:
    """A rich console on standard output."""
    return Console(file=cast(IO[str], outlet), force_terminal=True, highlight=False)


def draw(scene: Scene) -> Group:
    """The bar and below it lines of facts, each in its own place, within 80 columns."""
    progress, (word, seconds) = scene.progress, scene.timing
    bar = Table.grid(padding=(0, 2, 0, 0), expand=True)
    bar.add_column(no_wrap=True, max_width=24, overflow="ellipsis")
    bar.add_column(ratio=1)
    for _ in range(3):
        bar.add_column(no_wrap=True, justify="right")
    bar.add_row(
        Text(scene.title, style="bold"),
        ProgressBar(total=1.0, completed=scene.fraction),
        f"{scene.fraction * 100:3.0f}%",
        f"{count(progress.env_steps)}/{count(progress.target_steps)}",
        f"{word} {clock(seconds):>5}",
    )
    learning = _facts(
        ("return", f"{amount(progress.return_ema):>7}"),
        ("random", f"{amount(scene.random_return):<7}"),
        ("entropy", f"{decimals(scene.metric('entropy'), 3):<6}"),
        ("kl", f"{decimals(scene.metric('kl'), 4):<6}"),
        ("steps/s", count(scene.steps_per_second)),
    )
    where = [("time", shares(scene.time_shares) or "-")]
    if scene.frames_per_second is not None:
        where.append(("frames/s", count(scene.frames_per_second)))
    flow = [_facts(*scene.flow.items())] if scene.lags else []
    return Group(bar, learning, _facts(*where), *flow)


def _facts(*pairs: tuple[str, str]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, (label, value) in enumerate(pairs):
        line.append("   " if place else "").append(f"{label} ", style="dim").append(value)
    return line
