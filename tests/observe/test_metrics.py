from __future__ import annotations

from dataclasses import replace

import pytest

from rollmill.events import Checkpointing, EpisodesEnded, Progress
from rollmill.observe.metrics import MetricsWindow, RecentEpisodes


def rows_of(events, interval):
    window = MetricsWindow(interval)
    return [row for event in events if (row := window.add(event))]


def test_without_an_interval_every_update_is_a_row(run_events) -> None:
    rows = rows_of(run_events(updates=4), 0)
    assert [row.metrics["loss/policy"] for row in rows] == [1, 2, 3, 4]


def test_rows_in_between_are_averaged_and_the_rest_comes_at_the_end(run_events) -> None:
    rows = rows_of(run_events(updates=6), 2)  # one update per second
    # The first update is a row of its own; then 2 and 3; 4 and 5; the end brings 6.
    assert [row.progress.updates for row in rows] == [1, 3, 5, 6]
    assert [row.metrics["loss/policy"] for row in rows] == [1, 2.5, 4.5, 6]


def test_a_checkpoint_brings_what_is_pending_as_a_row(run_events) -> None:
    events = run_events(updates=6)
    events.insert(9, Checkpointing(events[8].progress))  # after the start and four updates of two events each
    rows = rows_of(events, 2)
    # 1; 2 and 3; 4, because of the checkpoint; 5 and 6.
    assert [row.progress.updates for row in rows] == [1, 3, 4, 6]
    assert [row.metrics["loss/policy"] for row in rows] == [1, 2.5, 4, 5.5]
    events.insert(9, events[9])
    assert rows_of(events, 2) == rows, "nothing is pending at the second one"


def test_the_first_row_after_a_resume_counts_neither_earlier_steps_nor_the_pause(run_events) -> None:
    start, *events = run_events(updates=6)
    start = replace(start, progress=events[5].progress)  # goes on after three updates
    rows = rows_of([start, *events[6:]], 2)
    assert [row.progress.updates for row in rows] == [5, 6]
    assert [row.steps_per_second for row in rows] == [100, 100]


def test_speed_is_measured_over_the_stretch(run_events) -> None:
    rows = rows_of(run_events(updates=6), 2)
    assert [row.steps_per_second for row in rows] == [100, 100, 100, 100]


def test_the_mean_takes_the_last_hundred_episodes(run_events) -> None:
    rows = rows_of(run_events(updates=60), 0)
    assert rows[1].return_mean_100 == (10 + 12 + 20 + 22) / 4
    # Of 120 episodes the last 100 come from updates 11 to 60, whose means are 10 u + 1: 10 × 35.5 + 1.
    assert rows[-1].return_mean_100 == pytest.approx(356)
    assert rows[-1].length_mean_100 == 50


def test_no_episode_means_no_mean() -> None:
    episodes = RecentEpisodes()
    assert episodes.return_mean is None
    episodes.add(EpisodesEnded(Progress(), (3.0,), (7,), (True,)))
    assert (episodes.return_mean, episodes.length_mean) == (3, 7)
