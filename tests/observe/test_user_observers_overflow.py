"""What happens to the events of an observer that is too slow: each overflow rule by its arithmetic."""

from __future__ import annotations

import threading
import time

import pytest

from rollmill.events import Checkpointed, EpisodesEnded, Progress, Stopped, Updated
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.hooks import Hooks
from rollmill.observe.user_observers import make_user_observers

STOPPED = Stopped(Progress(), "done", "")


class Held(Hooks):
    """Notes the versions of updates; the first call waits until the gate is opened."""

    capacity = 4

    def __init__(self, overflow, seconds=0.0):
        self.overflow, self.seconds = overflow, seconds
        self.gate, self.is_inside, self.versions, self.stopped = threading.Event(), threading.Event(), [], False

    def on_training_step(self, progress, version, metrics):
        self.is_inside.set()
        assert self.gate.wait(10)
        time.sleep(self.seconds)
        self.versions.append(version)

    def on_stop(self, progress, status, summary):
        self.stopped = True


def updated(version):
    return Updated(Progress(), version, {})


def held_up(hooks, dispatcher):
    """Bring the observer's thread to a halt inside the first event, its queue empty."""
    dispatcher.publish(updated(0))
    assert hooks.is_inside.wait(5)


def overflowing(hooks, count):
    """Publish `count` events to an observer that is held up, then let it go on to the end; its counts."""
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        held_up(hooks, dispatcher)
        begun = time.perf_counter()
        for version in range(1, count + 1):
            dispatcher.publish(updated(version))
        waited = time.perf_counter() - begun
        hooks.gate.set()
        dispatcher.dismiss(STOPPED)
        return dispatcher.report()["Held"], waited


def test_drop_keeps_what_finds_room_and_loses_the_rest():
    hooks = Held("drop")
    report, waited = overflowing(hooks, 10)
    assert hooks.versions == [0, 1, 2, 3, 4], "one inside, four wait"
    assert (report["delivered"], report["dropped"]) == (6, 6)  # Stopped among them
    assert hooks.stopped
    assert report["blocked_seconds"] == 0
    assert waited < 1


def test_block_loses_nothing():
    hooks = Held("block", seconds=0.005)
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        hooks.gate.set()
        for version in range(50):
            dispatcher.publish(updated(version))
        dispatcher.dismiss(STOPPED)
        report = dispatcher.report()["Held"]
    assert hooks.versions == list(range(50))
    assert report["dropped"] == 0
    assert report["handover_seconds"] >= report["blocked_seconds"] > 0.1


def test_block_that_takes_nothing_is_not_waited_for_again():
    hooks = Held("block")
    with Dispatcher([], users=make_user_observers((), [hooks]), hold_seconds=0.1) as dispatcher:
        held_up(hooks, dispatcher)
        for version in range(1, 7):  # four wait, two are lost
            dispatcher.publish(updated(version))
        hooks.gate.set()
        dispatcher.dismiss(STOPPED)
        report = dispatcher.report()["Held"]
    assert (report["delivered"], report["dropped"], report["detached"]) == (6, 2, 0)
    assert report["first_error"] == "it held up the run for 0.1 s"
    assert 0.1 <= report["blocked_seconds"] < 1


def test_what_has_no_hook_is_not_even_queued():
    hooks = Held("drop")
    hooks.gate.set()
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        for _ in range(20):
            dispatcher.publish(EpisodesEnded(Progress(), (1.0,), (1,), (False,)))
            dispatcher.publish(Checkpointed(Progress(), "x", 0.0))
        dispatcher.publish(updated(1))
        dispatcher.dismiss(STOPPED)
        report = dispatcher.report()["Held"]
    assert (report["delivered"], report["dropped"]) == (2, 0)


def test_a_checkpoint_does_not_wait_for_users():
    hooks = Held("block")
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        held_up(hooks, dispatcher)
        begun = time.perf_counter()
        assert dispatcher.flush(5)
        assert time.perf_counter() - begun < 1
        hooks.gate.set()


def test_who_is_too_slow_at_the_end_loses_all_but_the_end():
    hooks = Held("drop", seconds=0.3)
    hooks.capacity = 100
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        hooks.gate.set()
        for version in range(50):
            dispatcher.publish(updated(version))
        dispatcher.dismiss(STOPPED, timeout=0.5)
        report = dispatcher.report()["Held"]
    assert hooks.stopped
    assert 1 <= len(hooks.versions) <= 5
    assert report["delivered"] + report["cut_off"] == 51
    assert report["dropped"] == 0, "there was room for all of them"


def test_one_that_takes_nothing_at_the_end_is_left():
    hooks = Held("block", seconds=3.0)
    hooks.capacity = 100
    with Dispatcher([], users=make_user_observers((), [hooks])) as dispatcher:
        hooks.gate.set()
        for version in range(10):
            dispatcher.publish(updated(version))
        begun = time.perf_counter()
        dispatcher.dismiss(STOPPED, timeout=0.2)
        took, report = time.perf_counter() - begun, dispatcher.report()["Held"]
    assert took < 2
    assert report["detached"] == 1
    assert (report["delivered"], report["cut_off"]) == (0, 11), "all of them, and the end"


@pytest.mark.parametrize("failure", [ValueError("no"), OSError(28, "No space left on device")])
def test_three_failures_in_a_row_detach_unless_the_system_refuses(failure):
    class Failing(Hooks):
        def on_training_step(self, progress, version, metrics):
            raise failure

    with Dispatcher([], users=make_user_observers((), [Failing()])) as dispatcher:
        for version in range(5):
            dispatcher.publish(updated(version))
        dispatcher.dismiss(STOPPED)
        report = dispatcher.report()["Failing"]
    is_system = isinstance(failure, OSError)
    assert (report["errors"], report["detached"]) == ((5, 0) if is_system else (3, 1))
    assert report["first_error"].startswith(f"Failing.on_training_step: {type(failure).__name__}: ")
    assert "test_user_observers_overflow.py, line " in report["first_error"]
