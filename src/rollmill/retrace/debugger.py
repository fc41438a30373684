"""A debugger in the middle of a run that is retraced."""

from __future__ import annotations

from bdb import BdbQuit
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from numpy.random import Generator

from rollmill.console.display import Display
from rollmill.learners.learner import Learner
from rollmill.models.network import Network
from rollmill.retrace.comparison import Diverged
from rollmill.stores.store import Sample, Store

if TYPE_CHECKING:
    from rollmill.retrace.retrace import Retrace


class LeftDebugger(Exception):
    """The user quit the debugger."""


class Debugger:
    """Opens Python's debugger (`breakpoint()`) before one update, and wherever the run diverges."""

    def __init__(self, retrace: Retrace, stop_at: int | None, display: Display) -> None:
        self._retrace, self._stop_at, self._display = retrace, stop_at, display
        self._store: _OpenStore | None = None

    def begun(self) -> None:
        """Record the learner's batches from now on."""
        learner = self._retrace.runtime.learner
        self._store = _OpenStore(learner)
        learner.store = cast(Store, self._store)

    def about_to_update(self, update: int) -> None:
        """Stop if this is the one."""
        if update == self._stop_at:
            self._open(update, f"before update {update}", None)

    def diverged(self, divergence: Diverged) -> None:
        """Stop where it is found."""
        self._open(divergence.update, str(divergence), divergence)

    def _open(self, update: int, where: str, divergence: Diverged | None) -> None:
        learner = self._retrace.runtime.learner
        batch = None if self._store is None else self._store.batch_of(update)
        self._display.finish()  # the debugger needs the terminal
        self._display.say(f"{where}; here are: retrace, learner, network, batch, update, divergence")
        try:
            _stop(self._retrace, learner, learner.trainer.network, batch, update, divergence)
        except BdbQuit:
            if divergence is None:
                raise LeftDebugger from None


def _stop(
    retrace: Retrace, learner: Learner, network: Network, batch: Any, update: int, divergence: Diverged | None
) -> None:
    """`batch` is what the update learns from; `up` leads to the learner, `return` into the update."""
    breakpoint()


class _OpenStore:
    """Wraps the learner's store and keeps its last sample."""

    def __init__(self, learner: Learner) -> None:
        self._store, self._trainer = learner.store, learner.trainer
        self._last: tuple[int, Any] = (0, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def sample(self, rng: Callable[[], Generator], version: int) -> Sample:
        """See `Store`."""
        sample = self._store.sample(rng, version)
        self._last = self._trainer.updates + 1, sample.batch
        return sample

    def batch_of(self, update: int) -> Any:
        """The batch of the update, or None before it is sampled."""
        return self._last[1] if self._last[0] == update else None
