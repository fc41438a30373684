"""What a display shows: plain data, which can be drawn or printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from rollmill.observe.phrases import clock, count


@dataclass(frozen=True)
class View:
    """A moment of some work, for both ways to show it."""

    bars: Sequence[Sequence[str | float]]  # rows of equal length; a float is a bar of that length, 0 to 1
    lines: Sequence[str]  # what is printed where nothing can be redrawn
    head: Sequence[str] = ()  # above the columns of the bars
    facts: Sequence[Mapping[str, str]] = ()  # below the bars: a line each, of names and values


@dataclass(frozen=True)
class Work:
    """Work of known length that begins now and is not training: so many episodes, steps or updates."""

    title: str
    unit: str
    total: int
    _begun: float = field(default_factory=perf_counter)

    def after(self, done: int = 0, note: str = "") -> View:
        """The view once so much of it is done."""
        left = (perf_counter() - self._begun) * max(0, self.total - done) / done if done else None
        facts = [f"{count(done)}/{count(self.total)} {self.unit}", note, f"ETA {clock(left)}"]
        shown = [fact for fact in facts if fact]
        line = ", ".join(shown) if done else f"{count(self.total)} {self.unit}"
        return View([(self.title, min(1.0, done / max(1, self.total)), *shown)], [f"{self.title}: {line}"])
