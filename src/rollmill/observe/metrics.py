"""Rows of metrics: averages over a stretch of a run, the same for every observer that writes them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rollmill.events import Checkpointing, EpisodesEnded, Event, Progress, RunStarted, Stopped, Updated
from rollmill.intervals import deviation

Number = float | int | None
# of metrics called so; else the mean
SUMMARIES: dict[str, Callable[[Sequence[float]], float]] = {"min": min, "max": max}
NONE_ENDED = EpisodesEnded(Progress(), (), (), ())


class RecentEpisodes:
    """The last 100 episodes; `past` holds those of before a resume."""

    def __init__(self, past: EpisodesEnded = NONE_ENDED, size: int = 100) -> None:
        self._returns: deque[float] = deque(past.returns, maxlen=size)
        self._lengths: deque[int] = deque(past.lengths, maxlen=size)

    def add(self, event: EpisodesEnded) -> None:
        """Take the episodes of one event in."""
        self._returns.extend(event.returns)
        self._lengths.extend(event.lengths)

    @property
    def return_mean(self) -> float | None:
        """Mean raw return; None before the first episode ends."""
        return _mean(self._returns) if self._returns else None

    @property
    def return_std(self) -> float | None:
        """Standard deviation of the raw returns; None for fewer than two."""
        return deviation(self._returns)

    @property
    def length_mean(self) -> float | None:
        """Mean length in agent decisions; None before the first episode ends."""
        return _mean(self._lengths) if self._lengths else None


@dataclass(frozen=True)
class Row:
    """One stretch of a run: where it ended, and its means."""

    progress: Progress
    return_mean_100: float | None
    length_mean_100: float | None
    steps_per_second: float | None  # agent decisions over the stretch; None if it took no time
    metrics: Mapping[str, float]  # mean over the updates of the stretch; of lag/max the greatest, of lag/min the least

    def flat(self) -> dict[str, Number]:
        """The row as one mapping, in the order of the columns."""
        return {
            "env_steps": self.progress.env_steps,
            "frames": self.progress.frames,
            "updates": self.progress.updates,
            "seconds": round(self.progress.seconds, 6),
            "episodes": self.progress.episodes,
            "return_ema": self.progress.return_ema,
            "return_mean_100": self.return_mean_100,
            "length_mean_100": self.length_mean_100,
            "steps_per_second": self.steps_per_second,
            **self.metrics,
        }


class MetricsWindow:
    """Gathers events and gives a row at the first update, then every `interval` seconds, and for the rest at the end.

    A checkpoint brings the rest too: what is gathered when the process dies after it would be missing after a resume.
    Time is the run's own (`Progress.seconds`), so that rows depend on the events alone.
    """

    def __init__(self, interval: float, past: EpisodesEnded = NONE_ENDED) -> None:
        self._interval = interval
        self._episodes = RecentEpisodes(past)
        self._begin = Progress()
        self._last: Progress | None = None  # of the newest update; None if nothing is gathered
        self._is_first = True
        self._values: defaultdict[str, list[float]] = defaultdict(list)

    def add(self, event: Event) -> Row | None:
        """Take one event in; a row if one is complete."""
        if isinstance(event, RunStarted):
            self._begin = event.progress
            self._is_first = event.progress.updates == 0  # a resumed run continues in its rhythm
        elif isinstance(event, EpisodesEnded):
            self._episodes.add(event)
        elif isinstance(event, Updated):
            self._last = event.progress
            for name, value in event.metrics.items():
                self._values[name].append(value)
            if self._is_first or event.progress.seconds - self._begin.seconds >= self._interval:
                return self._complete(event.progress)
        elif isinstance(event, Checkpointing | Stopped) and self._last is not None:
            return self._complete(self._last)
        return None

    def _complete(self, progress: Progress) -> Row:
        metrics = {name: SUMMARIES.get(name.rpartition("/")[2], _mean)(values) for name, values in self._values.items()}
        # A mean of rates is not the rate of the whole stretch, so ours replaces what single updates measured.
        metrics.pop("steps_per_second", None)
        seconds = progress.seconds - self._begin.seconds
        rate = (progress.env_steps - self._begin.env_steps) / seconds if seconds > 0 else None
        self._begin, self._last, self._is_first = progress, None, False
        self._values.clear()
        return Row(progress, self._episodes.return_mean, self._episodes.length_mean, rate, metrics)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
