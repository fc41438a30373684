from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from rollmill.console.standard import default_observers
from rollmill.observe.config import ObserveConfig
from rollmill.observe.dispatcher import Dispatcher


def test_a_whole_run_leaves_its_files_and_a_summary_that_points_at_them(tmp_path: Path, run_events) -> None:
    stream = io.StringIO()
    with Dispatcher(default_observers(tmp_path, ObserveConfig(), stream)) as dispatcher:
        for event in run_events():
            dispatcher.publish(event)
    assert {path.name for path in tmp_path.iterdir()} == {
        "metrics.jsonl", "metrics.csv", "episodes.csv", "summary.json", "curve.png", "logs", "tensorboard",
    }  # fmt: skip
    assert f"curve      {tmp_path / 'curve.png'}" in stream.getvalue()  # printed after it was drawn
    assert all(counts["errors"] == counts["dropped"] == 0 for counts in dispatcher.report().values())


def test_parts_can_be_left_out(tmp_path: Path) -> None:
    config = ObserveConfig(console="none", tensorboard=False, curve=False)
    names = [observer.name for observer in default_observers(tmp_path, config)]
    assert names == ["jsonl", "csv", "episodes", "logs", "summary", "watch"]


@pytest.mark.parametrize("wrong", [{"console": "loud"}, {"interval": -1.0}, {"log_interval": "fast"}, {"colour": True}])
def test_wrong_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ObserveConfig.model_validate(wrong)


def test_nothing_heavy_is_imported_before_it_is_used() -> None:
    script = (
        "import sys, rollmill.console.standard, rollmill.observe.dispatcher\n"
        "heavy = {'torch', 'matplotlib', 'tensorboard', 'rich', 'google.protobuf'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0
