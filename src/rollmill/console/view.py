"""What the console knows at a moment."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rollmill.events import Progress
from rollmill.observe.metrics import Row
from rollmill.observe.phrases import TIME_SHARES, decimals, percentages


@dataclass(frozen=True)
class Scene:
    """A moment of a run, ready to be drawn."""

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
        target = self.progress.target_steps
        return min(1.0, self.progress.env_steps / target) if target > 0 else 0.0

    @property
    def remaining_seconds(self) -> float | None:
        """Time to the end at the mean speed so far; None before there is one."""
        steps = self.progress.env_steps - self.begin.env_steps
        seconds = self.progress.seconds - self.begin.seconds
        if steps <= 0 or seconds <= 0:
            return None
        return max(0, self.progress.target_steps - self.progress.env_steps) * seconds / steps

    @property
    def timing(self) -> tuple[str, float | None]:
        """How many seconds are left, with a word for it; once all steps are made, how many they took."""
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
    def time_shares(self) -> dict[str, float | None]:
        """Share of the wall time per activity over the last stretch."""
        return {name: self.metric(f"time/{name}") for name in TIME_SHARES}

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
