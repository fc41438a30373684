"""The loop of a worker process: give its components their turn, sleep while none has anything to do."""

from __future__ import annotations

import faulthandler
import io
import mmap
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic

from rollmill.actors.component import Component
from rollmill.launch.json_lines import write_line
from rollmill.launch.process import set_threads, write_output_to
from rollmill.launch.pulse import LINE_BYTES, PULSE
from rollmill.launch.stack_sampler import WAITING, sample_if_wanted
from rollmill.runtime.graph import End, Node
from rollmill.runtime.wiring import SharedWiring
from rollmill.transport.ports import PortCounters
from rollmill.transport.shared import SharedReceiver, SharedSender
from rollmill.types import ResumePoint


@dataclass(frozen=True)
class WorkerPlan:
    """One worker process: which components it hosts and how."""

    place: str
    nodes: tuple[Node, ...]
    threads: tuple[int, ...]  # of each node
    core: int | None  # tied to this one; None: free
    niceness: int  # below the learner's priority
    reports: int  # write end of the pipe to the parent
    output: str | None  # file that takes over stdout and stderr; None: inherited
    pulse: tuple[int, int]  # memory of all pulses, and where in it ours begins
    stack: int  # file to which the stacks are dumped on request
    points: Mapping[int, ResumePoint]  # where the actors continue from; those that are not here begin
    busy: Mapping[End, tuple[int, ...]]  # slots of former workers that are still being read


def run_worker(plan: WorkerPlan, wiring: SharedWiring, life: int) -> int:
    """Build the components of `plan` and work until the pipe `life` ends; the exit code."""
    node_name = plan.place
    components: list[tuple[int, Component]] = []
    try:
        _settle(plan)
        poll = select.poll()
        poll.register(life, select.POLLIN)
        drains: dict[int, Callable[[], None]] = {}
        counters: dict[str, PortCounters] = {}
        for node, threads in zip(plan.nodes, plan.threads, strict=True):
            node_name = node.name
            set_threads(threads)
            ports = wiring.attach(node.name, plan.busy)
            ends: dict[str, SharedSender | SharedReceiver] = {**ports.senders, **ports.receivers}
            for name, end in ends.items():
                counters[f"{node.name}:{name}"] = end.counters
                poll.register(end.fileno(), select.POLLIN)
                drains[end.fileno()] = end.drain
            counters |= {f"{node.name}:{name}": cell.counters for name, cell in ports.readers.items()}
            components.append((threads, node.build(node.name, ports)))
            core = "" if plan.core is None else f", core {plan.core}"
            text = f"{node.role} in {plan.place}, process {os.getpid()}, {threads} thread(s){core}"
            write_line(plan.reports, kind="said", what={"component": node.name, "text": text})
        before = monotonic()
        for threads, component in components if plan.points else ():
            node_name = component.name
            set_threads(threads)
            component.resume(plan.points)
            _pass_on(plan, component)
        write_line(plan.reports, kind="ready", replay_seconds=monotonic() - before)
        sample_if_wanted(plan.place, Waits(counters).reason)
        while True:
            progressed = False
            for threads, component in components:
                node_name = component.name
                set_threads(threads)
                progressed = component.work() or progressed
                if component.notices:
                    _pass_on(plan, component)
            for descriptor, _ in poll.poll(0 if progressed else None):
                if descriptor == life:
                    return 0
                drains[descriptor]()
    except BaseException as error:
        message, trace = " ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc()
        write_line(plan.reports, kind="failed", component=node_name, message=message, traceback=trace)
        return 1
    finally:
        for _, component in components:
            with suppress(Exception):  # the run is over; a simulator that won't close is killed with our group
                component.close()


def _settle(plan: WorkerPlan) -> None:
    if plan.core is not None:
        os.sched_setaffinity(0, {plan.core})
    os.nice(plan.niceness)
    if plan.output is not None:
        # What an environment prints goes to a file: a terminal with a progress bar is no place for it.
        write_output_to(plan.output)
        if isinstance(sys.stdout, io.TextIOWrapper):  # None if the main process had none
            sys.stdout.reconfigure(line_buffering=True)
    memory, start = plan.pulse
    PULSE.attach(memoryview(mmap.mmap(memory, 0))[start : start + LINE_BYTES])
    faulthandler.register(signal.SIGUSR2, plan.stack, all_threads=True)


def _pass_on(plan: WorkerPlan, component: Component) -> None:
    while component.notices:
        write_line(plan.reports, kind="said", what=component.notices.popleft()._asdict())


class Waits:
    """What a sleeping worker waits for: the ports at which it found nothing since the last look."""

    def __init__(self, ports: Mapping[str, PortCounters]) -> None:
        self._ports = ports
        self._seen = dict.fromkeys(ports, 0)
        self._reason = f"{WAITING} work"

    def reason(self) -> str:
        """In words, such as `waiting for tickets`; the last answer where nothing has changed."""
        vain: dict[str, int] = {}
        for name, port in self._ports.items():
            looks = port.waited + port.refused
            if looks != self._seen[name]:
                kind = "slots for " if port.refused else ""
                family = kind + name.rpartition(":")[2].partition(".")[0]
                vain[family] = vain.get(family, 0) + abs(looks - self._seen[name])
                self._seen[name] = looks
        if vain:
            self._reason = f"{WAITING} {max(vain, key=lambda family: vain[family])}"
        return self._reason
