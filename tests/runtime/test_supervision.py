"""Workers that die, hang or swell are replaced and the result is as if nothing had been; some failures end the run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rollmill.errors import Stalled, WorkerFailed
from rollmill.events import ComponentFailed, Updated, WorkerReplaced
from rollmill.experiment import Experiment, load_config
from rollmill.launch.guardian import Guardian
from rollmill.launch.pulse import PULSE, STEP, HangTimer, Pulse, watchdog

ENVIRONMENT = '''
import os, time
import gymnasium as gym
import numpy as np


class Faulty(gym.Env):
    """Counts; in its n-th step outside the main process it has a fault, once if there is a file that marks it."""

    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, main, fault, after, once=None):
        self.main, self.fault, self.after, self.once, self.steps = main, fault, after, once, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

    def step(self, action):
        self.t += 1
        self.steps += 1
        if self.steps >= self.after and os.getpid() != self.main:
            self.have_fault()
        noise = self.np_random.uniform(-1, 1, 2)
        return noise.astype(np.float32), float(action * noise[0]), False, self.t >= 20, {}

    def have_fault(self):
        if self.once:
            try:
                os.close(os.open(self.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        if self.fault == "slow":
            time.sleep(0.001)
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "hang":
            time.sleep(3600)  # the line that the stack must name
        if self.fault == "swell":
            self.hoard = np.ones(1 << 28)  # 2 GiB
            time.sleep(3600)
'''
SLEEP_LINE = next(n for n, line in enumerate(ENVIRONMENT.splitlines(), 1) if "the line that the stack" in line)

BASE = {
    "seed": 3,
    "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 1},
    "train": {"steps": 128 * 24},  # 24 updates
    "observe": {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0, "baseline_seconds": 0.1},
}
FUSED = {"runtime.kind": "processes", "runtime.workers": 2}
ROLES = {"fused": FUSED, "central": FUSED | {"runtime.roles": "central"}, "split": FUSED | {"runtime.roles": "split"}}


class Played:
    """A run whose every event is shown to `disturb` before training goes on."""

    def __init__(self, path, values, overrides, disturb=lambda event: None):
        self.experiment = Experiment(load_config(values, overrides), path)
        self.events = []
        self.error = None
        started = time.monotonic()
        try:
            for event in self.experiment.run():
                self.events.append(event)
                disturb(event)
        except (WorkerFailed, Stalled) as error:
            self.error = error
        self.seconds = time.monotonic() - started

    @property
    def replaced(self):
        return [event for event in self.events if isinstance(event, WorkerReplaced)]

    @property
    def sha(self):
        assert self.experiment.summary["status"] == "done", self.experiment.summary["reason"]
        assert self.experiment.summary["updates"] == 24
        return self.experiment.summary["parameters_sha256"]


def faulty(tmp_path, fault, after, once=None):
    module = tmp_path / "faulty.py"
    module.write_text(ENVIRONMENT)
    args = {"main": os.getpid(), "fault": fault, "after": after, "once": once and str(tmp_path / once)}
    return BASE | {"env": {"id": f"{module}:Faulty", "args": args, "groups": 4, "group_size": 2}}


def undisturbed(tmp_path, values=BASE):
    return Played(tmp_path / "serial", values, {}).sha


def family():
    """The forkserver, the guardian and the workers of the run in this process."""
    forkserver = guardian = None
    for child in psutil.Process().children():
        words = " ".join(child.cmdline())
        if "forkserver" in words:
            forkserver = child
        elif "guardian" in words:
            guardian = child
    return forkserver, guardian, sorted(forkserver.children(), key=lambda p: p.pid)


@pytest.mark.slow
@pytest.mark.parametrize("env", ["cartpole", "slow"])
@pytest.mark.parametrize("roles", ROLES)
def test_killing_workers_again_and_again_changes_no_bit(tmp_path, roles, env):
    """CartPole's unrolls take milliseconds: they die behind them. Slow ones take > 60 ms: they die inside them."""
    values = BASE if env == "cartpole" else faulty(tmp_path, "slow", 1)
    expected = undisturbed(tmp_path, values)
    killed = []

    def disturb(event):
        if isinstance(event, Updated) and event.version % 4 == 2:
            time.sleep(0.001 * event.version)
            workers = family()[2]
            victim = workers[event.version // 4 % len(workers)]
            victim.kill()
            killed.append(victim.pid)

    run = Played(tmp_path / roles, values, ROLES[roles], disturb)
    assert run.sha == expected
    assert len(killed) == 6
    print(f"\n{roles}, {env}: recovery in {', '.join(f'{e.seconds:.2f}' for e in run.replaced)} s")
    assert len(run.replaced) == 6
    assert all("killed by SIGKILL" in event.reason and event.seconds < 4 for event in run.replaced)


@pytest.mark.slow
def test_workers_killed_before_their_first_unroll_begin_anew(tmp_path):
    """They have no point yet, so they start from the seed; slow environments keep the first unroll going."""
    values = faulty(tmp_path, "slow", 1)
    expected = undisturbed(tmp_path, values)
    done = []

    def disturb(event):
        if not done and type(event).__name__ == "Said" and event.component == "actor.1":
            done.append(True)
            for worker in family()[2]:
                worker.kill()

    run = Played(tmp_path / "killed", values, FUSED, disturb)
    assert done
    assert run.sha == expected
    assert 1 <= len(run.replaced) <= 2


@pytest.mark.slow
def test_a_dead_forkserver_is_replaced_with_all_workers(tmp_path):
    expected = undisturbed(tmp_path)

    def disturb(event):
        if isinstance(event, Updated) and event.version == 10:
            family()[0].kill()

    run = Played(tmp_path / "killed", BASE, FUSED, disturb)
    assert run.sha == expected
    assert sorted(event.place for event in run.replaced) == ["worker.0", "worker.1"]  # who is ready first is chance
    print(f"\nforkserver: recovery in {run.replaced[-1].seconds:.2f} s")


@pytest.mark.slow
def test_a_worker_that_stands_still_is_replaced_while_the_others_go_on(tmp_path):
    """No environment hangs, nobody waits for its unrolls: only that it makes none, while others do, gives it away."""
    algorithm = {"name": "appo", "unroll": 16, "unrolls": 2, "in_flight": 2, "minibatch": 64}
    overrides = FUSED | {"runtime.stall_seconds": 1.5, "train.steps": 10_000_000}
    experiment = Experiment(load_config(BASE | {"algorithm": algorithm}, overrides), tmp_path / "run")
    still, stood_at, replaced = None, 0, []
    for event in experiment.run():
        if isinstance(event, Updated) and event.version >= 10 and still is None:
            still, stood_at = family()[2][0], event.version
            still.suspend()
        elif isinstance(event, WorkerReplaced):
            replaced.append(event)
            experiment.stop()
    assert len(replaced) == 1
    assert "made no unroll for" in replaced[0].reason
    assert replaced[0].progress.updates > stood_at + 2, "the other worker went on"
    assert not still.is_running()


@pytest.mark.slow
def test_a_dead_guardian_is_replaced_and_the_run_goes_on(tmp_path):
    guardians = []

    def disturb(event):
        if isinstance(event, Updated) and event.version == 10:
            guardians.append(family()[1].pid)
            family()[1].kill()
            time.sleep(0.6)
        if isinstance(event, Updated) and event.version == 12:
            guardians.append(family()[1].pid)

    run = Played(tmp_path / "killed", BASE, FUSED, disturb)
    assert run.sha == undisturbed(tmp_path)
    assert not run.replaced
    assert len(set(guardians)) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "overrides", "reason"),
    [
        ("exit", {}, "ended by itself with exit code 7"),
        ("hang", {"runtime.env_seconds": 1.0}, "hung in step() for 1."),
        ("swell", {"runtime.worker_memory_gb": 1.5}, "more than runtime.worker_memory_gb=1.5"),
    ],
)
def test_an_environment_that_fails_once_costs_a_worker_and_no_bit(tmp_path, fault, overrides, reason):
    expected = undisturbed(tmp_path, faulty(tmp_path, "none", 10**9))
    run = Played(tmp_path / fault, faulty(tmp_path, fault, 150, once="mark"), FUSED | overrides)
    assert run.sha == expected
    (event,) = run.replaced
    assert reason in event.reason
    assert event.seconds < 4
    assert event.attempt == 1
    assert run.seconds < 40
    stacks = list((tmp_path / fault / "logs").glob("*.stack"))
    if fault == "hang":
        where = f'faulty.py", line {SLEEP_LINE} in have_fault'
        assert where in event.traceback
        assert where in stacks[0].read_text()
    else:
        assert not stacks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "overrides", "reason"),
    [
        ("exit", {}, "ended by itself with exit code 7"),
        ("hang", {"runtime.env_seconds": 0.5}, "hung in step() for"),
        ("swell", {"runtime.worker_memory_gb": 1.5}, "more than runtime.worker_memory_gb=1.5"),
    ],
)
def test_an_environment_that_always_fails_ends_the_run_in_bounded_time(tmp_path, fault, overrides, reason):
    """Three workers in a row: 3 × (0.5 s + a look + 0.5 s for the stack + a start of < 2 s) + 0.5 s of delay < 20 s."""
    values = faulty(tmp_path, fault, 1)
    run = Played(tmp_path / fault, values, FUSED | overrides | {"runtime.restarts": 2})
    assert isinstance(run.error, WorkerFailed)
    assert reason in str(run.error)
    assert "replaced 2 times in a row" in str(run.error)
    (failure,) = [event for event in run.events if isinstance(event, ComponentFailed)]
    if fault == "hang":
        assert f"line {SLEEP_LINE} in have_fault" in failure.traceback
        assert f"line {SLEEP_LINE} in have_fault" in run.error.child_traceback
    assert run.seconds < (60 if fault == "swell" else 25), "touching 2 GiB three times takes a while"
    assert not psutil.Process().children()


@pytest.mark.slow
def test_a_slow_environment_is_left_alone(tmp_path):
    """Its steps add up to more than the limit, which is for one call; the whole takes less than 40 s."""
    values = faulty(tmp_path, "slow", 1)
    run = Played(tmp_path / "slow", values, FUSED | {"runtime.env_seconds": 0.5})
    assert run.error is None
    assert not run.replaced
    assert run.sha == undisturbed(tmp_path, faulty(tmp_path, "none", 10**9))
    assert run.seconds < 40


def test_restarts_0_ends_the_run_at_the_first_death(tmp_path):
    def disturb(event):
        if isinstance(event, Updated) and event.version == 3:
            family()[2][0].kill()

    run = Played(tmp_path / "killed", BASE, FUSED | {"runtime.restarts": 0}, disturb)
    assert "killed by SIGKILL" in str(run.error)
    assert not run.replaced


def test_only_time_that_was_watched_counts(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("rollmill.launch.pulse.monotonic", lambda: now[0])
    pulse, patience = Pulse(), HangTimer(3.0)

    def look_after(seconds):
        now[0] += seconds
        return patience.look(pulse)

    pulse.enter(STEP)
    assert [look_after(s) for s in (1.0, 1.0, 1.0)] == [None] * 3
    assert look_after(0.5) == "hung in step() for 3.5 s"
    pulse.leave()
    assert look_after(1.0) is None
    pulse.enter(STEP)
    assert look_after(1000.0) is None, "somebody suspended us: 2 s of that count"
    assert look_after(0.5) is None
    assert look_after(0.6) == "hung in step() for 3.1 s"


def test_the_watchdog_interrupts_a_hung_call_and_keeps_its_stack(tmp_path):
    before = signal.getsignal(signal.SIGUSR2)
    started = time.monotonic()
    with pytest.raises(Stalled, match=r"hung in step\(\) for .*env_seconds=0.3.*main.stack"):  # noqa: SIM117, PT012
        with watchdog(0.3, tmp_path / "main.stack"):
            PULSE.enter(STEP)
            try:
                time.sleep(30)
            except Exception:  # what an environment might do
                pytest.fail("the interruption looked like an error of the environment")
    PULSE.leave()
    assert time.monotonic() - started < 5
    assert "test_the_watchdog_interrupts_a_hung_call" in (tmp_path / "main.stack").read_text()
    assert signal.getsignal(signal.SIGUSR2) is before


def test_the_watchdog_leaves_short_calls_and_other_code_alone(tmp_path):
    with watchdog(0.2, tmp_path / "main.stack"):
        for _ in range(5):
            PULSE.enter(STEP)
            time.sleep(0.08)
            PULSE.leave()
        time.sleep(0.5)
    assert not (tmp_path / "main.stack").exists()


def test_a_call_that_cannot_be_interrupted_ends_the_process_with_one_line():
    code = """
import time, rollmill.launch.pulse as pulse
pulse.REACT_SECONDS = 0.5
def step():
    while True:
        try:
            time.sleep(30)
        except BaseException:
            pass
with pulse.watchdog(0.2, __import__("pathlib").Path("/dev/null")):
    pulse.PULSE.enter(pulse.STEP)
    step()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.startswith("rollmill: an environment hung in step()")
    assert len(done.stderr.splitlines()) == 1


GUARDED = """
import subprocess, sys, time
from rollmill.launch.guardian import Guardian
guardian = Guardian()
guardian.start()
sleeper = subprocess.Popen(["sleep", "1000"], process_group=0)
guardian.watch(sleeper.pid)
print(sleeper.pid, guardian._child.pid, flush=True)
if sys.argv[1] == "bye":
    guardian.close()
else:
    time.sleep(1000)
"""


@pytest.mark.parametrize("ending", ["kill", "bye"])
def test_the_guardian_ends_what_a_killed_process_leaves_and_only_then(ending):
    main = subprocess.Popen([sys.executable, "-c", GUARDED, ending], stdout=subprocess.PIPE, text=True)
    sleeper, guardian = (psutil.Process(int(pid)) for pid in main.stdout.readline().split())
    if ending == "kill":
        main.kill()
    main.wait(10)
    _, alive = psutil.wait_procs([guardian], 2)
    assert not alive
    try:
        assert sleeper.is_running() == (ending == "bye")
    finally:
        if sleeper.is_running():
            sleeper.kill()


def test_a_guardian_that_dies_is_started_anew_with_all_it_knew():
    guardian = Guardian()
    guardian.start()
    first = guardian._child.pid
    guardian.watch(10**9)  # no such group
    os.kill(first, signal.SIGKILL)
    psutil.Process(first).wait(5) if psutil.pid_exists(first) else None
    guardian.look()
    assert guardian._child.pid != first
    guardian.forget(10**9)
    guardian.close()
    assert not Path(f"/proc/{first}").exists()
