"""Kills at random moments of asynchronous runs: nothing is left, and what came of it follows from the flight log."""

from __future__ import annotations

import json
import random

import pytest
from chaos import STEPS, kill_plan, retraced, run_through

from rollmill.flight.records import Note, UpdateEntry, read_flight

pytestmark = pytest.mark.slow

STEPS_PER_UPDATE = {"appo": 128, "appo-memory": 128, "appo-pong": 32, "appo-replayed": 64}
PLANS = [
    ("appo", "serial", "fused", ["main", "main"]),
    ("appo", "processes", "fused", ["worker.0", "main", "forkserver", "worker.1", "guardian", "main"]),
    ("appo-memory", "processes", "fused", ["worker.0", "main", "guardian"]),
    ("appo-memory", "processes", "central", ["worker.1", "forkserver"]),
    ("appo-pong", "processes", "fused", ["worker.1", "main"]),
]

IN_MINUTES = [("appo", "processes", "fused"), ("appo-memory", "processes", "fused")]  # the others are proofs


def updates_of(case, times=1):
    return times * STEPS[case] // STEPS_PER_UPDATE[case]


@pytest.mark.parametrize(
    ("case", "kind", "roles", "victims"),
    [
        pytest.param(*plan, id="-".join(plan[:3]), marks=[] if plan[:3] in IN_MINUTES else pytest.mark.prove)
        for plan in PLANS
    ],
)
def test_a_killed_run_is_retraced_to_its_parameters(case, kind, roles, victims, tmp_path):
    rng = random.Random(f"{case} {kind} {roles}")
    plan = kill_plan(victims, updates_of(case) // 2, rng, is_patient=True)
    outcome = run_through(case, kind, tmp_path, plan, roles=roles)
    run = tmp_path / f"{case}-{kind}"
    assert outcome.kills == len(victims)
    assert outcome.resumes == victims.count("main")
    summary = json.loads((run / "summary.json").read_text())
    assert summary["status"] == "done"
    assert summary["updates"] == updates_of(case)
    assert retraced(run) == outcome.sha256 == summary["parameters_sha256"]
    log = read_flight(run / "flight.log")
    begun = [entry for entry in log.entries if isinstance(entry, Note) and entry.kind == "begun"]
    assert len(begun) == 1 + outcome.resumes, "every process that went on says so"
    consumed = [c for entry in log.lineage() if isinstance(entry, UpdateEntry) for c in entry.unrolls]
    if victims.count("main") < len(victims) or outcome.resumes:
        assert max(c.incarnation for c in consumed) >= 1, "and the log tells who made an unroll"
    print(f"{case} {kind} {roles}: {outcome.kills} kills, {outcome.resumes} resumes, {outcome.replaced}")


def test_ten_kills_of_workers_are_ten_replacements(tmp_path):
    """Training goes on while a worker is away, and the controller keeps the lag under its target all the same."""
    case = "appo-replayed"
    rng = random.Random(case)
    victims = [f"worker.{rng.randrange(2)}" for _ in range(10)]
    plan = kill_plan(victims, updates_of(case, 2) // 3, rng, is_patient=True)
    outcome = run_through(case, "processes", tmp_path, plan, times=2)
    run = tmp_path / f"{case}-processes"
    summary = json.loads((run / "summary.json").read_text())
    assert outcome.kills == 10
    assert outcome.resumes == 0
    assert len(summary["failures"]["workers"]) == 10
    replaced = [e for e in read_flight(run / "flight.log").entries if isinstance(e, Note) and e.kind == "replaced"]
    assert len(replaced) == 20, "each worker has two actors"
    assert retraced(run) == outcome.sha256
    lags = [json.loads(line)["lag/mean"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    print(f"\n{case}: mean lag {sum(lags) / len(lags):.2f}, most {max(lags):.0f}")
