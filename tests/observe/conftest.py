"""A made-up run: events as the learner would publish them, with numbers that are easy to check."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rollmill.events import EpisodesEnded, Event, Progress, RunStarted, Stopped, Updated

METRICS = {"entropy": 0.5, "kl": 0.01, "time/env": 0.3, "time/inference": 0.2, "time/learn": 0.4, "time/wait": 0.1}


def progress(update: int, frame_skip: int = 1) -> Progress:
    """Each update takes 1 s and 100 steps; its two episodes return 10 × update and 10 × update + 2."""
    return Progress(
        env_steps=100 * update,
        frames=100 * update * frame_skip,
        target_steps=1000,
        updates=update,
        episodes=2 * update,
        seconds=float(update),
        return_ema=10.0 * update + 1 if update else None,
    )


def make_run(updates: int = 10, frame_skip: int = 1, summary: dict[str, object] | None = None) -> list[Event]:
    plan = ("1 learner [cpu]", "2 workers")
    events: list[Event] = [RunStarted(progress(0), "ppo on Counting-v0", plan, 5.0, 20, 2.0)]
    for update in range(1, updates + 1):
        now = progress(update, frame_skip)
        events.append(EpisodesEnded(now, (10.0 * update, 10.0 * update + 2), (50, 50), (False, True)))
        events.append(Updated(now, update, {"loss/policy": float(update), **METRICS}))
    events.append(Stopped(progress(updates, frame_skip), "done", "1,000 steps reached", summary or {}))
    return events


@pytest.fixture
def run_events() -> Callable[..., list[Event]]:
    return make_run
