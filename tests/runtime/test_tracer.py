"""The tracer environment and a tracer policy prove that every number stands in its place, on every runtime."""

from __future__ import annotations

import numpy as np
import pytest
import tracer_parts

from rollmill.algorithms.ppo import PPOConfig
from rollmill.algorithms.vpg import VPGConfig
from rollmill.envs.check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.envs.tracer import Trace, decode, decode_reward, plan
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.observe.events import Said, Updated
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.config import RuntimeConfig
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import sync
from rollmill.seeding import episode_seed, generator

SEED, GROUPS, SIZE, STEPS, UPDATES = 11, 4, 3, 7, 6

RUNTIMES = [
    pytest.param(RuntimeConfig(kind="serial"), id="serial"),
    pytest.param(RuntimeConfig(kind="serial", roles="central"), id="serial-central"),
    pytest.param(RuntimeConfig(kind="processes", workers=2), id="processes"),
    pytest.param(RuntimeConfig(kind="processes", workers=2, roles="central"), id="processes-central"),
    pytest.param(RuntimeConfig(kind="processes", workers=2, roles="split"), id="processes-split"),
]


def run(runtime_config, algorithm, recipe, steps):
    """Train with the tracer recipe; the batches in the order of the updates, and all events."""
    env = EnvConfig(id="probe/tracer", groups=GROUPS, group_size=SIZE)
    spaces = check_group(env)
    blueprint = Blueprint(
        SEED, env, ModelConfig(), algorithm, TrainConfig(steps=steps), runtime_config, recipe, *spaces
    )
    graph = sync(blueprint)
    runtime = (SerialRuntime if runtime_config.kind == "serial" else ProcessRuntime)(graph, runtime_config)
    tracer_parts.SEEN.clear()
    try:
        runtime.start()
        events = list(runtime.run())
    finally:
        runtime.close()
    return list(tracer_parts.SEEN), events


class Simulation:
    """What environment k of group g must show, worked out from its seeds alone."""

    def __init__(self, group, env):
        self.group, self.env, self.episode = group, env, -1
        self.next_episode()

    def next_episode(self):
        self.episode += 1
        self.seed = episode_seed(SEED, self.group, self.env, self.episode)
        self.length, self.truncates = plan(self.seed)
        self.step, self.action = 0, 0

    @property
    def trace(self):
        return Trace(self.seed, self.episode, self.step, self.action)


@pytest.mark.parametrize("config", RUNTIMES)
def test_every_number_of_an_unroll_stands_in_its_place(config):
    algorithm = PPOConfig(unroll=STEPS, minibatch=STEPS * SIZE * GROUPS)
    batches, events = run(config, algorithm, tracer_parts.UNROLLS, STEPS * SIZE * GROUPS * UPDATES)
    assert len(batches) == UPDATES
    simulations = [[Simulation(g, k) for k in range(SIZE)] for g in range(GROUPS)]
    ended_by = {"terminated": 0, "truncated": 0, "at the border": 0, "across a border": 0}
    for version, batch in enumerate(batches):
        ends = iter(range(10**6))
        final_rows = {}
        for t in range(STEPS):  # final_obs lists the ended rows in row-major order
            for b in range(GROUPS * SIZE):
                if batch["terminated"][t, b] or batch["truncated"][t, b]:
                    final_rows[t, b] = next(ends)
        for b in range(GROUPS * SIZE):
            g, k = divmod(b, SIZE)
            env = simulations[g][k]
            # the state with which an unroll begins is the one with which the last ended; a reset row ignores it
            began = env.step if env.step or version == 0 else batches[version - 1]["last_state"]["count"][b, 0]
            assert batch["state"]["count"][b, 0] == began
            noise = generator(SEED, "action", g, version).random((STEPS, SIZE), np.float32)
            for t in range(STEPS):
                assert decode(batch["obs"][t, b].numpy()) == env.trace
                assert bool(batch["reset"][t, b]) == (env.step == 0)
                assert batch["action"][t, b, 0] == version
                assert batch["value"][t, b] == env.step
                assert batch["log_prob"][t, b] == noise[t, k]
                assert batch["valid"][t, b]
                env.step, env.action = env.step + 1, version
                assert decode_reward(float(batch["reward"][t, b])) == (version, env.step)
                over = env.step == env.length
                assert bool(batch["terminated"][t, b]) == (over and not env.truncates)
                assert bool(batch["truncated"][t, b]) == (over and env.truncates)
                if over:
                    row = final_rows[t, b]
                    assert decode(batch["final_obs"][row].numpy()) == env.trace, "the true final observation"
                    assert batch["final_state"]["count"][row, 0] == env.step, "the state after the last decision"
                    assert batch["episode_length"][t, b] == env.length
                    ended_by["truncated" if env.truncates else "terminated"] += 1
                    ended_by["at the border"] += t == STEPS - 1
                    ended_by["across a border"] += env.step > t + 1
                    env.next_episode()
            assert decode(batch["obs"][STEPS, b].numpy()) == env.trace, "what follows the unroll"
            assert bool(batch["reset"][STEPS, b]) == (env.step == 0)
            last = env.step if env.step else simulations_last_count(batch, b)
            assert batch["last_state"]["count"][b, 0] == last
    assert all(ended_by.values()), f"the run must meet every kind of end: {ended_by}"
    assert [e.version for e in events if isinstance(e, Updated)] == list(range(1, UPDATES + 1))


def simulations_last_count(batch, b):
    """After an episode that ended with the unroll, the state still counts that episode."""
    return batch["episode_length"][STEPS - 1, b]


@pytest.mark.parametrize("config", RUNTIMES)
def test_whole_episodes_start_fresh_and_hold_every_step(config):
    algorithm = VPGConfig(episode_steps=9)  # the tracer's episodes last up to 12, so that some are cut
    batches, _ = run(config, algorithm, tracer_parts.EPISODES, 150)
    assert len(batches) >= 3
    cut = 0
    for version, batch in enumerate(batches):
        assert len(batch) == GROUPS
        for g, unroll in enumerate(batch):
            for k in range(SIZE):
                env = Simulation(g, k)
                for _ in range(version):  # exactly one episode per environment and update
                    env.next_episode()
                length = min(env.length, 9)
                assert unroll["valid"][:, k].tolist() == [t < length for t in range(len(unroll["valid"]))]
                assert bool(unroll["reset"][0, k]), "an episode begins with the unroll"
                for t in range(length):
                    assert decode(unroll["obs"][t, k].numpy()) == env.trace
                    assert unroll["action"][t, k, 0] == version
                    env.step, env.action = env.step + 1, version
                    assert decode_reward(float(unroll["reward"][t, k])) == (version, env.step)
                was_cut = env.length > 9
                cut += was_cut
                assert bool(unroll["truncated"][length - 1, k]) == (was_cut or env.truncates)
                assert unroll["episode_length"][length - 1, k] == length
    assert cut, "the cap must have been met"


def test_every_worker_makes_unrolls():
    config = RuntimeConfig(kind="processes", workers=4)
    algorithm = PPOConfig(unroll=STEPS, minibatch=STEPS * SIZE * GROUPS)
    batches, events = run(config, algorithm, tracer_parts.UNROLLS, STEPS * SIZE * GROUPS * 2)
    processes = {e.component: e.text.split("process ")[1].split(",")[0] for e in events if isinstance(e, Said)}
    assert sorted(processes) == ["actor.0", "actor.1", "actor.2", "actor.3"]
    assert len(set(processes.values())) == 4, "four workers are four processes"
    seeds = {decode(batches[0]["obs"][0, g * SIZE].numpy()).seed for g in range(GROUPS)}
    assert seeds == {episode_seed(SEED, g, 0, 0) for g in range(GROUPS)}, "each worker's group is in the batch"
