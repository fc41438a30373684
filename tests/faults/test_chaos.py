"""Twenty kills at random moments: nothing is left, and the resumed run equals the one that was never killed."""

from __future__ import annotations

import random

import pytest
from chaos import episodes, kill_plan, run_through, undisturbed

PLANS = [
    ("cartpole", "serial", ["main", "main"]),
    ("cartpole", "processes", ["worker.0", "main", "nursery", "worker.1", "guardian", "main"]),
    ("pong", "serial", ["main"]),
    ("pong", "processes", ["worker.1", "main", "nursery"]),
    ("memory", "serial", ["main"]),
    ("memory", "processes", ["main", "worker.0", "guardian"]),
    ("vpg", "serial", ["main"]),
    ("vpg", "processes", ["worker.1", "main", "nursery"]),
]


def test_the_plans_hold_twenty_kills():
    assert sum(len(victims) for _, _, victims in PLANS) == 20


@pytest.mark.parametrize(("case", "kind", "victims"), PLANS, ids=[f"{case}-{kind}" for case, kind, _ in PLANS])
def test_a_killed_run_goes_on_to_the_same_parameters(case, kind, victims, tmp_path):
    sha256, played, updates = undisturbed(case, tmp_path)
    outcome = run_through(case, kind, tmp_path, kill_plan(victims, updates, random.Random(f"{case} {kind}")))
    assert outcome.kills == len(victims)
    assert outcome.sha256 == sha256
    assert episodes(tmp_path / f"{case}-{kind}") == played
    print(f"{case} {kind}: {outcome.kills} kills, {outcome.resumes} resumes, {outcome.replaced}")
