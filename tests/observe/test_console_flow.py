"""What the console says of asynchronous training, and that it says nothing of it where there is none."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest

from rollmill.console.console import ConsoleObserver
from rollmill.console.display import Display
from rollmill.events import Updated

FLOW = {"port/in_flight": 16.0, "port/unrolls_depth": 2.0, "idle/learner": 0.12}
FLOW |= {"idle/worker.0": 0.03, "idle/worker.1": 0.05}


@pytest.fixture(autouse=True)
def terminal_of_eighty_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


def shown(events, folder, bar):
    stream = io.StringIO()
    observer = ConsoleObserver(folder, Display(stream, "bar" if bar else "lines", 0.0, 0.0, keeps_last=True))
    for event in events:
        observer.receive(event)
    observer.close()
    return re.sub(r"\x1b\[[0-9;]*m", "", stream.getvalue())  # without colours


def with_flow(events, lag):
    """The same run with flow metrics; the first update never lags."""
    return [
        replace(event, metrics={**event.metrics, **FLOW, "lag/mean": lag(event.version), "lag/max": lag(event.version)})
        if isinstance(event, Updated)
        else event
        for event in events
    ]


@pytest.mark.parametrize("bar", [True, False], ids=["bar", "lines"])
def test_lag_queue_and_idle_shares_are_shown_from_the_first_lag_on(tmp_path, run_events, bar):
    text = shown(with_flow(run_events(updates=3), lambda version: float(version > 1)), tmp_path, bar)
    between = "   " if bar else "  "
    facts = ["lag 1.0 (max 1)", "in flight 16", "queue 2.0", "idle learner 12%  workers  4%"]
    assert text.count(between.join(facts)) >= 2
    first = text.partition("lag ")[0]
    assert "10%" in first
    assert "20%" in first, "nothing of it in the line of the first update"


@pytest.mark.parametrize("bar", [True, False], ids=["bar", "lines"])
def test_the_flow_stays_in_view_when_the_lag_is_gone_for_a_while(tmp_path, run_events, bar):
    text = shown(with_flow(run_events(updates=3), lambda version: float(version == 2)), tmp_path, bar)
    assert "lag 0.0 (max 0)" in text


@pytest.mark.parametrize("bar", [True, False], ids=["bar", "lines"])
def test_synchronous_training_shows_nothing_of_it(tmp_path, run_events, bar):
    text = shown(with_flow(run_events(), lambda version: 0.0), tmp_path, bar)
    assert "learn 40%" in text
    for word in ("lag", "in flight", "queue", "idle"):
        assert word not in text


def test_the_fourth_line_of_the_bar_fits_eighty_columns(tmp_path, run_events):
    text = shown(with_flow(run_events(), lambda version: 123.0), tmp_path, bar=True)
    plain = text.replace("\r", "\n").replace("\x1b[2K", "\n").replace("\x1b[1A", "")
    lines = [line for line in plain.split("\n") if "in flight" in line]
    assert lines
    assert max(len(line.rstrip()) for line in lines) <= 80
    assert all("workers  4%" in line for line in lines)
