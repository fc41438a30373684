"""A bar for each seed at the foot of a terminal; imports rich, so it is imported only when shown."""

from __future__ import annotations

from collections.abc import Sequence
from time import monotonic

from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.observe.bar import console_on
from rollmill.observe.outlet import Outlet
from rollmill.seeds.display import Row

HEAD = ("", "", "", "", "steps", "return", "steps/s", "ETA")


class Bars:
    """Rows that are redrawn in place; lines that stay go above them."""

    def __init__(self, outlet: Outlet, interval: float) -> None:
        self._console, self._interval = console_on(outlet), interval
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn = 0.0

    def say(self, line: str) -> None:
        """Print a line above the bars."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, rows: Sequence[Row]) -> None:
        """Draw the rows in the place of the last, if those are old enough."""
        if monotonic() - self._drawn < self._interval:
            return
        self._drawn = monotonic()
        if not self._live.is_started:
            self._live.start()
            self._console.show_cursor(True)  # rich hides it, and a killed process could not give it back
        self._live.update(draw(rows), refresh=True)

    def finish(self) -> None:
        """Take the bars away: the table of results says more."""
        if self._live.is_started:
            self._live.stop()


def draw(rows: Sequence[Row]) -> Table:
    """A line per seed, within 80 columns."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    for place, head in enumerate(HEAD):
        is_bar = place == 2
        table.add_column(head, no_wrap=True, ratio=1 if is_bar else None, justify="left" if place < 3 else "right")
    for row in rows:
        name, status, share, *facts = row.words
        table.add_row(name, status, ProgressBar(total=1.0, completed=row.fraction), share, *facts)
    return table
