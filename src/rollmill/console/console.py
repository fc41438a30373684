"""What a person sees of a run while it happens, and the summary at its end."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from rollmill.console.closing import closing_lines
from rollmill.console.outlet import Outlet
from rollmill.console.plain_lines import Display, LineDisplay
from rollmill.console.repeats import Repeats
from rollmill.console.view import Scene
from rollmill.events import (
    Checkpointing,
    ComponentFailed,
    Event,
    RunStarted,
    Said,
    Stopped,
    WorkerReplaced,
)
from rollmill.observe.config import ObserveConfig
from rollmill.observe.metrics import MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import replacement, takeover


class ConsoleObserver:
    """Prints the plan, shows progress every `interval` seconds and closes with a summary.

    The summary is printed by `close`, when the observers before it have written what it points at.
    """

    name = "console"
    overflow: Overflow = "drop"

    def __init__(self, run: Path, display: Display, interval: float, hints: Sequence[str] = ()) -> None:
        self._run = run
        self._hints = tuple(hints)  # told once, below the plan
        self._lock = threading.Lock()  # of the display: other observers tell something in their own threads
        self._display = display
        self._window = MetricsWindow(interval)
        self._scene = Scene()
        self._stopped: Stopped | None = None
        self._warnings = Repeats()

    def receive(self, event: Event) -> None:
        """Show what an event changes, if it is time for that."""
        with self._lock:
            self._receive(event)

    def tell(self, line: str) -> None:
        """Print a line that another observer wants seen, from any thread."""
        with self._lock:
            self._display.say([line])

    def close(self) -> None:
        """Give the terminal back and print the summary."""
        with self._lock:
            self._display.finish()
        self._display.say(f"warning: {line}" for line in self._warnings.lines())
        if self._stopped is not None:
            known = {"title": self._scene.title, "run": str(self._run)}
            outcome = {"status": self._stopped.status, "reason": self._stopped.reason}
            found = _evaluations(self._run)
            self._display.say(["", *closing_lines({**known, **self._stopped.summary, **found, **outcome})])

    def _receive(self, event: Event) -> None:
        # A checkpoint is no news for a person, so it ends no stretch here.
        row = None if isinstance(event, Checkpointing) else self._window.add(event)
        if isinstance(event, RunStarted):
            self._scene = Scene(event.title, event.random_return, event.progress, event.progress)
            below = (takeover(event.progress), *event.plan, *self._hints)
            self._display.say([event.title, *(f"  {line}" for line in below if line)])
            self._display.show(self._scene)
        elif isinstance(event, Said) and event.level == "error":
            self._display.say([f"error: {event.component}: {event.text}"])
        elif isinstance(event, Said) and event.level == "warning":
            if self._warnings.is_new(event.text):
                # further lines, such as a traceback, are in the log
                self._display.say([f"warning: {event.component}: {event.text.partition(chr(10))[0]}"])
        elif isinstance(event, WorkerReplaced):
            self._display.say([f"warning: {event.place}: {replacement(event)}"])
        elif isinstance(event, ComponentFailed):
            self._display.say(
                [f"error: {event.component}: {event.message}"]
            )  # the traceback is shown where it is caught
        elif isinstance(event, Stopped):
            self._stopped = event
            self._scene = replace(self._scene, progress=event.progress)
        if row is not None:
            self._scene = self._scene.after(event.progress, row)
            self._display.show(self._scene)


def _evaluations(run: Path) -> dict[str, Any]:
    """What the observer of evaluations, closed before the console, has added to the summary."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {"evaluations": summary["evaluations"]} if "evaluations" in summary else {}


def make_display(config: ObserveConfig, stream: TextIO | None) -> tuple[Display, float]:
    """The display that suits the configuration and the stream, and its seconds between two refreshes."""
    outlet = Outlet(stream)
    is_terminal = outlet.isatty() and os.environ.get("TERM") != "dumb"
    if config.console == "bar" or (config.console == "auto" and is_terminal):
        from rollmill.console.bar import BarDisplay, console_on

        return BarDisplay(console_on(outlet)), config.interval
    return LineDisplay(outlet), config.lines_interval
