"""Twenty kills at random moments: nothing is left, and the resumed run equals the one that was never killed."""

from __future__ import annotations

import json
import random

import pytest
from chaos import episodes, kill_plan, run_through, undisturbed

pytestmark = pytest.mark.slow

PLANS = [
    ("cartpole", "serial", ["main", "main"]),
    ("cartpole", "processes", ["worker.0", "main", "forkserver", "worker.1", "guardian", "main"]),
    ("pong", "serial", ["main"]),
    ("pong", "processes", ["worker.1", "main", "forkserver"]),
    ("memory", "serial", ["main"]),
    ("memory", "processes", ["main", "worker.0", "guardian"]),
    ("vpg", "serial", ["main"]),
    ("vpg", "processes", ["worker.1", "main", "forkserver"]),
]


def test_the_plans_hold_twenty_kills():
    assert sum(len(victims) for _, _, victims in PLANS) == 20


def marked(case, kind, victims):
    marks = pytest.mark.prove if (case, kind) == ("pong", "serial") else ()  # half a minute; processes show the same
    return pytest.param(case, kind, victims, id=f"{case}-{kind}", marks=marks)


@pytest.mark.parametrize(("case", "kind", "victims"), [marked(*plan) for plan in PLANS])
def test_a_killed_run_goes_on_to_the_same_parameters(case, kind, victims, tmp_path):
    sha256, played, updates = undisturbed(case, tmp_path)
    outcome = run_through(case, kind, tmp_path, kill_plan(victims, updates, random.Random(f"{case} {kind}")))
    assert outcome.kills == len(victims)
    assert outcome.sha256 == sha256
    assert episodes(tmp_path / f"{case}-{kind}") == played
    print(f"{case} {kind}: {outcome.kills} kills, {outcome.resumes} resumes, {outcome.replaced}")


@pytest.mark.prove
@pytest.mark.parametrize("case", ["cartpole", "replayed"])
def test_killing_workers_fifty_times_in_one_run(case, tmp_path):
    """The run finishes with all steps and the same hash; each recovery takes at most 4 s plus the replay."""
    times = 8 if case == "cartpole" else 16  # 320 updates
    sha256, played, updates = undisturbed(case, tmp_path, times)
    rng = random.Random(case)
    victims = [f"worker.{rng.randrange(2)}" for _ in range(50)]
    # moments within the first third, for each kill waits for the replacement of the last victim
    plan = kill_plan(victims, updates // 3, rng, is_patient=True)
    outcome = run_through(case, "processes", tmp_path, plan, times)
    assert outcome.kills == 50
    assert outcome.resumes == 0
    assert outcome.sha256 == sha256
    assert episodes(tmp_path / f"{case}-processes") == played
    summary = json.loads((tmp_path / f"{case}-processes" / "summary.json").read_text())
    replaced = summary["failures"]["workers"]
    assert summary["status"] == "done"
    assert len(replaced) == 50
    recoveries = [worker["seconds"] - worker["replay_seconds"] for worker in replaced]
    replays = [worker["replay_seconds"] for worker in replaced]
    print(f"\n{case}: {len(replaced)} recoveries, seconds: {_spread(recoveries)}, replays: {_spread(replays)}")
    assert max(recoveries) <= 4


def _spread(values):
    ordered = sorted(values)
    return f"median {ordered[len(ordered) // 2]:.2f}, most {ordered[-1]:.2f}"
