"""The observers of an ordinary run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TextIO

from rollmill.console.console import ConsoleObserver, make_display
from rollmill.console.curve import CurveObserver
from rollmill.console.keys import keys_of
from rollmill.console.live_watch import HINT, WatchObserver
from rollmill.observe.config import ObserveConfig
from rollmill.observe.files import CsvObserver, EpisodesObserver, JsonlObserver
from rollmill.observe.logs import LogObserver
from rollmill.observe.observer import Observer
from rollmill.observe.periodic_evaluation import EvaluationObserver
from rollmill.observe.summary import SummaryObserver
from rollmill.observe.tensorboard import TensorBoardObserver
from rollmill.persist.rewind import last_episodes


def default_observers(run: Path, config: ObserveConfig, stream: TextIO | None = None) -> list[Observer]:
    """What the configuration asks for, writing below `run` and to `stream` (standard output unless given).

    The order matters: they are closed in it, so the curve finds the files and the console's summary the curve.
    In a run that is resumed they continue with the files as `resume.trim` has left them.
    """
    past = last_episodes(run)
    observers: list[Observer] = [
        JsonlObserver(run, config.log_interval, past),
        CsvObserver(run, config.log_interval, past),
        EpisodesObserver(run),
        LogObserver(run, config.log_interval),
        SummaryObserver(run, past=past),
    ]
    if config.tensorboard:
        observers.append(TensorBoardObserver(run, config.log_interval, past))
    if config.curve:
        observers.append(CurveObserver(run))
    shows, tell = config.console != "none", _nobody
    keys = keys_of(sys.stdin, stream or sys.stdout) if shows and config.keys else None
    if shows:
        display, interval = make_display(config, stream or sys.stdout)
        console = ConsoleObserver(run, display, interval, [] if keys is None else [HINT])
        tell = console.tell
    observers.append(WatchObserver(run, tell, keys, config.watch_niceness))
    if config.evaluate.seconds is not None:
        observers.append(EvaluationObserver(run, config.evaluate, tell))
    if shows:
        observers.append(console)
    return observers


def _nobody(line: str) -> None:
    """Without a console nothing is shown."""
