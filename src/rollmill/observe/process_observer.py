"""A user's observer in a process of its own: the run's end, and the program at the other end.

The thread that delivers sends one event at a time and waits for the answer, so that what is counted as delivered was
handled. The arrays of an unroll are copied into memory that both processes map; everything else is pickled.
"""

from __future__ import annotations

import mmap
import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.errors import Refused
from rollmill.events import Event, Opened
from rollmill.fields import SPARSE
from rollmill.launch.children import Child
from rollmill.launch.helper import start_helper
from rollmill.nested import Nested
from rollmill.observe.calls import HookFailed, UnrollLent, UserObserver, call, load_hooks
from rollmill.observe.config import ObserverConfig
from rollmill.observe.hooks import Hooks
from rollmill.observe.mailbox import Gone
from rollmill.observe.observer import Overflow
from rollmill.transport.shared import Layout
from rollmill.types import ArraySpec

NICENESS = 5  # of the process: the training comes first
END_SECONDS = 2.0  # that the process has to end by itself when the run is over


class ProcessObserver(UserObserver):
    """Hooks that are called in another process; those here only say which events they want."""

    def __init__(self, config: ObserverConfig, hooks: Hooks, name: str, overflow: Overflow, capacity: int) -> None:
        super().__init__(hooks, name, overflow, capacity)
        self.kinds |= {Opened}  # with which the process starts
        self._config = config
        self._process: Child | None = None
        self._link: Connection | None = None
        self._memory = -1  # descriptor of memory for one unroll, from the start of the process on
        self._arrays: Mapping[str, Nested] = {}

    def receive(self, event: Event) -> None:
        """Have the event handled in the other process."""
        if isinstance(event, Opened) and self._process is None:
            self._start(Path(event.run) / "logs")
            try:
                self._ask(self._config)
            except Refused as refusal:
                raise Gone(f"because it could not be made: {refusal}") from None
        if isinstance(event, UnrollLent):
            self._copy(event.unroll.arrays)
            event = UnrollLent(event.progress, replace(event.unroll, arrays={}), _nothing)
        self._ask(event)

    def close(self) -> None:
        """End the process, the gentle way first."""
        self._hang_up()
        if self._process is not None:
            self._process.wait(END_SECONDS)
            self._process.end()
            os.close(self._memory)

    def abandon(self) -> None:
        """End the process although it is busy; a caller that waits for its answer is notified."""
        if self._process is not None:
            self._process.end()

    def _start(self, logs: Path) -> None:
        self._link, theirs = Pipe()
        self._memory = os.memfd_create("rollmill-observer", os.MFD_CLOEXEC)
        descriptors = [theirs.fileno(), self._memory]
        program = f"from {__name__} import main; main(*{descriptors})"
        output, errors = logs / f"observer.{self.name}.out", logs / f"observer.{self.name}.err"
        with theirs:
            self._process = start_helper([sys.executable, "-c", program], NICENESS, output, errors, descriptors)

    def _copy(self, arrays: Mapping[str, Nested]) -> None:
        """Copy an unroll into the memory, which the first one gives its size."""
        if not self._arrays:
            spec = nested.map_leaves(lambda leaf: ArraySpec(leaf.shape, leaf.dtype.name), dict(arrays))
            os.ftruncate(self._memory, Layout(spec).nbytes)
            self._arrays = _mapped(self._memory, spec, mmap.PROT_READ | mmap.PROT_WRITE)
            self._ask(spec)
        ended = np.nonzero(arrays["terminated"] | arrays["truncated"])
        for name, tree in arrays.items():
            if name not in SPARSE:  # copying all of them would touch untouched memory
                nested.copy_into(self._arrays[name], tree)
            elif len(ended[0]):
                nested.assign(self._arrays[name], ended, nested.index(tree, ended))

    def _ask(self, thing: Any) -> None:
        """Send something and wait for the answer: an exception to raise here, or None."""
        if self._link is None or self._process is None:
            raise Gone("because its process is not there")
        try:
            self._link.send(thing)
            answer: Exception | None = self._link.recv()
        except (EOFError, OSError):
            self._hang_up()
            how = "does not answer"
            if self._process.wait(END_SECONDS) and (code := self._process.exit_code) is not None:
                how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise Gone(f"because its process {how}") from None
        if answer is not None:
            raise answer

    def _hang_up(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.close()


def main(link: int, memory: int) -> None:
    """Entry of the process: call hooks until the run closes the link."""
    connection, hooks = Connection(link), Hooks()
    arrays: Mapping[str, Nested] = {}
    while True:
        answer: Exception | None = None
        try:
            thing = connection.recv()
        except (EOFError, OSError):
            return
        try:
            if isinstance(thing, ObserverConfig):
                hooks = load_hooks(thing, "observe.observers")
            elif isinstance(thing, UnrollLent):
                call(hooks, replace(thing, unroll=replace(thing.unroll, arrays=arrays)))
            elif isinstance(thing, Event):
                call(hooks, thing)
            else:
                arrays = _mapped(memory, thing, mmap.PROT_READ)
        except (HookFailed, Refused) as error:
            answer = error
        try:
            connection.send(answer)
        except OSError:
            return


def _mapped(memory: int, spec: Nested, protection: int) -> Mapping[str, Nested]:
    """The arrays of an unroll in the memory that both processes share."""
    layout = Layout(spec)
    mapped: Mapping[str, Nested] = layout.views(mmap.mmap(memory, layout.nbytes, prot=protection))
    return mapped


def _nothing() -> None:
    """The copy of an unroll has no slot to give back."""
