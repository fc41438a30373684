"""One log file per component."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

from rollmill.events import Checkpointed, ComponentFailed, Event, RunStarted, Said, Stopped, WorkerReplaced
from rollmill.observe.metrics import MetricsWindow
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import replacement, takeover
from rollmill.persist.writing import AppendedFile


class LogObserver:
    """Writes <run>/logs/<component>.log: what components said, how they failed, and the learner's updates."""

    name = "logs"
    overflow: Overflow = "block"

    def __init__(self, run: Path, interval: float) -> None:
        self._folder = run / "logs"
        self._window = MetricsWindow(interval)
        self._files: dict[str, AppendedFile] = {}

    def receive(self, event: Event) -> None:
        """Write the lines that an event is worth."""
        if isinstance(event, Said):
            self._write(event.component, event.level, f"{event.text}\n{event.traceback}")
        elif isinstance(event, ComponentFailed):
            self._write(event.component, "error", f"{event.message}\n{event.traceback}")
        elif isinstance(event, RunStarted):
            lines = (event.title, takeover(event.progress), *event.plan)
            self._write("run", "info", "\n".join(line for line in lines if line))
        elif isinstance(event, WorkerReplaced):
            self._write(event.place, "warning", f"{replacement(event)}\n{event.traceback}")
        elif isinstance(event, Checkpointed):
            self._write("run", "info", f"checkpoint {event.path} in {event.seconds:.3f} s")
        if row := self._window.add(event):
            numbers = " ".join(f"{name}={value:.5g}" for name, value in row.metrics.items())
            line = f"update {row.progress.updates} steps {row.progress.env_steps} {numbers}"
            self._write("learner", "info", line)
        if isinstance(event, Stopped):
            self._write("run", "info", f"{event.status}: {event.reason}")

    def close(self) -> None:
        """Close every log."""
        for file in self._files.values():
            file.close()

    def _write(self, component: str, level: str, text: str) -> None:
        name = re.sub(r"[^\w.-]+", "-", component).strip(".-") or "unnamed"  # a name must not lead out of the folder
        self._folder.mkdir(exist_ok=True)  # each time: it may have been removed with all that was in it
        if name not in self._files:
            self._files[name] = AppendedFile(self._folder / f"{name}.log")
        stamp = datetime.now().astimezone().isoformat(sep=" ", timespec="milliseconds")
        first, *rest = text.rstrip().splitlines() or [""]
        self._files[name].write("\n".join([f"{stamp} {level:<7} {first}", *(f"    {line}" for line in rest)]) + "\n")
