"""What a person sees of a run while it happens, and the summary at its end."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollmill.console.closing import closing_lines
from rollmill.console.display import Display
from rollmill.console.scene import Scene
from rollmill.events import (
    Checkpointing,
    ComponentFailed,
    Event,
    RunStarted,
    Said,
    Stopped,
    WorkerReplaced,
)
from rollmill.observe.metrics import MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import replacement, takeover

KEPT = 100  # different warnings; one that holds a number is new each time, and may not fill memory and screen


class ConsoleObserver:
    """Prints the plan, shows progress every `interval` seconds and closes with a summary.

    The summary is printed by `close`, when the observers before it have written what it points at.
    """

    name = "console"
    overflow: Overflow = "drop"

    def __init__(self, run: Path, display: Display, hints: Sequence[str] = ()) -> None:
        self._run = run
        self._hints = tuple(hints)  # shown once, below the plan
        self._display = display
        self._window = MetricsWindow(display.interval)
        self._scene = Scene()
        self._stopped: Stopped | None = None
        self._warnings = _Repeats()

    def close(self) -> None:
        """Give the terminal back and print the summary."""
        self._display.finish()
        self._display.say(*(f"warning: {line}" for line in self._warnings.lines()))
        if self._stopped is not None:
            known = {"title": self._scene.title, "run": str(self._run)}
            outcome = {"status": self._stopped.status, "reason": self._stopped.reason}
            found = _evaluations(self._run)
            self._display.say("", *closing_lines({**known, **self._stopped.summary, **found, **outcome}))

    def receive(self, event: Event) -> None:
        """Show what an event changes, if it is time for that."""
        # A checkpoint is no news for a person, so it ends no stretch here.
        row = None if isinstance(event, Checkpointing) else self._window.add(event)
        if isinstance(event, RunStarted):
            self._scene = Scene(event.title, event.random_return, event.progress, event.progress)
            below = (takeover(event.progress), *event.plan, *self._hints)
            self._display.say(event.title, *(f"  {line}" for line in below if line))
            self._display.show(self._scene.view())
        elif isinstance(event, Said) and event.level == "error":
            self._display.say(f"error: {event.component}: {event.text}")
        elif isinstance(event, Said) and event.level == "warning":
            if self._warnings.is_new(event.text):
                # further lines, such as a traceback, are in the log
                self._display.say(f"warning: {event.component}: {event.text.partition(chr(10))[0]}")
        elif isinstance(event, WorkerReplaced):
            self._display.say(f"warning: {event.place}: {replacement(event)}")
        elif isinstance(event, ComponentFailed):
            # the traceback is shown where it is caught
            self._display.say(f"error: {event.component}: {event.message}")
        elif isinstance(event, Stopped):
            self._stopped = event
            self._scene = replace(self._scene, progress=event.progress)
        if row is not None:
            self._scene = self._scene.after(event.progress, row)
            self._display.show(self._scene.view())


def _evaluations(run: Path) -> dict[str, Any]:
    """What the observer of evaluations, closed before the console, has added to the summary."""
    try:
        summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {"evaluations": summary["evaluations"]} if "evaluations" in summary else {}


class _Repeats:
    """Texts that come again and again: each is shown once, and counted."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._others = 0

    def is_new(self, text: str) -> bool:
        """Count the text; True if it should be shown."""
        first, _, _ = text.partition("\n")
        if first not in self._times and len(self._times) >= KEPT:
            self._others += 1
            return False
        self._times[first] += 1
        return self._times[first] == 1

    def lines(self) -> list[str]:
        """What was not shown, with its number."""
        repeated = [f"said {times} times: {text}" for text, times in self._times.items() if times > 1]
        return [*repeated, *([f"{self._others} others, see the logs"] if self._others else [])]
