from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from rollmill.events import Event, Progress, Said, Stopped
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.files import episodes_observer, jsonl_observer
from rollmill.observe.observer import Overflow


def said(number: int) -> Said:
    return Said(Progress(), "test", str(number))


STOPPED = Stopped(Progress(), "done", "")


class Notebook:
    """Notes what it receives; `gate` holds it inside `receive` until it is opened."""

    def __init__(self, name: str = "notebook", overflow: Overflow = "block", is_held: bool = False) -> None:
        self.name = name
        self.overflow: Overflow = overflow
        self.received: list[Event] = []
        self.gate = threading.Event()
        self.is_inside = threading.Event()
        self.closings: list[str] = []
        if not is_held:
            self.gate.set()

    def receive(self, event: Event) -> None:
        self.is_inside.set()
        assert self.gate.wait(10)
        self.received.append(event)

    def close(self) -> None:
        self.closings.append(self.name)


class Failing(Notebook):
    def __init__(self, bad: set[int], error: Exception | None = None) -> None:
        super().__init__("failing")
        self.bad = bad
        self.error = error or OSError(28, "No space left on device")
        self.calls = 0

    def receive(self, event: Event) -> None:
        self.calls += 1
        if self.calls in self.bad:
            raise self.error
        super().receive(event)


def held_up(observer: Notebook, dispatcher: Dispatcher) -> None:
    """Bring the observer's thread to a halt inside the first event, its queue empty."""
    dispatcher.publish(said(0))
    assert observer.is_inside.wait(5)


def until(condition) -> None:
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_every_event_arrives_in_order_and_close_drains_the_queue() -> None:
    observer = Notebook()
    with Dispatcher([observer]) as dispatcher:
        events = [said(number) for number in range(5000)]  # five times the capacity
        for event in events:
            dispatcher.publish(event)
    assert observer.received == events
    assert observer.closings == ["notebook"]
    assert dispatcher.report()["notebook"]["delivered"] == 5000
    assert dispatcher.report()["notebook"]["dropped"] == 0


def test_a_drop_observer_loses_the_overflow_but_never_stopped_and_never_waits() -> None:
    observer = Notebook(overflow="drop", is_held=True)
    dispatcher = Dispatcher([observer], capacity=4)
    dispatcher.start()
    held_up(observer, dispatcher)
    begun = time.perf_counter()
    for number in range(1, 11):  # 4 find room, 6 don't
        dispatcher.publish(said(number))
    dispatcher.publish(STOPPED)
    assert time.perf_counter() - begun < 1
    observer.gate.set()
    dispatcher.close()
    assert observer.received == [*map(said, range(5)), STOPPED]
    report = dispatcher.report()["notebook"]
    expected = {"delivered": 6, "dropped": 6, "errors": 0, "blocked_seconds": 0.0, "detached": 0}
    assert {key: report[key] for key in expected} == expected


def test_a_block_observer_makes_the_publisher_wait_and_loses_nothing() -> None:
    observer = Notebook(is_held=True)
    dispatcher = Dispatcher([observer], capacity=4)
    dispatcher.start()
    held_up(observer, dispatcher)
    threading.Timer(0.3, observer.gate.set).start()
    for number in range(1, 11):
        dispatcher.publish(said(number))
    dispatcher.close()
    assert observer.received == list(map(said, range(11)))
    report = dispatcher.report()["notebook"]
    assert report["dropped"] == 0
    assert 0.2 < report["blocked_seconds"] < 3


def test_a_slow_observer_that_may_drop_does_not_hold_up_one_that_may_not() -> None:
    slow, exact = Notebook("slow", "drop", is_held=True), Notebook("exact")
    dispatcher = Dispatcher([slow, exact], capacity=4)
    dispatcher.start()
    held_up(slow, dispatcher)
    for number in range(1, 101):
        dispatcher.publish(said(number))
    dispatcher.publish(STOPPED)
    slow.gate.set()
    dispatcher.close()
    assert len(exact.received) == 102
    assert len(slow.received) < 102


def test_a_block_observer_that_hangs_holds_up_the_run_once_and_then_loses_events() -> None:
    observer, told = Notebook(is_held=True), []
    dispatcher = Dispatcher([observer], say=told.append, capacity=2, hold_seconds=0.2)
    dispatcher.start()
    held_up(observer, dispatcher)
    begun = time.perf_counter()
    for number in range(1, 21):
        dispatcher.publish(said(number))
    assert 0.2 <= time.perf_counter() - begun < 2  # waited once, not twenty times
    hold = "it held up the run for 0.2 s"
    assert told == [f"observer notebook: {hold}; from now on it loses events when it is too slow"]
    report = dispatcher.report()["notebook"]
    assert (report["dropped"], report["detached"], report["first_error"]) == (18, 0, hold)  # two wait
    observer.gate.set()
    until(lambda: len(observer.received) == 3)
    dispatcher.publish(STOPPED)
    dispatcher.close()
    assert observer.received == [said(0), said(1), said(2), STOPPED]
    assert observer.closings == ["notebook"]


def test_an_observer_that_is_still_busy_at_the_end_is_not_closed() -> None:
    observer = Notebook(is_held=True)
    dispatcher = Dispatcher([observer])
    dispatcher.start()
    held_up(observer, dispatcher)
    dispatcher.close(timeout=0.2)
    assert observer.closings == []  # it is still inside receive
    observer.gate.set()


def test_a_block_observer_that_takes_one_event_after_the_other_is_waited_for() -> None:
    class Slow(Notebook):
        def receive(self, event: Event) -> None:
            time.sleep(0.05)
            super().receive(event)

    observer = Slow()
    with Dispatcher([observer], say=[].append, capacity=10, hold_seconds=0.3) as dispatcher:
        for number in range(30):  # ten events take 0.5 s, but the first of them makes room
            dispatcher.publish(said(number))
    report = dispatcher.report()["notebook"]
    assert (report["delivered"], report["dropped"]) == (30, 0)
    assert report["handover_seconds"] >= report["blocked_seconds"] > 0.5


def test_a_failure_is_counted_and_said_once_and_the_others_go_on() -> None:
    failing, healthy, told = Failing({2, 4, 5}), Notebook(), []
    with Dispatcher([failing, healthy], say=told.append) as dispatcher:
        for number in range(10):
            dispatcher.publish(said(number))
    assert len(failing.received) == 7
    assert len(healthy.received) == 10
    assert len(told) == 1
    assert "failing" in told[0]
    assert "No space left" in told[0]
    assert dispatcher.report()["failing"]["errors"] == 3
    assert dispatcher.report()["failing"]["detached"] == 0


def test_three_failures_in_a_row_detach_an_observer() -> None:
    failing, told = Failing(set(range(3, 100)), ValueError("a bug")), []
    with Dispatcher([failing], say=told.append) as dispatcher:
        for number in range(10):
            dispatcher.publish(said(number))
    assert failing.calls == 5  # two good, three bad, then it is left alone
    assert failing.closings == ["failing"]
    report = dispatcher.report()["failing"]
    assert (report["delivered"], report["errors"], report["dropped"], report["detached"]) == (2, 3, 5, 1)
    assert told[1:] == ["observer failing is detached after 3 failures in a row"]


def test_a_full_disk_detaches_nobody_and_what_was_lost_is_told() -> None:
    failing, healthy, told = Failing(set(range(3, 9))), Notebook(), []
    with Dispatcher([failing, healthy], say=told.append) as dispatcher:
        for number in range(10):
            dispatcher.publish(said(number))
        assert dispatcher.flush(10)
        # Calls 3 to 8 fail: six events; the ninth and tenth find room again.
        assert failing.received == [said(0), said(1), said(8), said(9)]
        assert dispatcher.losses() == {"failing": "[Errno 28] No space left on device (6 events lost)"}
    assert len(told) == 1
    assert dispatcher.report()["failing"]["detached"] == 0


def test_the_loss_of_a_detached_observer_counts_what_it_never_saw() -> None:
    failing = Failing(set(range(3, 100)), ValueError("a\nbug"))
    with Dispatcher([failing], say=[].append) as dispatcher:
        for number in range(10):
            dispatcher.publish(said(number))
        assert dispatcher.flush(10)
        assert dispatcher.losses() == {"failing": "ValueError: a bug (8 events lost)"}


def test_flush_waits_for_what_was_published_and_not_for_the_next_batch() -> None:
    exact, lazy = Notebook("exact"), Notebook("lazy", "drop", is_held=True)
    dispatcher = Dispatcher([exact, lazy])
    dispatcher.start()
    begun = time.perf_counter()
    for number in range(20):
        dispatcher.publish(said(number))
        assert dispatcher.flush(10)
        assert len(exact.received) == number + 1
    # Batches come every 0.1 s: twenty of them would take 2 s.
    assert time.perf_counter() - begun < 1
    lazy.gate.set()
    dispatcher.close()


def test_flush_gives_up_on_an_observer_that_hangs() -> None:
    observer = Notebook(is_held=True)
    dispatcher = Dispatcher([observer])
    dispatcher.start()
    held_up(observer, dispatcher)
    begun = time.perf_counter()
    assert not dispatcher.flush(0.2)
    assert 0.2 <= time.perf_counter() - begun < 2
    observer.gate.set()
    assert dispatcher.flush(10)
    dispatcher.close()


def test_flush_does_not_wait_for_an_observer_that_held_up_the_run_for_too_long() -> None:
    observer = Notebook(is_held=True)
    dispatcher = Dispatcher([observer], say=[].append, capacity=2, hold_seconds=0.1)
    dispatcher.start()
    held_up(observer, dispatcher)
    for number in range(5):
        dispatcher.publish(said(number))
    assert dispatcher.flush(0)
    assert dispatcher.losses() == {"notebook": "it held up the run for 0.1 s (3 events lost)"}
    observer.gate.set()
    dispatcher.close()


def test_a_failure_reaches_the_other_observers_as_an_event() -> None:
    failing, healthy = Failing({1}), Notebook()
    dispatcher = Dispatcher([failing, healthy])
    dispatcher.start()
    dispatcher.publish(said(0))
    until(lambda: len(healthy.received) == 2)
    dispatcher.close()
    warning = healthy.received[1]
    assert isinstance(warning, Said)
    assert (warning.component, warning.level) == ("observe", "warning")


def test_observers_are_closed_in_their_order_after_all_have_drained() -> None:
    order: list[str] = []
    observers = [Notebook(name) for name in "abc"]
    for observer in observers:
        observer.closings = order
    with Dispatcher(observers) as dispatcher:
        dispatcher.publish(STOPPED)
    dispatcher.close()  # a second time does nothing
    assert order == ["a", "b", "c"]


def test_publishing_costs_microseconds_even_while_an_observer_is_flooded() -> None:
    observer = Notebook(overflow="drop", is_held=True)
    dispatcher = Dispatcher([observer])
    dispatcher.start()
    held_up(observer, dispatcher)
    event = said(1)
    costs = []
    for _ in range(5000):
        begun = time.perf_counter()
        dispatcher.publish(event)
        costs.append(time.perf_counter() - begun)
    observer.gate.set()
    dispatcher.close()
    assert sorted(costs)[2500] < 100e-6  # about 2 µs on a quiet machine
    assert dispatcher.report()["notebook"]["dropped"] == 5000 - 1024


def test_equal_names_are_refused() -> None:
    with pytest.raises(ValueError, match="different names"):
        Dispatcher([Notebook(), Notebook()])


def test_a_removed_run_folder_is_said_once_per_file_and_training_goes_on(tmp_path: Path, run_events) -> None:
    run, told = tmp_path / "run", []
    run.mkdir()
    dispatcher = Dispatcher([jsonl_observer(run, 0), episodes_observer(run)], say=told.append)
    dispatcher.start()
    first, *rest = run_events(updates=20)
    dispatcher.publish(first)
    for event in rest[:2]:
        dispatcher.publish(event)
    assert dispatcher.flush(5.0)
    for path in run.iterdir():
        path.unlink()
    run.rmdir()
    for event in rest[2:]:
        dispatcher.publish(event)
    dispatcher.close()
    assert sorted(text.partition(",")[0] for text in told) == ["observer episodes failed", "observer jsonl failed"]
    assert all("FileNotFoundError" in text for text in told)
    assert dispatcher.report()["episodes"]["errors"] == 19
    assert not run.exists()


def test_a_full_disk_is_said_once_and_training_goes_on(tmp_path: Path, run_events) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    told: list[str] = []
    healthy = Notebook()
    with Dispatcher([jsonl_observer(tmp_path, 0), healthy], say=told.append) as dispatcher:
        for event in run_events():
            dispatcher.publish(event)
    assert len(told) == 1
    assert "No space left" in told[0]
    assert dispatcher.report()["jsonl"]["errors"] == 10  # one per row
    assert len(healthy.received) == 22
