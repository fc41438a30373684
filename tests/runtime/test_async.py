"""The asynchronous topology: every number in its place, lag, its controller, and the log from which it is retraced."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest
import tracer_parts
from tracer_reading import SIZE, STEPS, Reader, run

from rollmill.algorithms.appo import APPOConfig
from rollmill.doctor.preflight import draw_blueprint, oversubscribed_threads
from rollmill.errors import Refused
from rollmill.events import Updated
from rollmill.experiment import Experiment, load_config
from rollmill.fields import Fields
from rollmill.flight.records import Note, UpdateEntry, read_flight
from rollmill.launch.process import usable_cores
from rollmill.retrace import Retrace
from rollmill.runtime.config import RuntimeConfig
from rollmill.seeding import episode_seed
from rollmill.stores.rollout import ArrivalStore
from rollmill.stores.store import LeasedUnroll
from rollmill.transport.ports import Lease
from rollmill.types import ArraySpec, Flow, Problem, Ticket

CONFIG = {
    "seed": 3,
    "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
    "algorithm": {"name": "appo", "unroll": 8, "unrolls": 2, "in_flight": 2, "minibatch": 32},
    "train": {"steps": 32 * 40},
    "observe": {
        "console": "none",
        "tensorboard": False,
        "curve": False,
        "final_episodes": 0,
        "baseline_episodes": 0,
        "log_interval": 0,
    },
}


def train(folder, changes=None, source=CONFIG):
    """The summary of a run and its rows of metrics."""
    experiment = Experiment(load_config(source, changes or {}), folder)
    for _ in experiment.run():
        pass
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return experiment.summary, rows


def retraced(folder):
    """The hash to which the flight log of a run leads."""
    retrace = Retrace(folder)
    for _ in retrace.steps():
        pass
    return retrace.sha256


RUNTIMES = [
    pytest.param(RuntimeConfig(kind="serial"), id="serial"),
    pytest.param(RuntimeConfig(kind="serial", roles="central"), id="serial-central"),
    pytest.param(RuntimeConfig(kind="processes", workers=2), id="processes"),
    *(
        pytest.param(
            RuntimeConfig(kind="processes", workers=2, roles=roles), id=f"processes-{roles}", marks=pytest.mark.slow
        )
        for roles in ("central", "split")
    ),
]


@pytest.mark.parametrize("config", RUNTIMES)
def test_every_number_of_every_consumed_unroll_is_in_its_place(config):
    """Unrolls are told apart by the seeds that they show; their version is the update's less the lag."""
    unrolls, updates = 3, 24
    algorithm = APPOConfig(unroll=STEPS, unrolls=unrolls, in_flight=2, minibatch=STEPS * SIZE * unrolls)
    batches, events = run(config, algorithm, tracer_parts.ARRIVALS, STEPS * SIZE * unrolls * updates)
    assert len(batches) == updates
    reader, lags = Reader(), []
    for update, batch in enumerate(batches):
        for column in range(0, unrolls * SIZE, SIZE):
            (lag,) = set(batch["lag"][column : column + SIZE].tolist())
            reader.read(batch, column, reader.whose(batch, column), update - lag)
            lags.append(lag)
    assert reader.has_met_every_end(), reader.ends
    assert min(reader.sequences) > 0, "everybody's unrolls are used"
    # 8 in flight, 3 consumed at a time: 8 / 3 - 1 on average but for the beginning
    assert max(lags) >= 2
    assert [e.metrics["lag/max"] for e in events if isinstance(e, Updated)] == [float(b["lag"].max()) for b in batches]


def test_two_serial_runs_are_equal(tmp_path):
    first, _ = train(tmp_path / "first")
    second, _ = train(tmp_path / "second")
    assert first["parameters_sha256"] == second["parameters_sha256"]
    assert (tmp_path / "first" / "episodes.csv").read_text().count("\n") > 10


@pytest.mark.parametrize(
    ("kind", "roles"),
    [
        ("serial", "fused"),
        ("serial", "central"),
        pytest.param("processes", "fused", marks=pytest.mark.slow),
        pytest.param("processes", "central", marks=pytest.mark.slow),
    ],
)
def test_a_run_is_retraced_to_its_hash_wherever_it_ran(tmp_path, kind, roles):
    runtime = {"runtime.kind": kind, "runtime.roles": roles, "runtime.workers": 2 if kind == "processes" else 1}
    summary, rows = train(tmp_path / "run", runtime)
    assert max(row["lag/max"] for row in rows) >= 2
    assert retraced(tmp_path / "run") == summary["parameters_sha256"]


WIDE = {"env.groups": 8, "algorithm.in_flight": 4, "algorithm.unrolls": 1, "algorithm.minibatch": 16}


def test_without_a_target_lag_is_what_is_in_flight(tmp_path):
    """32 unrolls in flight, one consumed per update: when one's turn comes, 31 others have gone before it."""
    _, rows = train(tmp_path / "run", WIDE | {"algorithm.max_lag": 40, "train.steps": 16 * 120})
    assert {row["lag/mean"] for row in rows[40:]} == {31.0}
    assert {row["port/in_flight"] for row in rows[1:]} == {32.0}


def test_the_controller_keeps_a_real_run_under_its_target_and_the_log_says_so(tmp_path):
    summary, rows = train(tmp_path / "run", WIDE | {"algorithm.target_lag": 3.0, "train.steps": 16 * 160})
    assert max(row["lag/mean"] for row in rows) == 3.0
    assert {row["lag/mean"] for row in rows[-40:]} == {3.0}
    assert rows[-1]["port/in_flight"] == 4
    limits = [
        e for e in read_flight(tmp_path / "run" / "flight.log").entries if isinstance(e, Note) and e.kind == "limit"
    ]
    assert [note.facts["in_flight"] for note in limits] == [4]
    assert limits[0].update == 0
    assert retraced(tmp_path / "run") == summary["parameters_sha256"]


def test_the_allowance_survives_a_resume(tmp_path):
    changes = WIDE | {"algorithm.target_lag": 3.0, "train.steps": 16 * 100}
    train(tmp_path / "run", changes)
    resumed = Experiment.resumed(tmp_path / "run", [f"train.steps={16 * 140}"])
    for _ in resumed.run():
        pass
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert {row["port/in_flight"] for row in rows[101:]} == {4.0}
    assert retraced(tmp_path / "run") == resumed.summary["parameters_sha256"]


def test_more_unrolls_than_can_be_in_flight_are_refused(tmp_path):
    with pytest.raises(Refused, match=r"algorithm.unrolls=9 is more than there can be in flight: env.groups=4 × "):
        train(tmp_path / "run", {"algorithm.unrolls": 9, "algorithm.minibatch": 144})


PPO = {"name": "ppo", "unroll": 8, "minibatch": 32}


@pytest.mark.parametrize(
    ("algorithm", "runtime", "variables", "is_warned"),
    [
        (CONFIG["algorithm"], {}, {}, True),
        (CONFIG["algorithm"], {}, {"OMP_WAIT_POLICY": "passive"}, False),
        (CONFIG["algorithm"], {"threads": {"learner": 1}}, {}, False),
        (CONFIG["algorithm"], {"kind": "serial", "workers": 1}, {}, False),
        (PPO, {}, {}, False),
    ],
    ids=["oversubscribed", "they sleep", "one thread", "serial", "synchronous"],
)
def test_learner_threads_in_the_way_of_workers_are_warned_of(algorithm, runtime, variables, is_warned):
    cores = len(usable_cores())
    threads = max(cores, 2)
    oversubscribed = {"kind": "processes", "workers": 2, "threads": {"learner": threads}}
    config = {**CONFIG, "algorithm": algorithm, "runtime": oversubscribed | runtime}
    warning = oversubscribed_threads(draw_blueprint(load_config(config).config), variables)
    expected = f"runtime.threads.learner={threads} with 2 workers on {cores} cores: "
    assert (warning or "").startswith(expected) == is_warned
    assert (warning is not None) == is_warned


def test_absurdly_many_in_flight_are_refused(tmp_path):
    wide = {"algorithm.target_lag": 1, "algorithm.in_flight": 5000}
    with pytest.raises(Refused, match=r"algorithm.in_flight=5000 with env.groups=4 is more than 10000 unrolls at once"):
        train(tmp_path / "run", wide)
    with pytest.raises(Refused, match=r"algorithm.in_flight"):
        train(tmp_path / "run", wide | {"algorithm.in_flight": 1_000_000_000})


SLOW = """
import time
import gymnasium as gym
import numpy as np


class Slow(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, slow_seeds):
        self.slow_seeds = set(slow_seeds)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.is_slow, self.t = seed in self.slow_seeds, 0
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), {}

    def step(self, action):
        if self.is_slow:
            time.sleep(0.02)
        self.t += 1
        return self.np_random.uniform(-1, 1, 1).astype(np.float32), float(action), False, self.t == 20, {}
"""


@pytest.mark.slow
def test_an_actor_whose_weights_are_gone_continues_with_newer_ones_and_misses_no_unroll(tmp_path):
    """Group 0 is slow: while it makes one unroll, the others bring more updates than versions are kept."""
    (tmp_path / "slow.py").write_text(SLOW)
    changes = {
        "env.id": f"{tmp_path}/slow.py:Slow",
        "env.args": {"slow_seeds": [episode_seed(3, 0, 0, episode) for episode in range(1000)]},
        "env.groups": 2,
        "env.group_size": 1,
        "algorithm.unrolls": 1,
        "algorithm.in_flight": 2,
        "algorithm.minibatch": 8,
        "train.steps": 8 * 500,
        "runtime.kind": "processes",
        "runtime.workers": 2,
    }
    summary, _ = train(tmp_path / "run", changes)
    kept = 2 + 2 * 2 // 1  # versions, see `topology.draw_graph`
    updates = [e for e in read_flight(tmp_path / "run" / "flight.log").entries if isinstance(e, UpdateEntry)]
    slow = [(e.update, c.ticket) for e in updates for c in e.unrolls if c.ticket.actor == 0]
    assert [ticket.sequence for _, ticket in slow] == list(range(len(slow)))
    outlived = sum(update - 1 - ticket.version >= kept for update, ticket in slow)
    assert outlived >= 3, f"{len(slow)} unrolls of the slow one"
    assert len({ticket.version for _, ticket in slow}) >= 3, "those behind them had their tickets renewed"
    assert retraced(tmp_path / "run") == summary["parameters_sha256"]


STAMPING = """
import os, time
import gymnasium as gym
import numpy as np


class Stamping(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, stamps):
        self.stamps, self.file = stamps, None

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        if self.file is None:
            self.file = open(os.path.join(self.stamps, f"{os.getpid()}-{id(self)}"), "w", buffering=1)
        begun = time.perf_counter()
        while time.perf_counter() - begun < 0.002:
            pass
        self.file.write(f"{begun} {time.perf_counter()}\\n")
        return np.zeros(1, np.float32), 0.0, False, False, {}
"""


@pytest.mark.slow
def test_while_one_group_waits_for_actions_its_worker_steps_the_other(tmp_path):
    """Double buffering: one worker with two groups and central inference.

    A group waits between two of its steps. As each step of the other takes 2 ms and there is one worker, nearly all of
    them must fall into such a wait, in turn.
    """
    (tmp_path / "stamping.py").write_text(STAMPING)
    stamps = tmp_path / "stamps"
    stamps.mkdir()
    changes = {
        "env.id": f"{tmp_path}/stamping.py:Stamping",
        "env.args": {"stamps": str(stamps)},
        "env.groups": 2,
        "env.group_size": 1,
        "env.time_limit": 50,
        "algorithm.minibatch": 16,
        "train.steps": 16 * 10,
        "runtime.kind": "processes",
        "runtime.roles": "central",
    }
    train(tmp_path / "run", changes)
    # the check before training has steps of its own, in the main process
    longest = sorted(stamps.iterdir(), key=lambda file: -file.stat().st_size)[:2]
    first, second = ([tuple(map(float, line.split())) for line in file.read_text().splitlines()] for file in longest)
    waits = [(end, begin) for (_, end), (begin, _) in pairwise(first)]
    inside = sum(any(end <= b and e <= begin for end, begin in waits) for b, e in second)
    assert len(first) >= 60
    assert inside >= 0.8 * min(len(first), len(second)), f"{inside} of {len(second)} steps"


def test_unrolls_without_experience_go_along_and_do_not_count():
    """A group that is lost for good makes such unrolls without end: they may neither end the run nor fill batches."""
    problem = Problem(ArraySpec((1,), "float32"), ArraySpec((), "int64"), {})
    store = ArrivalStore(Fields(problem), Flow(2, 1), None, "cpu")

    def unroll(actor, sequence, is_broken):
        lease = Lease({"broken": np.array([is_broken, is_broken])}, 0)
        assert not store.insert(LeasedUnroll(Ticket(actor, sequence, 0), 0, lease)), "committed by its update only"

    for sequence in range(3):
        unroll(0, sequence, True)
    unroll(1, 0, False)
    assert not store.may_sample()
    unroll(0, 3, True)
    unroll(1, 1, False)
    unroll(1, 2, False)
    assert store.may_sample()
    assert [unroll.ticket[:2] for unroll in store._choose()] == [(0, 0), (0, 1), (0, 2), (1, 0), (0, 3), (1, 1)]
