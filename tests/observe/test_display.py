"""The display that training, evaluation, retracing, seeds and tuning share."""

from __future__ import annotations

import io
import json

import pytest

from rollmill.console.display import Display
from rollmill.console.text_table import text_table
from rollmill.console.view import View, Work
from rollmill.trials.seeds_folder import SeedsFolder, seeds_view


@pytest.fixture(autouse=True)
def terminal_of_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def test_lines_that_are_not_new_are_not_printed_again():
    stream = io.StringIO()
    display = Display(stream, "lines")
    display.show(View([], ["a 1", "b 1"]))
    display.show(View([], ["a 2", "b 1"]))
    display.show(View([], ["a 1", "b 2"]))
    assert stream.getvalue().splitlines() == ["a 1", "b 1", "a 2", "a 1", "b 2"]


def test_lines_come_after_their_interval_and_a_bar_comes_at_once():
    assert not Display(io.StringIO(), "lines", lines_interval=60.0).is_due
    assert Display(io.StringIO(), "lines", lines_interval=0.0).is_due
    display = Display(io.StringIO(), "bar", interval=60.0)
    assert display.is_due
    display.show(View([("title", 0.5)], []))
    assert not display.is_due
    display.finish()


def test_silence_is_silent():
    stream = io.StringIO()
    display = Display(stream, "none", interval=0.0, lines_interval=0.0)
    display.say("a line")
    display.show(View([("title", 0.5)], ["a line"]))
    display.finish()
    assert not display.is_due
    assert stream.getvalue() == ""


@pytest.mark.parametrize("keeps_last", [True, False])
def test_the_last_view_stays_or_goes_and_the_next_one_does_not_overwrite_what_stays(keeps_last):
    stream = io.StringIO()
    display = Display(stream, "bar", keeps_last=keeps_last)
    display.show(View([("title", 0.5)], []))
    stream.seek(0)
    stream.truncate()
    display.finish()
    assert stream.getvalue().endswith("\x1b[1A\x1b[2K") == (not keeps_last)
    display.say("a [bold]line")
    stream.seek(0)
    stream.truncate()
    display.show(View([("title", 0.6)], []))
    assert "\x1b[1A" not in stream.getvalue()
    display.finish()


def test_work_is_announced_and_then_shown_with_what_is_left():
    assert Work("baselines", "episodes", 2000).after().lines == ["baselines: 2,000 episodes"]
    view = Work("baselines", "episodes", 2000).after(1000, "return 3.00")
    assert view.lines == ["baselines: 1,000/2,000 episodes, return 3.00, ETA 0:00"]
    assert view.bars == [("baselines", 0.5, "1,000/2,000 episodes", "return 3.00", "ETA 0:00")]
    assert Work("steps", "steps", 10).after(12).bars[0][1] == 1.0  # the last episode may exceed what was asked for


def test_seeds_under_way_are_lines_and_all_seeds_are_bars(tmp_path):
    folder = SeedsFolder(tmp_path, {"seeds": [1, 2, 3]})
    folder.status.update({1: "done", 2: "running"})
    for seed, steps in ((1, 200), (2, 50)):
        folder.run(seed).mkdir()
        row = {"env_steps": steps, "return_ema": 12.0, "steps_per_second": 10.0, "seconds": steps / 10}
        (folder.run(seed) / "metrics.jsonl").write_text(json.dumps(row) + '\n{"env_st')
    view = seeds_view(folder, "env_steps", 200)
    assert view.lines == ["seed 2   25%  50/200 steps  ETA 0:15  return 12.0  10 steps/s"]  # 150 steps at 10 a second
    assert view.bars == [
        ("seed 1", "done", 1.0, "100%", "200/200", "12.0", "-", "-:--"),
        ("seed 2", "running", 0.25, " 25%", "50/200", "12.0", "10", "0:15"),
        ("seed 3", "waiting", 0.0, "  0%", "0/200", "-", "-", "-:--"),
    ]


def test_columns_are_aligned():
    rows = [("player", "return"), ("p", "1.0"), ("longest", "")]
    assert text_table(rows, indent=" ") == [" player   return", " p           1.0", " longest"]
