"""The learner carries replay: a stand-in recipe on every runtime, resumed from a checkpoint, and retraced."""

from __future__ import annotations

from dataclasses import replace

import pytest
import replay_parts

from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.events import Updated
from rollmill.flight.log import FlightWriter
from rollmill.flight.records import Consumed, UpdateEntry, read_flight
from rollmill.learners.journal import resume_points_from
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.models.weights import parameters_sha256
from rollmill.persist.checkpoints import CheckpointConfig, Checkpoints
from rollmill.retrace.comparison import Checker, Diverged, RetraceHooks, ScriptedLedger
from rollmill.retrace.script import Script
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph

GROUPS, SIZE, UNROLL = 2, 2, 4
STEPS = 12 * GROUPS * SIZE * UNROLL  # 24 inserts, so 40 updates after a warm-up of 4
RUNTIMES = {
    "serial": {"kind": "serial"},
    "processes-1": {"kind": "processes", "workers": 1},
    "processes-2": {"kind": "processes", "workers": 2},
    "central": {"kind": "processes", "workers": 2, "roles": "central"},
    "split": {"kind": "processes", "workers": 2, "roles": "split"},
}


def draw(runtime, **algorithm):
    env = EnvConfig(id="CartPole-v1", groups=GROUPS, group_size=SIZE)
    config = replay_parts.StandInConfig(unroll=UNROLL, **algorithm)
    model, train = ModelConfig(hidden=(8,)), TrainConfig(steps=STEPS)
    return Blueprint(7, env, model, config, train, RuntimeConfig(**runtime), replay_parts.RECIPE, *check_group(env))


def make_runtime(blueprint):
    graph = draw_graph(blueprint)
    return (SerialRuntime if blueprint.runtime.kind == "serial" else ProcessRuntime)(graph, blueprint.runtime)


class Outcome:
    def __init__(self, learner):
        self.sha256 = parameters_sha256(learner.trainer.weights())
        self.updates, self.version = learner.trainer.updates, learner.trainer.version
        self.env_steps, self.inserts = learner.progress().env_steps, learner.store.inserts


def train(blueprint, content=None, until=None, flight=None, folder=None):
    """Train to the end, or up to an update; what came of it, and what a checkpoint holds (written and read again)."""
    runtime = make_runtime(blueprint)
    try:
        runtime.start({} if content is None else resume_points_from(content.arrays["actors"], blueprint.problem))
        learner = runtime.learner
        if content is not None:
            learner.restore(content)
        if flight is not None:
            flight.pending = tuple(Consumed.of(values) for values in (content.state["pending"] if content else ()))
            flight.begin(learner.trainer.updates)
            learner.sequencer.flight = flight
        for event in runtime.run():
            if isinstance(event, Updated) and event.progress.updates == until:
                break
        if folder is not None:
            checkpoints = Checkpoints(folder, CheckpointConfig())
            checkpoints.write(learner.capture())
            content = checkpoints.newest().content
        return Outcome(learner), content
    finally:
        runtime.close()
        if flight is not None:
            flight.close()


@pytest.fixture(scope="module")
def expected():
    return train(draw(RUNTIMES["serial"]))[0]


def test_inserts_updates_and_versions_are_three_numbers(expected):
    assert expected.env_steps == STEPS
    assert expected.inserts == 24
    assert expected.updates == (24 - 4) * 2, "none while it warmed up, two per insert after that, none left over"
    assert expected.version == 40 // 3


@pytest.mark.parametrize("runtime", list(RUNTIMES)[1:])
def test_every_runtime_gives_the_same_parameters(runtime, expected):
    assert vars(train(draw(RUNTIMES[runtime]))[0]) == vars(expected)


@pytest.mark.parametrize("runtime", ["serial", pytest.param("processes-2", marks=pytest.mark.slow)])
@pytest.mark.parametrize("until", [1, 6, 7])  # in the middle of a round's updates, and with target and published apart
def test_a_resumed_run_equals_one_that_was_never_stopped(runtime, until, expected, tmp_path):
    _, content = train(draw(RUNTIMES["serial"]), until=until, folder=tmp_path)
    assert {"store", "update_rule"} <= set(content.arrays), "the ring and the target network"
    assert vars(train(draw(RUNTIMES[runtime]), content)[0]) == vars(expected)


def retrace(blueprint, log):
    """Run again from the log alone."""
    updates = tuple(entry for entry in log.lineage() if isinstance(entry, UpdateEntry))
    script = Script(updates, None, {}, {}, {}, None)
    runtime = make_runtime(replace(blueprint, runtime=RuntimeConfig(), versions=script.most_lag(len(updates)) + 2))
    try:
        runtime.start()
        learner = runtime.learner
        sequencer, trainer = learner.sequencer, learner.trainer
        sequencer.flight = Checker(script, blueprint.fields, RetraceHooks())
        sequencer.ledger = ScriptedLedger(
            script, len(updates), sequencer.tickets, lambda *_: None, lambda: trainer.updates, RetraceHooks()
        )
        list(runtime.run())
        return Outcome(learner)
    finally:
        runtime.close()


@pytest.mark.parametrize("runtime", ["serial", "processes-2"])
def test_an_asynchronous_run_is_retraced_also_across_a_resume(runtime, tmp_path):
    blueprint = draw(RUNTIMES[runtime], is_ordered=False)
    first = FlightWriter(tmp_path / "flight.log", 10, blueprint.fields)
    _, content = train(blueprint, until=5, flight=first, folder=tmp_path / "checkpoints")
    second = FlightWriter(tmp_path / "flight.log", 10, blueprint.fields)
    run, _ = train(blueprint, content, flight=second)
    log = read_flight(tmp_path / "flight.log")
    assert vars(retrace(blueprint, log)) == vars(run)

    with pytest.raises(Diverged, match="update 1"):
        retrace(blueprint, replace(log, entries=tuple(map(without_an_unroll, log.entries))))


def without_an_unroll(entry):
    return replace(entry, unrolls=entry.unrolls[1:]) if isinstance(entry, UpdateEntry) and entry.update == 1 else entry


def test_unrolls_inserted_since_the_last_update_are_in_the_checkpoint_and_in_the_log(tmp_path):
    """A run that is stopped while it warms up: nothing of it is lost or played twice."""
    blueprint = draw(RUNTIMES["serial"], is_ordered=False)
    whole = train(blueprint, flight=FlightWriter(tmp_path / "whole.log", 10, blueprint.fields))[0]
    runtime, first = make_runtime(blueprint), FlightWriter(tmp_path / "flight.log", 10, blueprint.fields)
    runtime.start()
    first.begin(0)
    runtime.learner.sequencer.flight = first
    while runtime.learner.store.inserts < 3:
        for _, component in runtime._components:
            component.work()
    checkpoints = Checkpoints(tmp_path / "checkpoints", CheckpointConfig())
    checkpoints.write(runtime.learner.capture())
    runtime.close()
    first.close()
    content = checkpoints.newest().content
    assert len(content.state["pending"]) == content.state["store"]["inserts"] >= 3
    second = FlightWriter(tmp_path / "flight.log", 10, blueprint.fields)
    run, _ = train(blueprint, content, flight=second)
    assert (run.env_steps, run.inserts, run.updates) == (whole.env_steps, whole.inserts, whole.updates)
    assert vars(retrace(blueprint, read_flight(tmp_path / "flight.log"))) == vars(run)
