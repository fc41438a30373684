"""A moment of a training, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rollmill.console.view import View
from rollmill.events import Progress
from rollmill.observe.metrics import Row
from rollmill.observe.phrases import TIME_SHARES, amount, clock, count, cut, decimals, percentages, shares

WIDEST_TITLE = 24  # characters next to a bar


@dataclass(frozen=True)
class Scene:
    """A moment of a run."""

    title: str = ""
    random_return: float | None = None
    begin: Progress = field(default_factory=Progress)  # where this process took over; not zero in a resumed run
    progress: Progress = field(default_factory=Progress)
    row: Row | None = None  # None before the first update
    lags: bool = False  # some unroll was older than the weights that it changed: training is asynchronous

    def after(self, progress: Progress, row: Row) -> Scene:
        """The next moment, with the means over the stretch up to it."""
        return replace(self, progress=progress, row=row, lags=self.lags or row.metrics.get("lag/max", 0.0) > 0.0)

    @property
    def fraction(self) -> float:
        """Share of the run that is done, 0 to 1."""
        return self.progress.fraction

    @property
    def remaining_seconds(self) -> float | None:
        """Time to the end at the mean speed so far; None before there is one."""
        done, target, _ = self.progress.goal
        since, seconds = done - self.begin.goal[0], self.progress.seconds - self.begin.seconds
        if since <= 0 or seconds <= 0:
            return None
        return max(0, target - done) * seconds / since

    @property
    def timing(self) -> tuple[str, float | None]:
        """How many seconds are left, with a word for it; once all is done, how many it took."""
        return ("took", self.progress.seconds) if self.fraction >= 1.0 else ("ETA", self.remaining_seconds)

    @property
    def steps_per_second(self) -> float | None:
        """Speed over the last stretch, in agent decisions."""
        return self.row.steps_per_second if self.row else None

    @property
    def frames_per_second(self) -> float | None:
        """Speed in frames; None where a step is one frame."""
        rate, progress = self.steps_per_second, self.progress
        if rate is None or progress.frames == progress.env_steps or progress.env_steps == 0:
            return None
        return rate * progress.frames / progress.env_steps

    @property
    def time_shares(self) -> str:
        """Share of the wall time per activity over the last stretch, in words."""
        return shares({name: self.metric(f"time/{name}") for name in TIME_SHARES})

    @property
    def flow(self) -> dict[str, str]:
        """How unrolls flow to a learner that doesn't wait for all of them, in words; nothing where it does."""
        if not self.lags:
            return {}
        metrics = self.row.metrics if self.row else {}
        workers = [share for name, share in metrics.items() if name.startswith("idle/worker.")]
        idle = {place: self.metric(f"idle/{place}") for place in ("learner", "inference")}
        idle["workers"] = sum(workers) / len(workers) if workers else None
        return {
            "lag": f"{decimals(self.metric('lag/mean'), 1)} (max {decimals(self.metric('lag/max'), 0)})",
            "in flight": decimals(self.metric("port/in_flight"), 0),
            "queue": decimals(self.metric("port/unrolls_depth"), 1),
            "idle": percentages(idle),
        }

    def metric(self, name: str) -> float | None:
        """Mean of a metric over the last stretch; None if the algorithm doesn't report it."""
        return self.row.metrics.get(name) if self.row else None

    def view(self) -> View:
        """A bar with facts below it, each in its own place, within 80 columns; or a line, from the first update on."""
        progress, (word, seconds) = self.progress, self.timing
        done, target, _ = progress.goal
        title, percent = cut(self.title, WIDEST_TITLE), f"{self.fraction * 100:3.0f}%"
        learning = {
            "return": f"{amount(progress.return_ema):>7}",
            "random": f"{amount(self.random_return):<7}",
            "entropy": f"{decimals(self.metric('entropy'), 3):<6}",
            "kl": f"{decimals(self.metric('kl'), 4):<6}",
            "steps/s": count(self.steps_per_second),
        }
        where = {"time": self.time_shares or "-"}
        if self.frames_per_second is not None:
            where["frames/s"] = count(self.frames_per_second)
        facts = [learning, where, *([self.flow] if self.flow else [])]
        bar = (title, self.fraction, percent, f"{count(done)}/{count(target)}", f"{word} {clock(seconds):>5}")
        return View([bar], [self._line()] if self.row else [], facts=facts)

    def _line(self) -> str:
        progress, (word, seconds) = self.progress, self.timing
        done, target, unit = progress.goal
        facts = [
            f"{self.fraction * 100:3.0f}%",
            f"{count(done)}/{count(target)} {unit}",
            f"{word} {clock(seconds)}",
            f"return {amount(progress.return_ema)} (random {amount(self.random_return)})",
            f"entropy {decimals(self.metric('entropy'), 3)}",
            f"kl {decimals(self.metric('kl'), 4)}",
            f"{count(self.steps_per_second)} steps/s",
        ]
        if self.frames_per_second is not None:
            facts.append(f"{count(self.frames_per_second)} frames/s")
        if self.time_shares:
            facts.append(self.time_shares)
        facts += [f"{name} {value}" for name, value in self.flow.items()]
        return "  ".join(facts)
