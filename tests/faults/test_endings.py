"""However a run ends, it says so with its exit code, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest
from chaos import gone, retraced

import rollmill

PROCESSES = ("runtime.kind=processes", "runtime.workers=2")
ASYNC = (*PROCESSES, "algorithm.name=appo", "algorithm.unrolls=2", "algorithm.in_flight=2")
KINDS = [pytest.param((), id="serial"), pytest.param(PROCESSES, id="processes")]
SPREAD = [pytest.param(PROCESSES, id="sync"), pytest.param(ASYNC, id="async")]

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("runtime", [*KINDS, SPREAD[1]])
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_is_loadable(train, runtime, number, code):
    training = train(*runtime)
    training.wait_for_updates()
    family = training.family()
    assert len(family) == (5 if runtime else 1), "main, forkserver, guardian, two workers"
    os.kill(training.process.pid, number)
    assert training.finish()[0] == code
    assert not gone(family)
    assert training.summary["status"] == "interrupted"
    assert training.summary["updates"] >= 3
    assert rollmill.load(training.run)([0.0, 0.0, 0.0, 0.0]) in (0, 1)
    if runtime == ASYNC:
        assert retraced(training.run) == training.summary["parameters_sha256"]


def by_role(training):
    """The processes of a run: main, forkserver, guardian and the list of workers."""
    main = psutil.Process(training.process.pid)
    forkserver = next(p for p in main.children() if "runtime.forkserver" in " ".join(p.cmdline()))
    guardian = next(p for p in main.children() if "guardian" in " ".join(p.cmdline()))
    return {"main": main, "forkserver": forkserver, "guardian": guardian, "worker": forkserver.children()[0]}


@pytest.mark.parametrize(
    ("runtime", "victims"),
    [
        *(
            (PROCESSES, victims)
            for victims in [("main",), ("main", "forkserver"), ("main", "guardian"), ("main", "worker")]
        ),
        *((ASYNC, victims) for victims in [("main", "forkserver"), ("main", "worker")]),
    ],
)
def test_killing_the_main_process_leaves_nothing_whoever_dies_with_it(train, runtime, victims):
    training = train(*runtime)
    training.wait_for_updates()
    family, roles = training.family(), by_role(training)
    for victim in victims:
        roles[victim].kill()
    code, _, _ = training.finish(timeout=20)
    assert not gone(family), "processes outlived the run by 2 s"
    assert code == -signal.SIGKILL


@pytest.mark.parametrize(
    ("runtime", "victim"),
    [
        *((PROCESSES, victim) for victim in ("forkserver", "guardian", "worker")),
        (ASYNC, "forkserver"),
        (ASYNC, "worker"),
    ],
)
def test_a_run_goes_on_when_any_other_process_is_killed_and_then_leaves_nothing(train, runtime, victim):
    training = train(*runtime)
    training.wait_for_updates()
    before = training.family()
    by_role(training)[victim].kill()
    lines = len((training.run / "metrics.jsonl").read_text().splitlines())
    training.wait_for_updates(lines + 100)
    deadline = time.monotonic() + 20
    while len(family := training.family()) != 5:  # asynchronous training doesn't wait for the new one
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(training.process.pid, signal.SIGINT)
    assert training.finish(timeout=20)[0] == 130
    assert not gone([*before, *family])


def test_without_restarts_the_death_of_a_worker_ends_the_run(train):
    training = train(*PROCESSES, "runtime.restarts=0")
    training.wait_for_updates()
    family = training.family()
    by_role(training)["worker"].kill()
    code, _, err = training.finish(timeout=15)
    assert not gone(family)
    assert code == 1
    assert "killed by SIGKILL" in err
    assert training.summary["status"] == "failed"
    assert (training.run / "weights.safetensors").exists()


@pytest.mark.parametrize("victims", [("main",), ("worker",), ("main", "forkserver"), ("forkserver",)])
def test_what_an_environment_started_does_not_outlive_it(train, victims):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "child"}, "groups": 2, "group_size": 1}
    training = train(*PROCESSES, config={"env": env, "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 32}})
    training.wait_for_updates()
    roles = by_role(training)
    sleepers = [p for worker in roles["forkserver"].children() for p in worker.children() if p.name() == "sleep"]
    assert len(sleepers) == 2, "one in each worker"
    doomed = roles["worker"].children() if victims == ("worker",) else sleepers
    for victim in victims:
        roles[victim].kill()
    assert not gone(doomed)
    if "main" in victims:
        assert training.process.wait(timeout=15) == -signal.SIGKILL
    else:
        assert training.process.poll() is None


@pytest.mark.parametrize("runtime", [*KINDS, SPREAD[1]])
def test_an_environment_that_raises_is_rebuilt_and_the_run_says_so(train, runtime):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "raise"}, "groups": 4, "group_size": 2}
    # 8 environments make 320 steps each in 20 updates of 128: each raises once, in step 300
    training = train(*runtime, "train.steps=2560", config={"env": env})
    code, out, _ = training.finish()
    assert code == 0
    assert "RuntimeError: the simulator is out of order; rebuilt and played again" in out
    assert training.summary["env_steps"] == 2560
    failures = training.summary["failures"]
    assert (failures["workers"], failures["quarantined"]) == ([], 0)
    logs = "".join(file.read_text() for file in (training.run / "logs").glob("actor.*.log"))
    tracebacks = logs.count('raise RuntimeError("the simulator is out of order")')
    if runtime == ASYNC:  # some actors have made more of the steps, and what was in flight at the end doesn't count
        assert 1 <= failures["environments"] <= tracebacks <= 8
    else:
        assert failures["environments"] == tracebacks == 8, "every traceback is kept"


def test_an_environment_that_exits_is_noticed(train):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "exit"}, "groups": 4, "group_size": 2}
    code, _, err = train(*PROCESSES, "runtime.restarts=0", config={"env": env}).finish()
    assert code == 1
    assert "ended by itself with exit code 7" in err


def test_a_hung_environment_ends_a_serial_run_with_its_stack(train):
    """1 s of hanging, a look every quarter of it, and then the interruption: 15 s leave room for a busy machine."""
    env = {"id": "faulty.py:Faulty", "args": {"fault": "hang"}, "groups": 4, "group_size": 2}
    training = train("runtime.env_seconds=1", config={"env": env})
    training.wait_for_updates(18)
    code, _, err = training.finish(timeout=15)
    assert code == 1
    assert "an environment hung in step() for 1." in err
    assert "in step\n" in (training.run / "logs" / "main.stack").read_text()


@pytest.mark.parametrize("runtime", SPREAD)
def test_a_hung_environment_is_no_silent_stall(train, runtime):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "hang"}, "groups": 4, "group_size": 2}
    training = train(*runtime, "runtime.stall_seconds=3", config={"env": env})
    code, _, err = training.finish(timeout=60)
    assert code == 1
    assert "no unroll for 3 s from actors [" in err
    assert "runtime.stall_seconds" in err


@pytest.mark.parametrize(
    ("runtime", "after", "place"),
    [
        # unrolls have 16 steps: step 290 is the second of unroll 18, and what it led to is seen in the row after it
        ((), 290, "observation of environment 0 in group 0 is not finite at step 2 of unroll 18"),
        # episodes have 20 steps: step 300 is the last of one, the twelfth of unroll 18; its observation is a final one
        (PROCESSES, 300, "final observation of environment 0 in group 0 is not finite at step 11 of unroll 18"),
    ],
)
def test_a_nan_during_training_is_code_3_and_names_the_place(train, runtime, after, place):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "nan", "after": after}, "groups": 4, "group_size": 2}
    training = train(*runtime, config={"env": env})
    code, _, err = training.finish()
    assert code == 3
    assert place in err
    assert len(err.strip().splitlines()) == 1
    assert training.summary["status"] == "detected"


@pytest.mark.parametrize("algorithm", [(), ("algorithm.name=appo", "algorithm.unrolls=2")], ids=["ppo", "appo"])
def test_a_second_interrupt_ends_at_once(train, algorithm):
    env = {"id": "faulty.py:Faulty", "args": {"fault": "hang"}, "groups": 4, "group_size": 2}
    training = train(*algorithm, config={"env": env})  # serial: the hung step itself must be interrupted
    training.wait_for_updates(18)
    time.sleep(1)
    os.kill(training.process.pid, signal.SIGINT)
    time.sleep(0.5)
    assert training.process.poll() is None, "the first one waits for the running piece of work"
    os.kill(training.process.pid, signal.SIGINT)
    assert training.finish(timeout=10)[0] == 130


def test_two_runs_at_once_do_not_disturb_each_other(train):
    steps = "train.steps=8192"
    both = [train(*PROCESSES, steps, run="a"), train(*PROCESSES, steps, run="b")]
    alone = train(steps, run="c")
    assert [training.finish(timeout=120)[0] for training in (*both, alone)] == [0, 0, 0]
    assert len({training.summary["parameters_sha256"] for training in (*both, alone)}) == 1


def test_nothing_is_written_outside_the_run_folder_and_tmpdir(train, tmp_path, monkeypatch):
    home, temporary = tmp_path / "home", tmp_path / "tmp"
    home.mkdir()
    temporary.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TMPDIR", str(temporary))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"):
        monkeypatch.delenv(name, raising=False)
    training = train(*PROCESSES, "train.steps=1024")
    assert training.finish()[0] == 0
    assert (training.run / "curve.png").exists()
    assert list(home.rglob("*")) == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["faulty.py", "home", "run", "run.yaml", "tmp"]


@pytest.mark.parametrize("method", ["reset", "__init__"])
def test_an_environment_that_hangs_before_training_is_given_up(train, tmp_path, method):
    """Within the limit of 1 s, 5 s to react and the start of the program."""
    (tmp_path / "stuck.py").write_text(
        "import time\nfrom faulty import Faulty\n\n\nclass Stuck(Faulty):\n"
        f"    def {method}(self, *args, **kwargs):\n        time.sleep(3600)\n"
    )
    code, _, err = train("runtime.env_seconds=1", config={"env": {"id": "stuck.py:Stuck"}}).finish(timeout=30)
    assert code == 1
    assert "runtime.env_seconds=1" in err.splitlines()[-1]
    assert "time.sleep(3600)" in err or "stuck.py" in err, "its stack is shown"


@pytest.mark.parametrize("ending", ["interrupted", "killed"])
def test_what_an_environment_detached_does_not_outlive_the_run(train, tmp_path, ending):
    (tmp_path / "detaching.py").write_text(
        "import os, subprocess\nfrom faulty import Faulty\n\n\nclass Detaching(Faulty):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        if 'ROLLMILL_RUN' in os.environ:\n"
        "            subprocess.Popen(['sleep', '1000'], start_new_session=True, stdout=-3, stderr=-3)\n"
    )
    env = {"id": "detaching.py:Detaching", "groups": 2, "group_size": 1}
    training = train(*PROCESSES, config={"env": env, "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 32}})
    training.wait_for_updates()
    sleepers = [p for p in training.family() if p.name() == "sleep"]
    assert len(sleepers) == 2
    training.process.send_signal(signal.SIGINT if ending == "interrupted" else signal.SIGKILL)
    training.finish(timeout=20)
    assert not gone(sleepers)
