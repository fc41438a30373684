"""Views as rich draws them. This imports rich, so it is imported only when something is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollmill.console.outlet import Outlet
from rollmill.console.view import View


def open_live(outlet: Outlet, keeps_last: bool) -> Live:
    """The place at the foot of a terminal that is redrawn."""
    console = Console(file=cast(IO[str], outlet), force_terminal=True, highlight=False)
    # We redraw when there is news; rich's own thread would redraw ten times a second.
    live = Live(console=console, auto_refresh=False, transient=not keeps_last)
    live.start()
    console.show_cursor(True)  # rich hides it, and a killed process could not give it back
    return live


def draw(view: View) -> Group:
    """The bars as wide as the terminal, and below them the facts; nothing is wrapped."""
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    table.show_header = bool(view.head)
    first = view.bars[0]
    bar = next(place for place, cell in enumerate(first) if isinstance(cell, float))
    for place, head in enumerate(view.head or [""] * len(first)):
        ratio = 1 if place == bar else None
        style = "bold" if place == 0 and not view.head else ""
        table.add_column(head, style=style, no_wrap=True, ratio=ratio, justify="right" if place > bar else "left")
    for row in view.bars:
        table.add_row(*(ProgressBar(1.0, cell) if isinstance(cell, float) else Text(cell) for cell in row))
    return Group(table, *map(_facts, view.facts))


def _facts(facts: Mapping[str, str]) -> Text:
    line = Text(no_wrap=True, overflow="ellipsis")
    for place, (name, value) in enumerate(facts.items()):
        line.append("   " if place else "").append(f"{name} ", style="dim").append(value)
    return line
