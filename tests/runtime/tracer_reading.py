"""Running the tracer recipe and reading its batches: every number is worked out from the seeds alone."""

from __future__ import annotations

from collections import Counter

import numpy as np
import tracer_parts

from rollmill.doctor.env_check import check_group
from rollmill.envs.config import EnvConfig
from rollmill.learners.learner import TrainConfig
from rollmill.models.config import ModelConfig
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.processes import ProcessRuntime
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.seeding import episode_seed, generator
from rollmill_envs.probe.tracer import Trace, decode, decode_reward, plan

SEED, GROUPS, SIZE, STEPS = 11, 4, 3, 7


def run(runtime_config, algorithm, recipe, steps):
    """Train with the tracer recipe; the batches in the order of the updates, and all events."""
    env = EnvConfig(id="probe/tracer", groups=GROUPS, group_size=SIZE)
    spaces = check_group(env)
    blueprint = Blueprint(
        SEED,
        env,
        ModelConfig(rescale_actions=False),
        algorithm,
        TrainConfig(steps=steps),
        runtime_config,
        recipe,
        *spaces,
    )
    graph = draw_graph(blueprint)
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
        self.last_count = 0  # of the state behind the last unroll
        self.next_episode()

    def next_episode(self):
        self.episode += 1
        self.seed = episode_seed(SEED, self.group, self.env, self.episode)
        self.length, self.truncates = plan(self.seed)
        self.step, self.action = 0, 0

    @property
    def trace(self):
        return Trace(self.seed, self.episode, self.step, self.action)


class Reader:
    """Compares unrolls, in the order in which they were consumed, with simulations of all environments."""

    def __init__(self):
        self.simulations = [[Simulation(g, k) for k in range(SIZE)] for g in range(GROUPS)]
        self.sequences = [0] * GROUPS  # unrolls of each group so far
        self.ends = Counter()

    def whose(self, batch, column):
        """The group whose unroll begins at a column: the one that stands where it begins."""
        seen = decode(batch["obs"][0, column].numpy())
        return next(g for g in range(GROUPS) if self.simulations[g][0].trace == seen)

    def read(self, batch, column, group, version):
        """Check the unroll in the columns from `column` on, made by `group` with weights of `version`."""
        noise = generator(SEED, "action", group, self.sequences[group]).random((STEPS, SIZE), np.float32)
        self.sequences[group] += 1
        ended = (batch["terminated"] | batch["truncated"]).nonzero().tolist()  # final_obs lists them in this order
        for k, env in enumerate(self.simulations[group]):
            b = column + k
            # the state with which an unroll begins is the one with which the last ended; a reset row ignores it
            assert batch["state"]["count"][b, 0] == (env.step or env.last_count)
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
                env.last_count = env.step  # after an episode that ended with the unroll it still counts that one
                if over:
                    row = ended.index([t, b])
                    assert decode(batch["final_obs"][row].numpy()) == env.trace, "the true final observation"
                    assert batch["final_state"]["count"][row, 0] == env.step, "the state after the last decision"
                    assert batch["episode_length"][t, b] == env.length
                    self.ends["truncated" if env.truncates else "terminated"] += 1
                    self.ends["at the border"] += t == STEPS - 1
                    self.ends["across a border"] += env.step > t + 1
                    env.next_episode()
            assert decode(batch["obs"][STEPS, b].numpy()) == env.trace, "what follows the unroll"
            assert bool(batch["reset"][STEPS, b]) == (env.step == 0)
            assert batch["last_state"]["count"][b, 0] == env.last_count
            assert batch["last_word"][b].tolist() == [group, GROUPS, env.step, env.last_count]

    def has_met_every_end(self):
        """Whether the unrolls showed all that may happen to an episode."""
        return all(self.ends[kind] for kind in ("terminated", "truncated", "at the border", "across a border"))
