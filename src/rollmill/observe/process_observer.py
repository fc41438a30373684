"""A user's observer in a process of its own: the run's end, and the program at the other end.

The thread that delivers sends one event at a time and waits for the answer, so that what is counted as delivered was
handled. An unroll is copied into shared memory, after which its slot is free.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.errors import Refused
from rollmill.events import Event, Opened
from rollmill.launch.helper import Tethered
from rollmill.nested import Nested
from rollmill.observe import parcels
from rollmill.observe.calls import (
    HookFailed,
    HookRefused,
    UnrollSeen,
    call,
    kinds_wanted,
    load_hooks,
    wants_trajectories,
)
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import Hooks, Unroll
from rollmill.observe.loans import UnrollLent
from rollmill.observe.mailbox import Gone
from rollmill.observe.observer import Overflow
from rollmill.observe.terms import Terms
from rollmill.observe.unroll_memory import UnrollMemory

NICENESS = 5  # of the process: the training comes first
END_SECONDS = 2.0  # that the process has to go by itself when the run is over


@dataclass(frozen=True)
class _Failed:
    """The answer to an event that a hook stumbled over."""

    text: str
    is_system: bool


class ProcessObserver:
    """Hooks that are called in another process; `hooks` here only tell what they want."""

    def __init__(self, hooks: Hooks, config: ObserverConfig, name: str, overflow: Overflow, terms: Terms) -> None:
        self.name, self.overflow, self.terms = name, overflow, terms
        self.kinds = kinds_wanted(hooks) | {Opened}  # with which the process starts
        self.trajectories_after = hooks.trajectories_after if wants_trajectories(hooks) else None
        self._config = config
        self._process: Tethered | None = None
        self._link: socket.socket | None = None
        self._memory: UnrollMemory | None = None

    def receive(self, event: Event) -> None:
        """Have the event handled over there."""
        if isinstance(event, Opened) and self._process is None:
            self._start(Path(event.run) / "logs")
            try:
                self._ask(self._config)
            except HookFailed as failure:
                raise Gone(f"because it could not be made: {failure}") from None
        if not isinstance(event, UnrollLent):
            self._ask(event)
            return
        unroll, is_first = event.unroll, self._memory is None
        if self._memory is None:
            self._memory = UnrollMemory.like(unroll.arrays)
        self._memory.write(unroll.arrays)
        event.release()  # its slot is wanted elsewhere
        bare = Unroll(unroll.actor, unroll.sequence, unroll.version, unroll.update, {})
        if is_first:
            self._ask(self._memory.spec, self._memory.descriptor)
        self._ask(UnrollSeen(event.progress, bare))

    def close(self) -> None:
        """End the process, the gentle way first."""
        self._hang_up()
        if self._process is not None:
            self._process.wait(END_SECONDS)
            self._process.end()
        if self._memory is not None:
            self._memory.close()

    def abandon(self) -> None:
        """End the process although it is busy; a caller that waits for its answer is notified."""
        if self._process is not None:
            self._process.end()

    def _start(self, logs: Path) -> None:
        ours, theirs = socket.socketpair()
        program = f"from {__name__} import main; main({theirs.fileno()})"
        command = [sys.executable, "-c", program]
        output, errors = logs / f"observer.{self.name}.out", logs / f"observer.{self.name}.err"
        with theirs:
            self._process = Tethered(command, NICENESS, output, errors, [theirs.fileno()])
        self._link = ours

    def _ask(self, thing: Any, descriptor: int | None = None) -> None:
        """Send something and wait for the answer."""
        if self._link is None:
            raise Gone("because its process is not there")
        try:
            parcels.send(self._link, thing, descriptor)
            answer, _ = parcels.receive(self._link)
        except (EOFError, OSError):
            self._hang_up()
            raise Gone(f"because its process {self._ending()}") from None
        if isinstance(answer, _Failed):
            raise (HookRefused if answer.is_system else HookFailed)(answer.text)

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()

    def _ending(self) -> str:
        assert self._process is not None
        self._process.wait(END_SECONDS)
        code = self._process.exit_code
        if code is None:
            return "does not answer"
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"


def main(descriptor: int) -> None:
    """Entry of the process: call hooks as long as the run is there."""
    link = socket.socket(fileno=descriptor)
    hooks = Hooks()
    memory: UnrollMemory | None = None
    while True:
        try:
            thing, passed = parcels.receive(link)
        except (EOFError, OSError):
            return
        answer: _Failed | None = None
        try:
            if isinstance(thing, ObserverConfig):
                hooks = load_hooks(thing, "observe.observers")
            elif passed is not None:
                memory = UnrollMemory(thing, passed)
            else:
                call(hooks, _with_arrays(thing, {} if memory is None else memory.read()))
        except (HookFailed, Refused) as error:
            answer = _Failed(str(error), isinstance(error, OSError))
        try:
            parcels.send(link, answer)
        except OSError:
            return


def _with_arrays(event: Event, arrays: Mapping[str, Nested]) -> Event:
    if not isinstance(event, UnrollSeen):
        return event
    bare = event.unroll
    return UnrollSeen(event.progress, Unroll(bare.actor, bare.sequence, bare.version, bare.update, arrays))
