"""The four roles alone, in pairs and together: environment, inference, collector, learner."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from rollmill import nested
from rollmill.algorithms.policy import StochasticPolicy
from rollmill.doctor.preflight import draw_blueprint
from rollmill.envs.make import make_group
from rollmill.seeding import episode_seed, generator
from rollmill.settings import load_config
from rollmill.stores.store import LeasedUnroll
from rollmill.transport.local import LocalCell, LocalChannel, LocalPorts
from rollmill.transport.ports import Lease
from rollmill.types import TICKET, ArraySpec, Ticket

STEPS, SIZE = 5, 2


@pytest.fixture
def plan():
    values = {
        "seed": 3,
        "env": {"id": "CartPole-v1", "groups": 1, "group_size": SIZE},
        "algorithm": {"name": "ppo", "unroll": STEPS, "minibatch": STEPS * SIZE},
        "train": {"steps": 100},
    }
    return draw_blueprint(load_config(values).config)


class Bench:
    """The links of one group, with every end in reach of the test."""

    def __init__(self, plan):
        self.scenes = LocalChannel(plan.fields.scene_spec(SIZE), 1, 2, 4)
        self.decisions = LocalChannel(plan.fields.decision_spec(SIZE), 1, 2, 4)
        self.tickets = LocalChannel(TICKET, 1, 1, 1)
        self.unrolls = LocalChannel(plan.fields.unroll_spec(STEPS, SIZE), 1, 1, 1)
        network = plan.network("cpu")
        from rollmill.models.weights import weights_of, weights_spec

        self.weights = LocalCell(weights_spec(network.state_dict()), 2)
        self.weights.write(0, weights_of(network))
        self.plan = plan

    def environment(self):
        ports = LocalPorts({"scenes": self.scenes.sender(0)}, {"decisions": self.decisions.receiver(0)})
        return self.plan.build_environment(0, "environment.0", ports)

    def inference(self):
        receivers = {"scenes.0": self.scenes.receiver(0), "tickets.0": self.tickets.receiver(0)}
        ports = LocalPorts({"decisions.0": self.decisions.sender(0)}, receivers, readers={"weights": self.weights})
        return self.plan.build_inference("inference", ports)

    def collector(self):
        receivers = {"scenes": self.scenes.receiver(1), "decisions": self.decisions.receiver(1)}
        return self.plan.build_collector("collector.0", LocalPorts({"unrolls": self.unrolls.sender(0)}, receivers))

    def learner_ports(self):
        senders, receivers = {"tickets.0": self.tickets.sender(0)}, {"unrolls": self.unrolls.receiver(0)}
        return LocalPorts(senders, receivers, writers={"weights": self.weights})

    def learner(self):
        return self.plan.build_learner("learner", self.learner_ports())

    def give_ticket(self, sequence=0, version=0):
        sender = self.tickets.sender(0)
        lease = sender.reserve()
        lease.arrays["ticket"][:] = (0, sequence, version)
        sender.commit(lease)


def test_the_environment_alone_shows_a_scene_and_steps_only_after_a_decision(plan):
    bench = Bench(plan)
    environment, watcher = bench.environment(), bench.scenes.receiver(0)
    assert environment.work()
    assert not environment.work(), "no decision, no step"
    scene = watcher.take().arrays
    assert scene["reset"].all()
    group = make_group(plan.env)
    group.reset(np.ones(SIZE, bool), np.array([episode_seed(3, 0, k, 0) for k in range(SIZE)]))
    np.testing.assert_array_equal(scene["obs"], group.obs)
    decisions = bench.decisions.sender(0)
    lease = decisions.reserve()
    lease.arrays["action"][:] = [1, 0]
    decisions.commit(lease)
    assert environment.work()
    group.step(np.array([1, 0]), np.ones(SIZE, bool))
    following = watcher.take().arrays
    np.testing.assert_array_equal(following["obs"], group.obs)
    assert following["reward"].tolist() == [1, 1]


def test_inference_alone_answers_only_with_a_ticket_and_as_the_policy_would(plan):
    bench = Bench(plan)
    inference, scenes = bench.inference(), bench.scenes.sender(0)
    obs = np.arange(SIZE * 4, dtype=np.float32).reshape(SIZE, 4) / 10
    lease = scenes.reserve()
    lease.arrays["obs"][:] = obs
    lease.arrays["reset"][:] = True
    scenes.commit(lease)
    assert not inference.work(), "a scene without a ticket waits"
    bench.give_ticket()
    assert inference.work()
    answer = bench.decisions.receiver(0).take().arrays
    policy = plan.policy(0, "cpu")
    noise = policy.noise(generator(3, "action", 0, 0), STEPS)
    wanted = policy.act(obs, {}, np.ones(SIZE, bool), noise[0])
    np.testing.assert_array_equal(answer["action"], wanted.action)
    for name, record in wanted.records.items():
        np.testing.assert_array_equal(answer[name], record)
    assert answer["ticket"].tolist() == [0, 0, 0]


def test_the_collector_alone_joins_a_scene_with_its_own_decision(plan):
    """Seed 000 stored the new observation beside the action that produced it; here row t holds what was seen at t."""
    bench = Bench(plan)
    collector = bench.collector()
    scenes, decisions = bench.scenes.sender(0), bench.decisions.sender(0)
    others = bench.scenes.receiver(0), bench.decisions.receiver(0)  # inference's and the environment's ends
    for t in range(STEPS + 1):
        lease = scenes.reserve()
        lease.arrays["obs"][:] = t
        lease.arrays["reward"][:] = 100 + t  # of the step that led here
        lease.arrays["over"][...] = t == STEPS
        scenes.commit(lease)
        assert collector.work()
        if t < STEPS:
            lease = decisions.reserve()
            lease.arrays["row"][...] = t
            lease.arrays["action"][:] = t % 2
            lease.arrays["value"][:] = 10 * t
            decisions.commit(lease)
            assert collector.work()
            for port in others:
                port.release(port.take())
    unroll = bench.unrolls.receiver(0).take().arrays
    assert unroll["obs"][:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5]
    assert unroll["action"][:, 0].tolist() == [0, 1, 0, 1, 0]
    assert unroll["value"][:, 0].tolist() == [0, 10, 20, 30, 40]
    assert unroll["reward"][:, 0].tolist() == [101, 102, 103, 104, 105]


def test_the_learner_alone_gives_a_ticket_and_waits_for_its_unroll(plan):
    bench = Bench(plan)
    learner, tickets = bench.learner(), bench.tickets.receiver(0)
    assert learner.work()
    assert not learner.work()
    ticket = tickets.take()
    assert ticket.arrays["ticket"].tolist() == [0, 0, 0]
    tickets.release(ticket)
    assert learner.missing() == [0]
    lease = bench.unrolls.sender(0).reserve()
    lease.arrays["valid"][:] = True
    bench.unrolls.sender(0).commit(lease)
    assert learner.work()
    assert learner.trainer.updates == 1
    assert bench.weights.version == 1


def test_environment_and_inference_play_together(plan):
    bench = Bench(plan)
    environment, inference = bench.environment(), bench.inference()
    bench.give_ticket()
    silent = bench.scenes.receiver(1), bench.decisions.receiver(1)  # the collector's ends
    rounds = 0
    for _ in range(STEPS):
        assert environment.work()
        assert inference.work()
        for port in silent:
            port.release(port.take())
        rounds += 1
    assert environment.work()
    assert not inference.work(), "the unroll is over, and with it the ticket"
    assert rounds == STEPS


def test_inference_and_collector_agree_on_the_rows_of_an_unroll(plan):
    bench = Bench(plan)
    inference, collector, scenes = bench.inference(), bench.collector(), bench.scenes.sender(0)
    bench.give_ticket(sequence=4)
    environment_end, seen = bench.decisions.receiver(0), []
    for t in range(STEPS + 1):
        lease = scenes.reserve()
        lease.arrays["obs"][:] = t / 10
        lease.arrays["over"][...] = t == STEPS
        scenes.commit(lease)
        while inference.work() or collector.work():
            pass
        if (answer := environment_end.take()) is not None:
            seen.append(answer.arrays["action"].tolist())
            environment_end.release(answer)
    unroll = bench.unrolls.receiver(0).take().arrays
    assert unroll["ticket"].tolist() == [0, 4, 0]
    assert unroll["action"].tolist() == seen, "what the environment was told is what was recorded"


def test_collector_and_learner_make_an_update_of_an_unroll(plan):
    bench = Bench(plan)
    learner, collector = bench.learner(), bench.collector()
    scenes, decisions = bench.scenes.sender(0), bench.decisions.sender(0)
    others = bench.scenes.receiver(0), bench.decisions.receiver(0), bench.tickets.receiver(0)
    assert learner.work()
    for t in range(STEPS + 1):
        lease = scenes.reserve()
        lease.arrays["valid"][:] = True
        lease.arrays["over"][...] = t == STEPS
        scenes.commit(lease)
        if t < STEPS:
            lease = decisions.reserve()
            lease.arrays["row"][...] = t
            lease.arrays["log_prob"][:] = -0.7
            decisions.commit(lease)
        while collector.work():
            pass
        for port in others:
            if (lease := port.take()) is not None:
                port.release(lease)
    assert learner.work()
    assert learner.trainer.updates == 1
    assert learner.progress().env_steps == STEPS * SIZE


class Judging(StochasticPolicy):
    """Stores the value of what follows an unroll, and which actor it is."""

    last_records: ClassVar = {"last_value": ArraySpec((), "float32"), "actor": ArraySpec((), "int64")}

    def __init__(self, network, context):
        super().__init__(network, context)
        self._context = context

    def finish(self, obs, state, reset):
        return {"last_value": self.act(obs, state, reset, None).records["value"], "actor": self._context.actor}


@pytest.mark.parametrize("policy", [StochasticPolicy, Judging])
def test_all_four_together_make_the_unroll_of_the_fused_actor(plan, policy):
    plan = replace(plan, recipe=replace(plan.recipe, policy=policy))
    bench, fused = Bench(plan), Bench(plan)
    parts = [bench.learner(), bench.environment(), bench.inference(), bench.collector()]
    senders, receivers = {"unrolls": fused.unrolls.sender(0)}, {"tickets": fused.tickets.receiver(0)}
    ports = LocalPorts(senders, receivers, readers={"weights": fused.weights})
    actor = plan.build_actor(0, "actor.0", ports)
    fused.give_ticket()
    assert actor.work()
    wanted = fused.unrolls.receiver(0).take().arrays
    spy = bench.unrolls.receiver(0)
    while not bench.unrolls.ready[0]:
        assert sum(part.work() for part in parts[1:]) or parts[0].work()
    unroll = spy.take().arrays
    for (path, ours), (_, theirs) in zip(nested.leaves(unroll), nested.leaves(wanted), strict=True):
        if path != "seconds":
            np.testing.assert_array_equal(ours, theirs, err_msg=path)
    if policy is Judging:
        obs, state, reset = unroll["obs"][STEPS], unroll["last_state"], unroll["reset"][STEPS]
        np.testing.assert_array_equal(
            unroll["last_value"], plan.policy(0, "cpu").act(obs, state, reset, None).records["value"]
        )
        assert unroll["actor"].tolist() == [0] * SIZE
        batch = bench_batch(plan, unroll)
        assert batch["last_value"].shape == (SIZE,)


def bench_batch(plan, unroll):
    """What the learner's store makes of one unroll."""
    store = plan.build_learner("learner", Bench(plan).learner_ports()).store
    store.insert(LeasedUnroll(Ticket(0, 0, 0), 0, Lease(unroll, 0)))
    return store.sample(lambda: np.random.default_rng(0), 0).batch
