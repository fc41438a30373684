"""Observers see the very unrolls that the learner consumed, lent and never in the actors' way."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import tracer_parts

from rollmill import nested
from rollmill.algorithms.ppo import PPOConfig
from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.events import Progress, Stopped
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.observe.dispatcher import Dispatcher
from rollmill.observe.hooks import Hooks, Unroll
from rollmill.observe.stitching import Stitcher
from rollmill.observe.user_observers import make_user_observers
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.seeding import episode_seed
from rollmill.stores.store import LeasedUnroll
from rollmill.transport.ports import Lease
from rollmill.types import Ticket
from rollmill_envs.probe.tracer import decode, plan

SEED, GROUPS, SIZE, STEPS, UPDATES = 11, 4, 3, 7, 12
RUNTIMES = [
    pytest.param(RuntimeConfig(kind="serial"), id="serial"),
    pytest.param(RuntimeConfig(kind="processes", workers=2), id="processes", marks=pytest.mark.slow),
]


class Copyist(Hooks):
    """Copies every unroll, taking its time."""

    overflow = "block"

    def __init__(self, seconds=0.0):
        self.seconds, self.unrolls, self.thread = seconds, [], None

    def on_trajectory(self, progress, unroll):
        time.sleep(self.seconds)
        copies = {name: nested.map_leaves(np.copy, tree) for name, tree in unroll.arrays.items()}
        self.unrolls.append(Unroll(unroll.actor, unroll.sequence, unroll.version, unroll.update, copies))
        self.thread = threading.current_thread()


def run(config, observers):
    """Train with the tracer recipe; the batches as the update rule saw them, and the observers' counts."""
    env = EnvConfig(id="probe/tracer", groups=GROUPS, group_size=SIZE)
    algorithm = PPOConfig(unroll=STEPS, minibatch=STEPS * SIZE * GROUPS)
    train = TrainConfig(steps=STEPS * SIZE * GROUPS * UPDATES)
    spaces = check_group(env)
    parts = (SEED, env, ModelConfig(rescale_actions=False), algorithm, train, config, tracer_parts.UNROLLS, *spaces)
    blueprint = Blueprint(*parts, spare_slots=2)
    runtime = (SerialRuntime if config.kind == "serial" else ProcessRuntime)(draw_graph(blueprint), config)
    users = make_user_observers((), observers)
    tracer_parts.SEEN.clear()
    with Dispatcher([], users=users, spare_slots=2) as dispatcher:
        try:
            runtime.start()
            runtime.learner.sequencer.tap = dispatcher.tap
            for event in runtime.run():
                dispatcher.publish(event)
            dispatcher.dismiss(Stopped(Progress(), "done", ""))
        finally:
            runtime.close()
        return list(tracer_parts.SEEN), dispatcher.report()


@pytest.mark.parametrize("config", RUNTIMES)
def test_two_observers_see_what_the_learner_consumed(config):
    quick, slow = Copyist(), Copyist(0.01)
    batches, report = run(config, [quick, slow])
    assert len(batches) == UPDATES
    assert report["Copyist"]["dropped"] == report["Copyist-2"]["dropped"] == 0
    for observer in (quick, slow):
        assert observer.thread is not threading.main_thread()
        tickets = [(unroll.actor, unroll.sequence, unroll.version, unroll.update) for unroll in observer.unrolls]
        assert tickets == [(actor, n, n, n + 1) for n in range(UPDATES) for actor in range(GROUPS)]
        for unroll in observer.unrolls:
            batch = batches[unroll.update - 1]
            columns = slice(unroll.actor * SIZE, (unroll.actor + 1) * SIZE)
            for field in ("obs", "reset", "action", "reward", "terminated", "truncated", "value", "log_prob"):
                assert np.array_equal(unroll.arrays[field], batch[field][:, columns].numpy()), field
            assert unroll.arrays["ticket"].tolist() == [unroll.actor, unroll.sequence, unroll.version]


@pytest.mark.parametrize("config", RUNTIMES)
def test_whole_episodes_are_stitched_over_the_borders_of_unrolls(config):
    copyist = Copyist()
    run(config, [copyist])
    stitcher = Stitcher()
    episodes = [episode for unroll in copyist.unrolls for episode in stitcher.add(unroll)]
    ended = sum(int((u.arrays["terminated"] | u.arrays["truncated"]).sum()) for u in copyist.unrolls)
    assert len(episodes) == ended > 50
    assert stitcher.torn == 0
    numbers = dict.fromkeys(((g, k) for g in range(GROUPS) for k in range(SIZE)), 0)
    crossed = 0
    for episode in episodes:
        key = episode.actor, episode.environment
        seed = episode_seed(SEED, *key, numbers[key])
        length, truncates = plan(seed)
        assert len(episode.reward) == len(episode.action) == len(episode.version) == length == len(episode.obs) - 1
        assert episode.truncated == truncates
        traces = [decode(row) for row in episode.obs]
        assert [(trace.seed, trace.episode, trace.step) for trace in traces] == [
            (seed, numbers[key], step) for step in range(length + 1)
        ], "from the first observation to the true last one"
        assert episode.action[:, 0].tolist() == episode.version.tolist(), "the tracer acts with its version"
        crossed += len(set(episode.version.tolist())) > 1
        numbers[key] += 1
    assert crossed > 10


def test_an_episode_with_a_gap_is_left_out():
    copyist = Copyist()
    run(RuntimeConfig(kind="serial"), [copyist])
    stitcher = Stitcher()
    kept = [unroll for unroll in copyist.unrolls if (unroll.actor, unroll.sequence) != (1, 4)]
    episodes = [episode for unroll in kept for episode in stitcher.add(unroll)]
    assert stitcher.torn > 0
    for episode in episodes:
        steps = [decode(row).step for row in episode.obs]
        assert steps == list(range(len(steps))), "no step is missing"
    assert Stitcher(longest=1).add(copyist.unrolls[0]) != [], "what ends within an unroll is never too long"


def test_an_episode_that_is_too_long_is_given_up():
    copyist = Copyist()
    run(RuntimeConfig(kind="serial"), [copyist])
    stitcher = Stitcher(longest=3)
    episodes = [episode for unroll in copyist.unrolls for episode in stitcher.add(unroll)]
    assert stitcher.torn > 0
    assert all(len(set(episode.version.tolist())) <= 2 for episode in episodes)


@pytest.mark.parametrize("config", RUNTIMES)
def test_a_slow_observer_loses_unrolls_and_keeps_no_actor_waiting(config):
    slow = Copyist(0.05)
    slow.overflow = "drop"
    batches, report = run(config, [slow])
    counts = report["Copyist"]
    assert len(batches) == UPDATES
    assert counts["dropped"] > 0
    assert counts["delivered"] + counts["dropped"] == UPDATES * GROUPS
    assert counts["blocked_seconds"] == 0
    for unroll in slow.unrolls:  # what it did get is whole, though training went on meanwhile
        batch = batches[unroll.update - 1]
        columns = slice(unroll.actor * SIZE, (unroll.actor + 1) * SIZE)
        assert np.array_equal(unroll.arrays["obs"], batch["obs"][:, columns].numpy())


class Slots:
    """Trajectories whose slots are counted."""

    def __init__(self):
        self.released = []

    def offer(self, tap, actor, number, fraction=0.5):
        progress = Progress(env_steps=int(fraction * 100), target_steps=100)
        arrays = {"reward": np.full((2, 1), float(number))}
        release = lambda: self.released.append((actor, number))  # noqa: E731
        return tap.offer(LeasedUnroll(Ticket(actor, number, number), 0, Lease(arrays, number)), release, progress)


class Gate(Hooks):
    def __init__(self, after=0.0):
        self.trajectories_after, self.gate, self.seen = after, threading.Event(), []

    def on_trajectory(self, progress, unroll):
        assert self.gate.wait(10)
        self.seen.append((unroll.actor, unroll.sequence, float(unroll.arrays["reward"][0, 0])))


def until(condition):
    deadline = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_no_more_slots_of_an_actor_are_lent_than_are_spare_and_each_is_given_back_once():
    slots, held, quick = Slots(), Gate(), Gate()
    quick.gate.set()
    with Dispatcher([], users=make_user_observers((), [held, quick]), spare_slots=2) as dispatcher:
        tap = dispatcher.tap
        assert [slots.offer(tap, 0, number) for number in range(4)] == [True, True, False, False]
        assert slots.offer(tap, 1, 0), "another actor's slots are its own"
        until(lambda: len(quick.seen) == 3)
        assert not slots.offer(tap, 0, 4), "the slow one still reads what the quick one has read"
        assert slots.released == []
        held.gate.set()
        until(lambda: len(held.seen) == 3)
        until(lambda: slots.offer(tap, 0, 5))
        dispatcher.dismiss(Stopped(Progress(), "done", ""))
        report = dispatcher.report()
    assert held.seen == quick.seen == [(0, 0, 0.0), (0, 1, 1.0), (1, 0, 0.0), (0, 5, 5.0)]
    assert sorted(slots.released) == [(0, 0), (0, 1), (1, 0)], "the last one went with the run"
    assert report["Gate"]["dropped"] >= 3


def test_a_block_observer_is_waited_for_until_a_slot_is_read():
    slots, held = Slots(), Gate()
    held.overflow = "block"
    with Dispatcher([], users=make_user_observers((), [held]), spare_slots=1) as dispatcher:
        assert slots.offer(dispatcher.tap, 0, 0)
        threading.Timer(0.2, held.gate.set).start()
        assert all(slots.offer(dispatcher.tap, 0, number) for number in range(1, 20))
        dispatcher.dismiss(Stopped(Progress(), "done", ""))
        report = dispatcher.report()["Gate"]
    assert (report["delivered"], report["dropped"]) == (20, 0)
    assert report["handover_seconds"] >= report["blocked_seconds"] > 0.1


def test_a_block_observer_that_keeps_its_slots_holds_up_the_run_once():
    slots, held = Slots(), Gate()
    held.overflow = "block"
    with Dispatcher([], users=make_user_observers((), [held]), spare_slots=1, hold_seconds=0.2) as dispatcher:
        begun = time.perf_counter()
        assert [slots.offer(dispatcher.tap, 0, number) for number in range(4)] == [True, False, False, False]
        assert 0.2 <= time.perf_counter() - begun < 1
        held.gate.set()
        until(lambda: slots.offer(dispatcher.tap, 0, 4))
        dispatcher.dismiss(Stopped(Progress(), "done", ""))
    assert held.seen == [(0, 0, 0.0), (0, 4, 4.0)]


def test_unrolls_are_handed_over_from_the_fraction_on_that_was_asked_for():
    slots, late = Slots(), Gate(after=0.9)
    late.gate.set()
    with Dispatcher([], users=make_user_observers((), [late]), spare_slots=2) as dispatcher:
        assert not slots.offer(dispatcher.tap, 0, 0, fraction=0.89)
        assert slots.offer(dispatcher.tap, 0, 1, fraction=0.9)
        dispatcher.dismiss(Stopped(Progress(), "done", ""))
        assert dispatcher.report()["Gate"]["dropped"] == 0, "what was not wanted is not lost"
    assert late.seen == [(0, 1, 1.0)]


def test_without_observers_of_trajectories_there_is_no_tap():
    class Blind(Hooks):
        def on_training_step(self, progress, version, metrics):
            pass

    assert Dispatcher([], users=make_user_observers((), [Blind()])).tap is None


def test_a_detached_observer_gives_its_slots_back():
    class Raiser(Gate):
        def on_trajectory(self, progress, unroll):
            self.seen.append(unroll.sequence)
            assert len(self.seen) < 3 or self.gate.wait(10)
            raise ValueError

    slots, raiser, other = Slots(), Raiser(), Gate()
    other.gate.set()
    users = make_user_observers((), [raiser, other])
    with Dispatcher([], users=users, spare_slots=8) as dispatcher:
        for number in range(3):
            assert slots.offer(dispatcher.tap, 0, number)
        until(lambda: len(raiser.seen) == 3)
        for number in range(3, 6):  # these wait in its queue when it fails for the third time
            assert slots.offer(dispatcher.tap, 0, number)
        raiser.gate.set()
        until(lambda: dispatcher.report()["Raiser"]["detached"])
        until(lambda: slots.offer(dispatcher.tap, 0, 9) and len(slots.released) >= 6)
        dispatcher.dismiss(Stopped(Progress(), "done", ""))
    assert len(slots.released) == len(set(slots.released))
