"""The tracer environment and a tracer policy prove that every number is in its place, on every runtime."""

from __future__ import annotations

import pytest
import tracer_parts
from tracer_reading import GROUPS, SEED, SIZE, STEPS, Reader, Simulation, run

from rollmill.algorithms.ppo import PPOConfig
from rollmill.algorithms.vpg import VPGConfig
from rollmill.events import Said, Updated
from rollmill.runtime.config import RuntimeConfig
from rollmill.seeding import episode_seed
from rollmill_envs.probe.tracer import decode, decode_reward

UPDATES = 6

RUNTIMES = [
    pytest.param(RuntimeConfig(kind="serial"), id="serial"),
    pytest.param(RuntimeConfig(kind="serial", roles="central"), id="serial-central"),
    pytest.param(RuntimeConfig(kind="processes", workers=2), id="processes"),
    pytest.param(RuntimeConfig(kind="processes", workers=2, roles="central"), id="processes-central"),
    pytest.param(RuntimeConfig(kind="processes", workers=2, roles="split"), id="processes-split"),
]


@pytest.mark.parametrize("config", RUNTIMES)
def test_every_number_of_an_unroll_is_in_its_place(config):
    algorithm = PPOConfig(unroll=STEPS, minibatch=STEPS * SIZE * GROUPS)
    batches, events = run(config, algorithm, tracer_parts.UNROLLS, STEPS * SIZE * GROUPS * UPDATES)
    assert len(batches) == UPDATES
    reader = Reader()
    for version, batch in enumerate(batches):
        for group in range(GROUPS):  # ordered by ticket
            reader.read(batch, group * SIZE, group, version)
    assert reader.has_met_every_end(), reader.ends
    assert [e.version for e in events if isinstance(e, Updated)] == list(range(1, UPDATES + 1))


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
