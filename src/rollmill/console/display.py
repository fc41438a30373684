"""The display of all long work: redrawn in place on a terminal, plain lines every few seconds elsewhere, or nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Literal, TextIO

from rollmill.console.outlet import Outlet
from rollmill.console.view import View

if TYPE_CHECKING:
    from rich.live import Live


class Display:
    """Shows one view after the other, and prints lines that stay; from any thread."""

    def __init__(
        self,
        stream: TextIO | None,
        mode: Literal["auto", "bar", "lines", "none"] = "auto",
        interval: float = 0.1,
        lines_interval: float = 5.0,
        keeps_last: bool = False,
    ) -> None:
        self._outlet = Outlet(stream)
        if mode == "auto":
            mode = "bar" if self._outlet.isatty() and os.environ.get("TERM") != "dumb" else "lines"
        self.mode = mode
        self.interval = interval if mode == "bar" else lines_interval  # seconds between two views
        self._keeps_last = keeps_last  # whether the last view stays on the screen
        self._lock = threading.RLock()
        self._live: Live | None = None
        self._shown = monotonic() if mode == "lines" else -inf
        self._lines: Sequence[str] = ()

    @property
    def is_due(self) -> bool:
        """Whether the last view is old enough for a new one."""
        return self.mode != "none" and monotonic() - self._shown >= self.interval

    def say(self, *lines: str) -> None:
        """Print lines that stay, above the view."""
        with self._lock:
            if self._live is not None:
                from rich.text import Text

                for line in lines:  # as they are: a bracket is not markup, and a long path is not cut
                    self._live.console.print(Text(line), soft_wrap=True)
            elif self.mode != "none":
                self._outlet.write("".join(f"{line}\n" for line in lines))
                self._outlet.flush()

    def show(self, view: View) -> None:
        """Draw the view in the place of the last one, or print those of its lines that are new."""
        with self._lock:
            self._shown = monotonic()
            if self.mode == "lines":
                self.say(*(line for line in view.lines if line not in self._lines))
                self._lines = view.lines
            elif self.mode == "bar":
                from rollmill.console.drawing import draw, open_live

                self._live = self._live or open_live(self._outlet, self._keeps_last)
                self._live.update(draw(view), refresh=True)

    def finish(self) -> None:
        """Give the terminal back; the next view takes it again."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
