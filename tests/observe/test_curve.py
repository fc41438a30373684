from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from rollmill.console.curve import draw_curve, running_mean
from rollmill.launch.caches import font_cache_below_tmp, own_folder
from rollmill.observe.files import episodes_observer
from rollmill.observe.summary import SummaryObserver

BASELINE = (217, 119, 6)
LINE = (37, 99, 235)


def pixels(path: Path) -> np.ndarray:
    from matplotlib.image import imread

    return np.round(imread(path)[..., :3] * 255).astype(int)


def rows_of(picture: np.ndarray, colour: tuple[int, int, int]) -> np.ndarray:
    return np.unique(np.nonzero((np.abs(picture - colour) <= 2).all(axis=-1))[0])


def record(run: Path, events) -> None:
    for observer in (episodes_observer(run), SummaryObserver(run)):
        for event in events:
            observer.receive(event)
        observer.close()


def test_the_curve_shows_the_returns_above_the_random_baseline(tmp_path: Path, run_events) -> None:
    record(tmp_path, run_events())
    picture = pixels(draw_curve(tmp_path))[60:]  # without the legend
    assert rows_of(picture, LINE).max() < rows_of(picture, BASELINE).min()  # rows count downwards
    assert picture.shape[:2] == (480, 960)


def test_without_a_baseline_none_is_drawn(tmp_path: Path, run_events) -> None:
    record(tmp_path, run_events())
    summary = json.loads((tmp_path / "summary.json").read_text())
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "random_baseline": {"return": None}}))
    assert not len(rows_of(pixels(draw_curve(tmp_path)), BASELINE))


@pytest.mark.parametrize("lines", [[], ["100,1.0,10.0,50,0"], ["100,1.0,10.0,50,0", "200,2."], ["9,1.0,nan,5,0"]])
def test_few_or_broken_episodes_still_give_a_picture(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "episodes.csv").write_text("\n".join(["env_steps,seconds,return,length,truncated", *lines]))
    assert pixels(draw_curve(tmp_path)).shape == (540, 960, 3)


def test_a_return_that_is_no_number_does_not_hide_the_others(tmp_path: Path) -> None:
    lines = ["env_steps,seconds,return,length,truncated", "9,1.0,nan,5,0", "100,1.0,10.0,50,0"]
    (tmp_path / "episodes.csv").write_text("\n".join(lines))
    assert len(rows_of(pixels(draw_curve(tmp_path))[60:], LINE))


def test_an_empty_run_folder_still_gives_a_picture(tmp_path: Path) -> None:
    assert pixels(draw_curve(tmp_path)).shape == (540, 960, 3)


def test_the_running_mean_is_over_the_last_values() -> None:
    assert running_mean(np.array([2.0, 4.0, 6.0, 11.0]), 2).tolist() == [2, 3, 5, 8.5]


def test_drawing_writes_only_to_the_run_folder_and_tmpdir(tmp_path: Path) -> None:
    run, home, tmp = tmp_path / "run", tmp_path / "home", tmp_path / "tmp"
    for folder in (run, home, tmp):
        folder.mkdir()
    kept = {key: value for key, value in os.environ.items() if key != "MPLCONFIGDIR" and not key.startswith("XDG_")}
    script = (
        "import os, sys; from pathlib import Path; from rollmill.console.curve import draw_curve\n"
        "assert 'matplotlib' not in sys.modules\n"
        "draw_curve(Path(sys.argv[1]))\n"
        "assert 'MPLCONFIGDIR' not in os.environ and 'matplotlib.pyplot' not in sys.modules"
    )
    environment = {**kept, "HOME": str(home), "TMPDIR": str(tmp)}
    subprocess.run([sys.executable, "-c", script, str(run)], check=True, env=environment)
    assert [path.name for path in run.iterdir()] == ["curve.png"]
    assert list(home.iterdir()) == []
    assert [path.name for path in tmp.iterdir()] == [f"rollmill-matplotlib-{os.getuid()}"]


def test_a_font_cache_that_others_may_write_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    monkeypatch.delenv("MPLCONFIGDIR", raising=False)
    open_to_all = own_folder("matplotlib")
    assert open_to_all is not None
    with font_cache_below_tmp():
        assert os.environ["MPLCONFIGDIR"] == str(open_to_all)
    open_to_all.chmod(0o777)
    with font_cache_below_tmp():
        assert os.environ["MPLCONFIGDIR"] != str(open_to_all)
