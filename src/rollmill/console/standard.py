"""The observers of an ordinary run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from rollmill.console.console import ConsoleObserver
from rollmill.console.curve import CurveObserver
from rollmill.console.display import Display
from rollmill.console.keys import keys_of
from rollmill.console.live_watch import HINT, WatchObserver
from rollmill.observe.config import ObserveConfig
from rollmill.observe.files import csv_observer, episodes_observer, jsonl_observer
from rollmill.observe.logs import LogObserver
from rollmill.observe.observer import Observer
from rollmill.observe.periodic_evaluation import EvaluationObserver
from rollmill.observe.summary import SummaryObserver
from rollmill.observe.tensorboard import tensorboard_observer
from rollmill.persist.rewind import last_episodes


def default_observers(run: Path, config: ObserveConfig, stream: TextIO | None = None) -> list[Observer]:
    """What the configuration asks for, writing below `run` and to `stream` (standard output unless given).

    The order matters: they are closed in it, so the curve finds the files and the console's summary the curve.
    In a run that is resumed they continue with the files as `resume.trim` has left them.
    """
    past = last_episodes(run)
    observers: list[Observer] = [
        jsonl_observer(run, config.log_interval, past),
        csv_observer(run, config.log_interval, past),
        episodes_observer(run),
        LogObserver(run, config.log_interval),
        SummaryObserver(run, past=past),
    ]
    if config.tensorboard:
        observers.append(tensorboard_observer(run, config.log_interval, past))
    if config.curve:
        observers.append(CurveObserver(run))
    stream, is_shown = stream or sys.stdout, config.console != "none"
    keys = keys_of(sys.stdin, stream) if is_shown and config.keys else None
    display = Display(stream, config.console, config.interval, config.lines_interval, keeps_last=True)
    observers.append(WatchObserver(run, display.say, keys, config.watch_niceness))
    if config.evaluate.seconds is not None:
        observers.append(EvaluationObserver(run, config.evaluate, display.say))
    if is_shown:
        observers.append(ConsoleObserver(run, display, [] if keys is None else [HINT]))
    return observers
