"""What a person sees of a run while it happens, and the summary at its end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rollmill.console.closing import closing_lines
from rollmill.console.display import Display
from rollmill.console.view import View
from rollmill.events import (
    Checkpointing,
    ComponentFailed,
    Event,
    Progress,
    RunStarted,
    Said,
    Stopped,
    WorkerReplaced,
)
from rollmill.observe.metrics import MetricsWindow, Row
from rollmill.observe.observer import Overflow
from rollmill.observe.phrases import (
    TIME_SHARES,
    amount,
    clock,
    count,
    cut,
    decimals,
    percentages,
    replacement,
    shares,
    takeover,
)
from rollmill.persist.writing import read_record

WIDEST_TITLE = 24  # characters next to a bar
KEPT = 100  # different warnings; one that holds a number is new each time, and may not fill memory and screen


@dataclass(frozen=True)
class RunMoment:
    """A moment of a run, and how it is shown."""

    title: str = ""
    random_return: float | None = None
    begin: Progress = field(default_factory=Progress)  # where this process took over; not zero in a resumed run
    progress: Progress = field(default_factory=Progress)
    row: Row | None = None  # None before the first update
    lags: bool = False  # some unroll was older than the weights that it changed: training is asynchronous

    def after(self, progress: Progress, row: Row) -> RunMoment:
        """The next moment, with the means over the stretch up to it."""
        return replace(self, progress=progress, row=row, lags=self.lags or row.metrics.get("lag/max", 0.0) > 0.0)

    def view(self) -> View:
        """A bar with facts below it, each in its own place, within 80 columns; or a line, from the first update on."""
        progress, (word, seconds) = self.progress, self._timing()
        percent = f"{progress.fraction * 100:3.0f}%"
        done, target, unit = progress.goal
        steps = f"{count(done)}/{count(target)}"
        smoothed, random = amount(progress.return_ema), amount(self.random_return)
        entropy, kl = decimals(self._metric("entropy"), 3), decimals(self._metric("kl"), 4)
        rate = self.row.steps_per_second if self.row else None
        frames = {}
        if rate is not None and progress.frames != progress.env_steps > 0:
            frames["frames/s"] = count(rate * progress.frames / progress.env_steps)
        time = shares({name: self._metric(f"time/{name}") for name in TIME_SHARES})
        flow = self._flow()

        learning = {
            "return": f"{smoothed:>7}",
            "random": f"{random:<7}",
            "entropy": f"{entropy:<6}",
            "kl": f"{kl:<6}",
            "steps/s": count(rate),
        }
        facts = [learning, {"time": time or "-", **frames}, *([flow] if flow else [])]
        bar = (cut(self.title, WIDEST_TITLE), progress.fraction, percent, steps, f"{word} {clock(seconds):>5}")
        line = [percent, f"{steps} {unit}", f"{word} {clock(seconds)}", f"return {smoothed} (random {random})"]
        line += [f"entropy {entropy}", f"kl {kl}", f"{count(rate)} steps/s"]
        line += [f"{value} {name}" for name, value in frames.items()]
        line += [*([time] if time else []), *(f"{name} {value}" for name, value in flow.items())]
        return View([bar], ["  ".join(line)] if self.row else [], facts=facts)

    def _timing(self) -> tuple[str, float | None]:
        """The seconds that are left at the mean speed so far, with a word for it; at the end, those that it took."""
        progress, begin = self.progress, self.begin
        if progress.fraction >= 1.0:
            return "took", progress.seconds
        done, target, _ = progress.goal
        since, seconds = done - begin.goal[0], progress.seconds - begin.seconds
        if since <= 0 or seconds <= 0:
            return "ETA", None
        return "ETA", max(0, target - done) * seconds / since

    def _flow(self) -> dict[str, str]:
        """How unrolls flow to a learner that doesn't wait for all of them, in words; nothing where it does."""
        if not self.lags:
            return {}
        metrics = self.row.metrics if self.row else {}
        workers = [share for name, share in metrics.items() if name.startswith("idle/worker.")]
        idle = {place: self._metric(f"idle/{place}") for place in ("learner", "inference")}
        idle["workers"] = sum(workers) / len(workers) if workers else None
        return {
            "lag": f"{decimals(self._metric('lag/mean'), 1)} (max {decimals(self._metric('lag/max'), 0)})",
            "in flight": decimals(self._metric("port/in_flight"), 0),
            "queue": decimals(self._metric("port/unrolls_depth"), 1),
            "idle": percentages(idle),
        }

    def _metric(self, name: str) -> float | None:
        """Mean of a metric over the last stretch; None if the algorithm doesn't report it."""
        return self.row.metrics.get(name) if self.row else None


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
        self._moment = RunMoment()
        self._stopped: Stopped | None = None
        self._warnings: Counter[str] = Counter()  # how often each was said
        self._others = 0  # said beyond those that are kept

    def close(self) -> None:
        """Give the terminal back and print the summary."""
        self._display.finish()
        repeated = [f"said {times} times: {text}" for text, times in self._warnings.items() if times > 1]
        others = [f"{self._others} others, see the logs"] if self._others else []
        self._display.say(*(f"warning: {line}" for line in (*repeated, *others)))
        if self._stopped is not None:
            known = {"title": self._moment.title, "run": str(self._run)}
            outcome = {"status": self._stopped.status, "reason": self._stopped.reason}
            # The observer of evaluations, closed before this one, has added to the file.
            found = {"evaluations": read_record(self._run / "summary.json").get("evaluations")}
            self._display.say("", *closing_lines({**known, **self._stopped.summary, **found, **outcome}))

    def receive(self, event: Event) -> None:
        """Show what an event changes, if it is time for that."""
        # A checkpoint is no news for a person, so it ends no stretch here.
        row = None if isinstance(event, Checkpointing) else self._window.add(event)
        if isinstance(event, RunStarted):
            self._moment = RunMoment(event.title, event.random_return, event.progress, event.progress)
            below = (takeover(event.progress), *event.plan, *self._hints)
            self._display.say(event.title, *(f"  {line}" for line in below if line))
            self._display.show(self._moment.view())
        elif isinstance(event, Said) and event.level == "error":
            self._display.say(f"error: {event.component}: {event.text}")
        elif isinstance(event, Said) and event.level == "warning":
            self._warn(event)
        elif isinstance(event, WorkerReplaced):
            self._display.say(f"warning: {event.place}: {replacement(event)}")
        elif isinstance(event, ComponentFailed):
            # the traceback is shown where it is caught
            self._display.say(f"error: {event.component}: {event.message}")
        elif isinstance(event, Stopped):
            self._stopped = event
            self._moment = replace(self._moment, progress=event.progress)
        if row is not None:
            self._moment = self._moment.after(event.progress, row)
            self._display.show(self._moment.view())

    def _warn(self, event: Said) -> None:
        """Show a warning once; further lines of it, such as a traceback, are in the log."""
        text = event.text.partition("\n")[0]
        if text not in self._warnings and len(self._warnings) >= KEPT:
            self._others += 1
            return
        self._warnings[text] += 1
        if self._warnings[text] == 1:
            self._display.say(f"warning: {event.component}: {text}")
