"""What is shown while a run is retraced."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import IO, Any, cast

from rollmill.observe.outlet import Outlet
from rollmill.observe.phrases import clock, count
from rollmill.retrace.retrace import Step

LINES_SECONDS = 5.0  # between two lines where there is no terminal


class Display:
    """A bar on a terminal, lines elsewhere; shows nothing if it is told so."""

    def __init__(self, is_shown: bool) -> None:
        self._outlet = Outlet(sys.stdout)
        self._is_shown = is_shown
        self._progress: Any = None
        self._task: Any = None
        self._begun = self._said = perf_counter()

    def advance(self, step: Step) -> None:
        """So many updates are made."""
        if not self._is_shown:
            return
        if self._outlet.isatty():
            if self._progress is None:
                self._progress = _bar(self._outlet)
                self._progress.start()
                self._progress.console.show_cursor(True)  # rich hides it, and a killed process could not give it back
                self._task = self._progress.add_task("retracing", total=step.updates, hashes=0)
            self._progress.update(self._task, completed=step.update, hashes=step.hashes)
            return
        now = perf_counter()
        if now - self._said >= LINES_SECONDS:
            self._said = now
            left = clock((now - self._begun) * (step.updates - step.update) / step.update)
            done = f"{count(step.update)}/{count(step.updates)} updates, {count(step.hashes)} hashes equal"
            self.say(f"retracing: {done}, ETA {left}")

    def finish(self) -> None:
        """Give the terminal back; the next step takes it again."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def say(self, *lines: str) -> None:
        """Print lines."""
        if self._is_shown:
            self.finish()
            self._outlet.write("".join(f"{line}\n" for line in lines))
            self._outlet.flush()


def _bar(outlet: Outlet) -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("[bold]{task.description}"),
        BarColumn(None),
        TextColumn("{task.completed}/{task.total} updates"),
        TextColumn("{task.fields[hashes]} hashes equal"),
        TextColumn("ETA"),
        TimeRemainingColumn(compact=True),
        console=Console(file=cast(IO[str], outlet), force_terminal=True, highlight=False),
        expand=True,
        transient=True,
    )
