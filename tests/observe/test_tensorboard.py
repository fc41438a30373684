from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rollmill.observe.tensorboard import tensorboard_observer


def test_tensorboard_reads_back_what_was_written(tmp_path: Path, run_events) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    observer = tensorboard_observer(tmp_path, 0)
    for event in run_events(updates=3, frame_skip=4):
        observer.receive(event)
    observer.close()
    stored = EventAccumulator(str(tmp_path / "tensorboard")).Reload()

    def points(tag: str) -> list[tuple[int, float]]:
        return [(point.step, point.value) for point in stored.Scalars(tag)]

    assert points("return/ema") == [(100, 11), (200, 21), (300, 31)]
    assert points("return/mean_100") == [(100, 11), (200, 16), (300, 21)]
    assert points("return/random_baseline") == [(100, 5), (200, 5), (300, 5)]
    assert points("loss/policy") == [(100, 1), (200, 2), (300, 3)]
    assert points("speed/steps_per_second") == [(100, 100), (200, 100), (300, 100)]
    assert points("speed/frames_per_second")[0] == (100, 400)
    assert points("time/env")[0] == (100, pytest.approx(0.3))
    assert points("learn/entropy")[0] == (100, 0.5)


def test_writing_for_tensorboard_needs_neither_torch_nor_tensorflow(tmp_path: Path) -> None:
    script = f"""
import sys
from pathlib import Path
from rollmill.events import Progress, Updated
from rollmill.observe.tensorboard import tensorboard_observer
assert "tensorboard" not in sys.modules
observer = tensorboard_observer(Path({str(tmp_path)!r}), 0)
observer.receive(Updated(Progress(), 1, {{"kl": 0.5}}))
observer.close()
assert not {{"torch", "tensorflow"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
