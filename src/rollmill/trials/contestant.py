"""The process that trains with one setup: for as many seconds at a time as it is asked to, and is idle in between."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.errors import RollmillError
from rollmill.events import Event, Updated
from rollmill.experiment import Experiment
from rollmill.settings import load_config

WARM_UP = 0.25  # share of the seconds that isn't counted: what was made while we stood still would look fast


def compete(values: dict[str, Any], folder: Path, channel: socket.socket) -> None:
    """Train with the config `values` whenever a number of seconds arrives; answer with what was measured."""
    # how the stand ends us; the training itself takes it as a wish
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        events = Experiment(load_config(values), folder, observers=[]).run()
        try:
            with channel.makefile("r") as requests:
                for line in requests:
                    _send(channel, _measure(events, float(line), channel))
        finally:
            events.close()  # type: ignore[attr-defined]  # a generator
    except (BrokenPipeError, ConnectionResetError):
        return  # the result is not wanted any more
    except RollmillError as error:
        _send(channel, {"failed": str(error)})
    except Exception as error:
        _send(channel, {"failed": f"{type(error).__name__}: {error}"})


def _measure(events: Iterator[Event], seconds: float, channel: socket.socket) -> dict[str, Any]:
    """Steps and seconds between two updates, and where the time went; at least one whole update."""
    begun = perf_counter()
    first = last = None
    spent: dict[str, float] = {}
    for event in events:
        if not isinstance(event, Updated):
            continue
        if _is_deserted(channel):
            raise BrokenPipeError
        now = event.progress
        if first is None or last is None:
            if perf_counter() - begun >= WARM_UP * seconds:
                first = last = now
            continue
        for name, share in event.metrics.items():
            if name.startswith("time/"):
                name = name.removeprefix("time/")
                spent[name] = spent.get(name, 0.0) + share * (now.seconds - last.seconds)
        last = now
        if now.seconds - first.seconds >= (1 - WARM_UP) * seconds:
            break
    if first is None or last is None or last.seconds <= first.seconds:
        return {"failed": "the training ended before it could be measured"}
    elapsed = last.seconds - first.seconds
    return {
        "steps": last.env_steps - first.env_steps,
        "seconds": elapsed,
        "updates": last.updates - first.updates,
        "shares": {name: value / elapsed for name, value in spent.items()},
    }


def _is_deserted(channel: socket.socket) -> bool:
    poll = select.poll()
    poll.register(channel, select.POLLRDHUP)
    return bool(poll.poll(0))


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    message["pid"] = os.getpid()
    try:
        channel.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        raise BrokenPipeError from None
