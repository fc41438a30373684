"""How far work has come that is not training: so many episodes, steps or updates."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

from rollmill.console.view import View
from rollmill.observe.phrases import clock, count


@dataclass(frozen=True)
class Work:
    """Some work of known length that begins now."""

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
