"""The run's numbers for TensorBoard, written without torch."""

from __future__ import annotations

import io
import math
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from rollmill.events import EpisodesEnded, Event, RunStarted
from rollmill.observe.files import FileObserver
from rollmill.observe.metrics import NONE_ENDED, MetricsWindow, Row
from rollmill.persist.writing import AppendedFile, unused


def tensorboard_observer(run: Path, interval: float, past: EpisodesEnded = NONE_ENDED) -> FileObserver:
    """Writes scalars below <run>/tensorboard; the x axis is env steps (agent decisions)."""
    name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}"
    file, window = AppendedFile(unused(run / "tensorboard" / name)), MetricsWindow(interval, past)
    random_return: float | None = None

    def take(event: Event) -> None:
        """Write a row whenever one is complete, with the random baseline next to the return."""
        nonlocal random_return
        if isinstance(event, RunStarted):
            random_return = event.random_return
        if row := window.add(event):
            _write(file, scalars(row, random_return), row.progress.env_steps)

    return FileObserver("tensorboard", file, take)


def _write(file: AppendedFile, values: Mapping[str, float], step: int) -> None:
    # Imported here, in the observer's own thread: about 0.35 s that a run without TensorBoard doesn't pay.
    from tensorboard.compat.proto.event_pb2 import Event as Record
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.record_writer import RecordWriter

    now = time.time()
    file.path.parent.mkdir(exist_ok=True)  # each time: it may have been removed with all that was in it
    framed = io.BytesIO()
    writer = RecordWriter(framed)  # adds length and checksums around each record
    if file.open() == 0:
        writer.write(Record(wall_time=now, file_version="brain.Event:2").SerializeToString())
    summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
    writer.write(Record(wall_time=now, step=step, summary=summary).SerializeToString())
    file.write(framed.getvalue())


def scalars(row: Row, random_return: float | None) -> dict[str, float]:
    """A row as TensorBoard tags: return/…, speed/…, and the metrics, those without a group under learn/…."""
    progress = row.progress
    rate = row.steps_per_second
    values: dict[str, float | None] = {
        "return/ema": progress.return_ema,
        "return/mean_100": row.return_mean_100,
        "return/random_baseline": random_return,
        "return/length_mean_100": row.length_mean_100,
        "speed/steps_per_second": rate,
        "speed/updates": progress.updates,
    }
    if rate is not None and progress.frames != progress.env_steps > 0:
        values["speed/frames_per_second"] = rate * progress.frames / progress.env_steps
    values |= {name if "/" in name else f"learn/{name}": value for name, value in row.metrics.items()}
    # TensorBoard draws a NaN as a triangle; a missing value is left out.
    return {tag: float(value) for tag, value in values.items() if value is not None and not math.isinf(value)}
