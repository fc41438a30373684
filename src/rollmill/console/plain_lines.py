"""Plain lines, for a run without a terminal: nohup, Slurm, CI."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from rollmill.console.outlet import Outlet
from rollmill.console.view import Scene
from rollmill.observe.phrases import amount, clock, count, decimals, shares


class Display(Protocol):
    """A way to show a run to a person."""

    def say(self, lines: Iterable[str]) -> None:
        """Print lines that stay."""

    def show(self, scene: Scene) -> None:
        """Show how far the run has come."""

    def finish(self) -> None:
        """Show no more progress; lines may still follow."""


class LineDisplay:
    """Progress as one line of text at a time."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet = outlet

    def say(self, lines: Iterable[str]) -> None:
        """Print lines."""
        self._outlet.write("".join(f"{line}\n" for line in lines))
        self._outlet.flush()

    def show(self, scene: Scene) -> None:
        """Print one line, once there is something to tell."""
        if scene.row is not None:
            self.say([progress_line(scene)])

    def finish(self) -> None:
        """Nothing is left open."""


def progress_line(scene: Scene) -> str:
    """The facts of a moment in one line."""
    progress = scene.progress
    word, seconds = scene.timing
    facts = [
        f"{scene.fraction * 100:3.0f}%",
        f"{count(progress.env_steps)}/{count(progress.target_steps)} steps",
        f"{word} {clock(seconds)}",
        f"return {amount(progress.return_ema)} (random {amount(scene.random_return)})",
        f"entropy {decimals(scene.metric('entropy'), 3)}",
        f"kl {decimals(scene.metric('kl'), 4)}",
        f"{count(scene.steps_per_second)} steps/s",
    ]
    if scene.frames_per_second is not None:
        facts.append(f"{count(scene.frames_per_second)} frames/s")
    if where := shares(scene.time_shares):
        facts.append(where)
    facts += [f"{name} {value}" for name, value in scene.flow.items()]
    return "  ".join(facts)
