"""How far a stretch of work has come that is no training: a bar on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from rollmill.console.outlet import Outlet
from rollmill.observe.phrases import clock, count

LINES_SECONDS = 5.0  # between two lines where there is no terminal


class StretchDisplay:
    """Shows one stretch after the other; nothing if it is told so."""

    def __init__(self, is_shown: bool) -> None:
        self._outlet = Outlet(sys.stdout)
        self._is_shown = is_shown
        self._bar: Any = None
        self._task: Any = None
        self._title = self._unit = ""
        self._total = 0
        self._begun = self._said = perf_counter()

    def begin(self, title: str, unit: str, total: int) -> None:
        """A stretch of work: so many episodes, steps or updates."""
        self._begun = self._said = perf_counter()
        self._title, self._unit, self._total = title, unit, total
        if not self._is_shown:
            return
        if not self._outlet.isatty():
            self._write(f"{title}: {count(total)} {unit}")
        elif self._bar is None:
            self._open()
        else:
            self._bar.reset(self._task, total=total, description=title, unit=unit, note="")

    def advance(self, done: int, note: str = "") -> None:
        """So much of it is done, and what there is to say of it."""
        if not self._is_shown:
            return
        if self._outlet.isatty():
            if self._bar is None:
                self._open()
            self._bar.update(self._task, completed=min(done, self._total), note=note)
            return
        now = perf_counter()
        if now - self._said >= LINES_SECONDS:
            self._said = now
            left = clock((now - self._begun) * (self._total - done) / done if done else None)
            parts = [f"{count(done)}/{count(self._total)} {self._unit}", note, f"ETA {left}"]
            self._write(f"{self._title}: {', '.join(part for part in parts if part)}")

    def finish(self) -> None:
        """Give the terminal back; the next step takes it again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def say(self, *lines: str) -> None:
        """Print lines."""
        if self._is_shown:
            self.finish()
            self._write(*lines)

    def _open(self) -> None:
        self._bar = _bar(self._outlet)
        self._bar.start()
        self._bar.console.show_cursor(True)  # rich hides it, and a killed process could not give it back
        self._task = self._bar.add_task(self._title, total=self._total, unit=self._unit, note="")

    def _write(self, *lines: str) -> None:
        self._outlet.write("".join(f"{line}\n" for line in lines))
        self._outlet.flush()


def _bar(outlet: Outlet) -> Any:
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from rollmill.console.bar import console_on

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(None),
        TextColumn("{task.completed}/{task.total} {task.fields[unit]}"),
        TextColumn("{task.fields[note]}"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=console_on(outlet),
        expand=True,
        transient=True,
    )
