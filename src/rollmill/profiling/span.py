"""A measured part of a training: `rollmill profile` and `rollmill tune` count the same way."""

from __future__ import annotations

from rollmill.events import Progress, Updated


class Span:
    """From one update to a later one: steps, seconds, and the share of them that each activity took."""

    def __init__(self, first: Progress) -> None:
        self._first = self._last = first
        self._spent: dict[str, float] = {}  # seconds by the components' own clocks

    def extend(self, event: Updated) -> None:
        """Let it reach up to this update."""
        passed = event.progress.seconds - self._last.seconds
        for name, share in event.metrics.items():
            if name.startswith("time/"):
                name = name.removeprefix("time/")
                self._spent[name] = self._spent.get(name, 0.0) + share * passed
        self._last = event.progress

    @property
    def steps(self) -> int:
        """Environment steps."""
        return self._last.env_steps - self._first.env_steps

    @property
    def updates(self) -> int:
        """Updates after the first."""
        return self._last.updates - self._first.updates

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self._last.seconds - self._first.seconds

    @property
    def shares(self) -> dict[str, float]:
        """Share of the seconds by activity: env, inference, learn, wait."""
        return {name: spent / max(self.seconds, 1e-9) for name, spent in self._spent.items()}
