"""A debugger in the middle of a run that is retraced."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable
from typing import Any

from numpy.random import Generator

from rollmill.console.display import Display
from rollmill.learners.learner import Learner
from rollmill.models.network import Model
from rollmill.retrace.comparison import Diverged, RetraceHooks
from rollmill.retrace.retrace import Retrace
from rollmill.stores.store import Sample


class LeftDebugger(Exception):
    """The user quit the debugger."""


class Debugger(RetraceHooks):
    """Opens Python's debugger (`breakpoint()`) before one update, and wherever the run diverges."""

    def __init__(self, retrace: Retrace, stop_at: int | None, display: Display) -> None:
        self._retrace, self._stop_at, self._display = retrace, stop_at, display
        self._sampled: tuple[int, Any] = (0, None)  # the last batch, and its update

    def begun(self) -> None:
        """Keep the learner's last batch from now on."""
        learner = self._retrace.runtime.learner
        sample = learner.store.sample

        def kept(rng: Callable[[], Generator], version: int) -> Sample:
            taken = sample(rng, version)
            self._sampled = learner.trainer.updates + 1, taken.batch
            return taken

        learner.store.sample = kept  # type: ignore[method-assign]

    def about_to_update(self, update: int) -> None:
        """Stop if this is the one."""
        if update == self._stop_at:
            self._open(update, f"before update {update}", None)

    def diverged(self, divergence: Diverged) -> None:
        """Stop where it is found."""
        self._open(divergence.update, str(divergence), divergence)

    def _open(self, update: int, where: str, divergence: Diverged | None) -> None:
        learner = self._retrace.runtime.learner
        batch = self._sampled[1] if self._sampled[0] == update else None  # None before it is sampled
        self._display.finish()  # the debugger needs the terminal
        self._display.say(f"{where}; here are: retrace, learner, network, batch, update, divergence")
        try:
            _stop(self._retrace, learner, learner.trainer.network, batch, update, divergence)
        except BdbQuit:
            if divergence is None:
                raise LeftDebugger from None


def _stop(
    retrace: Retrace, learner: Learner, network: Model, batch: Any, update: int, divergence: Diverged | None
) -> None:
    """`batch` is what the update learns from; `up` leads to the learner, `return` into the update."""
    breakpoint()
