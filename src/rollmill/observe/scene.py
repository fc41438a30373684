"""What the console knows at a moment."""

from __future__ import annotations

from dataclasses import dataclass, field

from rollmill.observe.events import Progress
from rollmill.observe.metrics import Row
from rollmill.observe.phrases import TIME_SHARES


@dataclass(frozen=True)
class Scene:
    """A moment of a run, ready to be drawn."""

    title: str = ""
    random_return: float | None = None
    begin: Progress = field(default_factory=Progress)  # where this process took over; not zero in a resumed run
    progress: Progress = field(default_factory=Progress)
    row: Row | None = None  # None before the first update

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

    def metric(self, name: str) -> float | None:
        """Mean of a metric over the last stretch; None if the algorithm doesn't report it."""
        return self.row.metrics.get(name) if self.row else None
