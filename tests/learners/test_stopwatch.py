"""Idle shares, with a clock that the test turns."""

from __future__ import annotations

import pytest

from rollmill.learners import stopwatch
from rollmill.learners.stopwatch import Stopwatch


@pytest.fixture
def clock(monkeypatch):
    """Seconds in a list; an update is 10 of them, the last 4 of which are spent learning."""
    now = [0.0]
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: now[0])
    return now


def update(watch, clock, *unrolls):
    for unroll in unrolls:
        watch.collected(*unroll)
    clock[0] += 6
    watch.learning()
    clock[0] += 4
    return watch.updated(100)


def test_idle_is_what_a_process_did_not_spend_on_its_own_work(clock):
    watch = Stopwatch(2, overlaps=True)
    for _ in range(50):  # actors 0 and 2 are in worker 0: 3 + 1 + 2 + 1 of 10 s; actor 1 in worker 1: 2 of 10 s
        found = update(watch, clock, (0, 3.0, 1.0), (2, 2.0, 1.0), (1, 1.0, 1.0))
    assert found["idle/learner"] == pytest.approx(0.6)
    assert found["idle/worker.0"] == pytest.approx(0.3)
    assert found["idle/worker.1"] == pytest.approx(0.8)
    assert "idle/inference" not in found
    assert found["time/learn"] == pytest.approx(0.4)
    assert found["time/wait"] == pytest.approx(0.6)
    assert found["steps_per_second"] == pytest.approx(10)


def test_an_unroll_that_took_several_updates_counts_for_all_of_them(clock):
    """Every fifth update brings an unroll of 40 s: smoothed, the worker is busy for about 40 of 50 s."""
    watch = Stopwatch(1, overlaps=True)
    found = [update(watch, clock, *([(0, 30.0, 10.0)] if n % 5 == 0 else []))["idle/worker.0"] for n in range(200)]
    assert sum(found[100:]) / 100 == pytest.approx(0.2, abs=0.05)


def test_where_inference_is_apart_deciding_is_its_time_and_not_the_workers(clock):
    watch = Stopwatch(2, overlaps=True, decides_apart=True)
    for _ in range(50):
        found = update(watch, clock, (0, 3.0, 1.0), (1, 2.0, 4.0))
    assert found["idle/worker.0"] == pytest.approx(0.7)
    assert found["idle/worker.1"] == pytest.approx(0.8)
    assert found["idle/inference"] == pytest.approx(0.5)
