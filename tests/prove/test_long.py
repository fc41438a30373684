"""Proofs that take minutes: several seeds, longer runs, many kills."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "faults"))
import chaos

from rollmill.experiment import Experiment, load_config

CONFIGS = Path(__file__).parents[2] / "configs"
QUIET = {"observe.console": "none", "observe.tensorboard": False, "observe.curve": False}

pytestmark = pytest.mark.prove


def run(path, source, **changes):
    experiment = Experiment(load_config(source, QUIET | changes), path)
    for _ in experiment.run():
        pass
    return experiment.summary


@pytest.mark.parametrize(
    ("name", "steps", "changes"),
    [
        ("ppo/pong", 4096, {}),
        ("ppo/memory_cue", 20_000, {}),
        ("ppo/pendulum", 20_000, {}),
        ("vpg/cartpole", 20_000, {}),
        ("a2c/cartpole", 20_000, {"env.groups": 4, "env.group_size": 4}),
    ],
)
def test_whole_configs_give_the_same_parameters_everywhere(tmp_path, name, steps, changes):
    changes = changes | {"train.steps": steps, "observe.final_episodes": 0}
    found = {}
    for label, runtime in {
        "serial": {"runtime.kind": "serial", "runtime.workers": 1},
        "processes × 1": {"runtime.kind": "processes", "runtime.workers": 1},
        "processes × 2": {"runtime.kind": "processes", "runtime.workers": 2},
        "central × 2": {"runtime.kind": "processes", "runtime.workers": 2, "runtime.roles": "central"},
    }.items():
        summary = run(tmp_path / label.replace(" ", ""), CONFIGS / f"{name}.yaml", **(changes | runtime))
        found[label] = summary["parameters_sha256"]
    print(f"\n{name}: {summary['updates']} updates, " + ", ".join(f"{k} {v[:12]}" for k, v in found.items()))
    assert len(set(found.values())) == 1


def test_thirty_kills_at_random_moments_leave_nothing(tmp_path):
    """SIGKILL of any process, 0.3 to 6 s after the start (during imports, start-up, training), then of the main one."""
    rng = random.Random(0)
    print("\nkilled, seconds after the start, survivors 2 s after the death of the main process:")
    for number in range(30):
        command = [sys.executable, "-m", "rollmill", "train", str(CONFIGS / "ppo" / "memory_cue.yaml")]
        command += ["runtime.kind=processes", "runtime.workers=2", "train.steps=100000000", "observe.console=none"]
        main = subprocess.Popen(
            [*command, "--run", str(tmp_path / str(number))], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        moment = rng.uniform(0.3, 6.0)
        time.sleep(moment)
        top = psutil.Process(main.pid)
        family = [top, *top.children(recursive=True)]
        victim = rng.choice(family)
        victim.kill()
        time.sleep(0.1)  # a replacement may be under way
        if victim is not top and top.is_running():
            family += [p for p in top.children(recursive=True) if p not in family]
            main.kill()
        main.wait(timeout=30)
        time.sleep(2)
        left = [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        print(f"  {number}: process {family.index(victim)} of {len(family)}, {moment:.1f} s, {len(left)} left")
        assert not left
    assert not [name for name in Path("/dev/shm").iterdir() if "rollmill" in name.name]


VICTIMS = {"serial": ["main"], "processes": ["main", "worker.0", "worker.1", "worker.0", "forkserver", "guardian"]}
TIMES = {"cartpole": 6, "pong": 5, "memory": 4, "vpg": 24}  # as long as in `make test`: there is time for every kill


@pytest.mark.parametrize("kind", ["serial", "processes"])
@pytest.mark.parametrize("case", TIMES)
def test_twenty_five_kills_change_no_bit(tmp_path, case, kind):
    """Eight of these are 200 kills, each placed at an update and a random moment within it."""
    rng = random.Random(f"long {case} {kind}")
    sha256, played, updates = chaos.undisturbed(case, tmp_path, TIMES[case])
    victims = [rng.choice(VICTIMS[kind]) for _ in range(25)]
    begun = time.monotonic()
    plan = chaos.kill_plan(victims, updates, rng)
    outcome = chaos.run_through(case, kind, tmp_path, plan, TIMES[case])
    counts = ", ".join(f"{victim} {victims.count(victim)}" for victim in sorted(set(victims)))
    print(
        f"\n{case} {kind}: {updates} updates, {outcome.kills} kills ({counts}), {outcome.resumes} resumes, "
        f"{len(outcome.replaced)} replacements, {time.monotonic() - begun:.0f} s; nothing left after 2 s each time; "
        f"sha256 {outcome.sha256[:12]}, undisturbed {sha256[:12]}"
    )
    assert outcome.kills == 25
    assert outcome.sha256 == sha256
    assert chaos.episodes(tmp_path / f"{case}-{kind}") == played
