"""The processes of Unity builds: ports, deaths, logs, and that nothing of them is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest
from unity_server import write_build

import rollmill
from rollmill.config.yaml_text import written
from rollmill.doctor.restore_trial import EXACT, resume_grade
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
from rollmill.errors import Refused

pytest.importorskip("mlagents_envs", reason="needs the extra 'unity'")

ONE = np.ones(1, bool)
STILL = np.zeros((1, 2), np.float32)


def config(build, group_size=1, **args):
    # with a seed the first build isn't restarted
    args = {"build": str(build), "timeout": 20.0, "seed": 1, **args}
    return EnvConfig(id="unity/build", args=args, group_size=group_size)


def builds(folder):
    """The living processes that were started from executables in a folder."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(word.startswith(str(folder)) for word in words):
            found.append(process)
    return found


def wait_until_none(folder, seconds=5.0):
    deadline = time.monotonic() + seconds
    while builds(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return builds(folder)


def test_closing_ends_the_builds_even_one_that_refuses(tmp_path):
    group = make_group(config(write_build(tmp_path, "unkillable")), 1)
    group.reset(ONE, np.array([0]))
    assert len(builds(tmp_path)) == 1
    group.close()
    assert not builds(tmp_path)
    assert not any(child.status() == psutil.STATUS_ZOMBIE for child in psutil.Process().children())


def test_builds_side_by_side_have_ports_of_their_own_on_loopback_only(tmp_path):
    build = write_build(tmp_path, "vector")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = taken.getsockname()[1]
        groups = [make_group(config(build, port=first, ports=20), 1) for _ in range(2)]
        for group in groups:
            group.reset(ONE, np.array([0]))
        listening = [c.laddr for c in psutil.Process().net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        ours = [address.port for address in listening if first < address.port < first + 20]
        assert len(set(ours)) == 2
        assert all(address.ip.endswith("127.0.0.1") for address in listening)
        for group in groups:
            group.close()


def test_a_port_in_use_is_refused(tmp_path):
    build = write_build(tmp_path, "vector")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Refused, match=f"port {port} is in use; leave env.args.port out"):
            make_group(config(build, port=port - 1, worker_id=1, ports=1), 1)


def test_a_build_that_dies_once_is_started_again_where_it_stood(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    group = make_group(config(write_build(tmp_path, "dies-once"), seed=None), 1)
    group.reset(ONE, np.array([3]))
    start = group.obs[0, 0]
    for t in range(1, 5):
        group.step(STILL, ONE)
        assert group.obs[0].tolist() == [start, t, 0]
    assert [trouble.is_rebuilt for trouble in group.troubles] == [True]
    assert "the build ended with exit code 3" in group.troubles[0].message
    group.close()


def test_a_build_that_always_dies_breaks_its_row_and_its_last_words_are_kept(tmp_path):
    logs = tmp_path / "logs"
    group = make_group(config(write_build(tmp_path, "dies"), log_folder=str(logs)), 1)
    group.reset(ONE, np.array([3]))
    for _ in range(3):
        group.step(STILL, ONE)
    assert group.broken[0]
    assert "exit code 3; env.args.log_folder has its output" in group.troubles[0].message
    group.close()
    assert "the scene falls apart" in "".join(path.read_text() for path in logs.iterdir())


def test_the_log_folder_holds_no_more_than_it_may(tmp_path):
    logs = tmp_path / "logs"
    build = write_build(tmp_path, "loud")
    args = {"log_folder": str(logs), "log_megabytes": 0.016, "parameters": {"length": 1000}}  # 16 pieces of 1000 bytes
    group = make_group(config(build, **args), 2)
    group.reset(np.ones(2, bool), np.array([0, 1]))
    for t in range(60):  # prints 1000 bytes each: 120 000 in all
        group.step(np.zeros(2, np.int64), np.ones(2, bool))
        if t % 10 == 9:
            assert size_of(logs) <= 17_000  # two may open a piece at once
    group.close()
    assert size_of(logs) >= 10_000


def size_of(logs):
    """Bytes of all files; one that is removed at this moment has none."""
    size = 0
    for path in logs.iterdir():
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


def test_a_build_dies_with_its_killed_parent(tmp_path):
    build = write_build(tmp_path, "unkillable")  # doesn't mind that nobody is there any more
    script = f"""
import numpy as np, time
from rollmill.envs.config import EnvConfig
from rollmill.envs.make import make_group
group = make_group(EnvConfig(id="unity/build", args={{"build": {str(build)!r}, "seed": 1}}), 1)
group.reset(np.ones(1, bool), np.array([0]))
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout.readline() == "ready\n"
        assert len(builds(tmp_path)) == 1
        os.kill(parent.pid, signal.SIGKILL)
    assert not wait_until_none(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "grade"),
    [
        ({}, "approximate: env.id=unity/build gives another first observation for the same seed"),
        ({"seed_parameter": "seed"}, EXACT),
        ({"restart": True}, EXACT),
    ],
    ids=["seeded at the start", "seeded by a parameter", "restarted"],
)
def test_the_resume_grade_says_what_the_build_can_promise(tmp_path, args, grade):
    build = write_build(tmp_path, "vector")
    assert resume_grade(config(build, **({"seed": None} | args)), seconds=20.0) == grade
    assert not builds(tmp_path)


@pytest.mark.slow
def test_a_policy_is_trained_on_builds_in_worker_processes(tmp_path):
    build = write_build(tmp_path, "mixed")
    settings = {
        "env": {"id": "unity/build", "args": {"build": str(build)}, "groups": 2, "group_size": 2},
        "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 32},
        "train": {"steps": 128},
        "runtime": {"kind": "processes", "workers": 2},
    }
    (tmp_path / "unity.yaml").write_text(written(settings))
    run = rollmill.train(tmp_path / "unity.yaml", run=tmp_path / "run")
    assert run.status == "done"
    assert len((run.path / "episodes.csv").read_text().splitlines()) > 10  # 128 steps in episodes of 5
    assert not wait_until_none(tmp_path)
