"""`rollmill retrace`: runs of every kind lead to the same parameters again, and a log that lies is found out."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import rollmill
from rollmill.cli import main
from rollmill.errors import Detected
from rollmill.events import Updated
from rollmill.experiment import Experiment
from rollmill.flight.log import FlightWriter
from rollmill.flight.records import MAGIC, HashEntry, Note, UpdateEntry, chained, read_flight
from rollmill.settings import load_config

DRIVER = Path(__file__).parents[1] / "faults" / "driver.py"
OBSERVE = {"baseline_seconds": 0.1, "final_episodes": 0, "curve": False, "console": "none", "flight_hash_every": 5}
APPO = {"name": "appo", "unroll": 8, "unrolls": 2, "in_flight": 2, "epochs": 1, "minibatch": 32}
PPO = {"name": "ppo", "unroll": 8, "epochs": 2, "minibatch": 16}
CARTPOLE = {"id": "CartPole-v1", "groups": 3, "group_size": 4}
SMALL_CNN = {"torso": "cnn", "conv": [[4, 8, 4], [8, 4, 4]], "features": 16}
CASES = {
    "cartpole": {"env": CARTPOLE, "algorithm": APPO},
    "memory": {
        "env": {"id": "probe/memory-cue", "groups": 3, "group_size": 4},
        "algorithm": APPO,
        "model": {"memory": "gru", "memory_size": 8},
    },
    "pong": {
        "env": {"id": "ALE/Pong-v5", "groups": 3, "group_size": 2, "time_limit": 30, "atari": {"sticky": 0.25}},
        "algorithm": APPO,
        "model": SMALL_CNN,
    },
    "doom": {
        "env": {"id": "doom/basic", "groups": 3, "group_size": 2},
        "algorithm": APPO,
        "model": {**SMALL_CNN, "memory": "gru", "memory_size": 8},
    },
    "ppo": {"env": CARTPOLE, "algorithm": {**PPO, "anneal_learning_rate": True}},
    "vpg": {"env": {**CARTPOLE, "group_size": 2}, "algorithm": {"name": "vpg"}},
}
WORKERS = {"kind": "processes", "workers": 2}


def config_of(case, steps, runtime=WORKERS, **changes):
    sections = {"train": {"steps": steps}, "runtime": runtime, "observe": OBSERVE, "checkpoint": {"updates": 4}}
    return {**CASES[case], **sections, **changes}


def train(case, steps, folder, runtime=WORKERS, **changes):
    """The folder of a run that has ended well."""
    return rollmill.train(config_of(case, steps, runtime, **changes), run=folder / case).path


@pytest.fixture
def retrace(capsys):
    """`rollmill retrace … --json`: the exit code, the record and what is on stderr."""

    def run(path, *words):
        capsys.readouterr()
        code = main(["retrace", str(path), "--json", *map(str, words)])
        out, err = capsys.readouterr()
        return code, json.loads(out) if out else None, err.strip()

    return run


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    """A run of 40 updates in which unrolls of one actor meet in an update, and some are late."""
    path = train("cartpole", 40 * 64, tmp_path_factory.mktemp("asynchronous"))
    entries = [entry for entry in read_flight(path / "flight.log").entries if isinstance(entry, UpdateEntry)]
    assert len(entries) == 40
    assert any(unroll.ticket.version < entry.update - 1 for entry in entries for unroll in entry.unrolls)
    return path


@pytest.fixture
def copy(asynchronous, tmp_path):
    """A copy of that run, to be tampered with."""
    shutil.copytree(asynchronous, tmp_path / "copy", symlinks=True)
    return tmp_path / "copy"


def tamper(run, change):
    """Change the entries of a log, as an attacker does who computes valid checksums."""
    entries = list(read_flight(run / "flight.log").entries)
    change(entries)
    (run / "flight.log").write_bytes(MAGIC + chained([entry.pack() for entry in entries], 0)[0])
    summary = json.loads((run / "summary.json").read_text())
    for point in summary["resumed"]:
        point.pop("flight_mark", None)  # the checksum of a record that may be another one now
    (run / "summary.json").write_text(json.dumps(summary))


def place_of(entries, update):
    return next(n for n, e in enumerate(entries) if isinstance(e, UpdateEntry) and e.update == update)


def check_equal(outcome, run):
    """All of the log was retraced, to the parameters with which the run ended."""
    code, record, err = outcome
    assert (code, err, record["status"]) == (0, "", "equal"), record
    summary = json.loads((run / "summary.json").read_text())
    assert record["updates"] == record["updates_in_log"] == summary["updates"]
    assert record["env_steps"] == summary["env_steps"]
    assert record["parameters_sha256"] == summary["parameters_sha256"]
    assert record["is_in_summary"]
    assert record["hashes"] >= summary["updates"] // 5
    assert not record["ends"]


def test_an_asynchronous_run_leads_to_the_same_parameters_again(asynchronous, retrace):
    before = {path: path.read_bytes() for path in asynchronous.rglob("*") if path.is_file()}
    check_equal(retrace(asynchronous), asynchronous)
    assert before == {path: path.read_bytes() for path in asynchronous.rglob("*") if path.is_file()}


def made_elsewhere(entries):
    begun = entries[0]
    numerics = {**begun.facts["numerics"], "fingerprint": "of another machine"}
    entries[0] = Note("begun", 0, {**begun.facts, "numerics": numerics})


def test_a_run_made_where_numbers_round_differently_is_announced_with_the_remedy(copy, retrace, capsys):
    tamper(copy, made_elsewhere)
    code, record, err = retrace(copy, "--until", 2)
    assert (code, err, record["cause"]) == (0, "", "")  # it was made here after all
    (warning,) = record["warnings"]
    assert "will likely diverge; run it on the kind of CPU that made it, or train with runtime.numerics=port" in warning
    assert main(["retrace", str(copy), "--until", "2"]) == 0
    assert warning in " ".join(capsys.readouterr().out.split())


def test_when_it_then_diverges_the_verdict_says_why(copy, retrace):
    def change(entries):
        made_elsewhere(entries)
        entries[place_of(entries, 3)] = replace(entries[place_of(entries, 3)], learned=1)

    tamper(copy, change)
    code, record, _ = retrace(copy)
    assert (code, record["divergence"]["update"]) == (1, 3)
    assert "rounds differently" not in record["divergence"]["why"]
    assert record["cause"].startswith("it was made where numbers round differently; run it on the kind of CPU")


def test_a_log_without_a_fingerprint_claims_nothing(copy, retrace):
    def change(entries):
        facts = {name: value for name, value in entries[0].facts.items() if name != "numerics"}
        entries[0] = Note("begun", 0, facts)

    tamper(copy, change)
    assert retrace(copy, "--until", 1)[1]["warnings"] == []


@pytest.mark.parametrize(
    ("case", "runtime"),
    [
        pytest.param("memory", {"kind": "serial"}, id="memory"),
        pytest.param("ppo", {"kind": "serial"}, id="ppo"),
        pytest.param("vpg", {"kind": "serial"}, id="vpg"),
        pytest.param("cartpole", {**WORKERS, "roles": "central"}, id="central", marks=pytest.mark.slow),
        pytest.param("cartpole", {**WORKERS, "roles": "split"}, id="split", marks=pytest.mark.slow),
        pytest.param("pong", WORKERS, id="pong", marks=pytest.mark.slow),
        pytest.param("doom", WORKERS, id="doom", marks=pytest.mark.slow),
    ],
)
def test_every_kind_of_run_is_retraced(case, runtime, tmp_path, retrace):
    path = train(case, 400, tmp_path, runtime)
    check_equal(retrace(path), path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    ["cartpole", *(pytest.param(case, marks=pytest.mark.prove) for case in ("memory", "doom", "pong"))],  # see chaos
)
def test_a_run_whose_workers_and_main_process_were_killed_is_retraced(case, tmp_path, retrace):
    config, run = tmp_path / "config.json", tmp_path / "run"
    updates = 200 if case == "cartpole" else 60
    config.write_text(json.dumps(config_of(case, updates * 2 * 8 * CASES[case]["env"]["group_size"])))
    first = [f"{updates // 10}:worker.0:0", f"{updates * 2 // 3}:main:0"]
    for orders, code in [(first, -signal.SIGKILL), ([f"{updates * 3 // 4}:worker.1:0"], 0)]:
        words = [sys.executable, str(DRIVER), str(run), str(config), *orders]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert ended.returncode == code, ended.stdout + ended.stderr
        assert ended.stdout.count("killing") == len(orders)
    notes = [entry.kind for entry in read_flight(run / "flight.log").entries if isinstance(entry, Note)]
    assert notes.count("begun") == 2
    assert "replaced" in notes
    check_equal(retrace(run), run)


def test_a_run_that_began_with_weights_of_another_is_retraced(asynchronous, tmp_path, retrace):
    run = rollmill.train(config_of("cartpole", 300, {"kind": "serial"}), run=tmp_path / "run", start_from=asynchronous)
    check_equal(retrace(run.path), run.path)
    (run.path / "initial.safetensors").unlink()
    code, record, _ = retrace(run.path)
    assert (code, record["divergence"]["update"]) == (1, 1)


@pytest.mark.slow
def test_a_run_that_was_done_and_continued_with_other_settings_is_retraced(tmp_path, retrace):
    # pictures, because only the gradients of convolutions depend on the number of threads
    env = {"id": "ALE/Pong-v5", "groups": 2, "group_size": 8}
    algorithm = {"name": "ppo", "unroll": 8, "epochs": 1, "minibatch": 64, "anneal_learning_rate": True}
    path = train("pong", 256, tmp_path, {"kind": "serial"}, env=env, algorithm=algorithm)
    rollmill.resume(path, **{"train.steps": 512, "runtime.threads.learner": 2})
    begun = [e for e in read_flight(path / "flight.log").entries if isinstance(e, Note) and e.kind == "begun"]
    told = [(note.update, note.facts["target_steps"], note.facts["learner_threads"]) for note in begun]
    assert told == [(0, 256, 1), (2, 512, 2)]
    check_equal(retrace(path), path)
    without_threads = replace(begun[1], facts={**begun[1].facts, "learner_threads": 1})
    tamper(path, lambda entries: entries.__setitem__(entries.index(begun[1]), without_threads))
    code, record, _ = retrace(path)
    assert (code, record["divergence"]["update"]) == (1, 3)
    without_steps = replace(begun[1], facts={**begun[1].facts, "target_steps": 2000})
    tamper(path, lambda entries: entries.__setitem__(entries.index(without_threads), without_steps))
    code, record, _ = retrace(path)
    assert (code, record["divergence"]["update"]) == (1, 3)


@pytest.mark.parametrize("is_wanted", [False, True], ids=["not wanted", "not writable"])
def test_a_run_that_continued_without_its_log_is_retraced_as_far_as_the_log_goes(
    is_wanted, tmp_path, monkeypatch, retrace
):
    """The log continues to update 20, the run was resumed after 12 and diverged from there."""
    path = train("cartpole", 20 * 64, tmp_path, {"kind": "serial"})
    for name in ("000000016", "000000020"):
        shutil.rmtree(path / "checkpoints" / name)
    with monkeypatch.context() as patched:
        if is_wanted:
            patched.setattr(FlightWriter, "_open", refuse_to_open)
        resumed = rollmill.resume(path, **{"train.steps": 18 * 64, "observe.flight_log": is_wanted})
    assert resumed.summary["updates"] == 18
    assert resumed.summary["resumed"] == [{"update": 12, "env_steps": 12 * 64, "flight_mark": None}]
    code, record, err = retrace(path)
    assert (code, record["status"], record["updates"], record["is_in_summary"]) == (1, "damaged", 12, False)
    left = f"{path}/flight.log: the run was resumed after update 12 without it, and its log ends there"
    assert err == f"rollmill: {left}; the 12 updates before it are equal"

    rollmill.resume(path, **{"train.steps": 24 * 64, "observe.flight_log": True})
    code, again, err = retrace(path)
    assert (code, again["updates"], err) == (1, 12, f"rollmill: {left}; the 12 updates before it are equal")


def refuse_to_open(self, path):
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_log_that_is_longer_than_the_run_is_of_another_one(copy, retrace):
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "updates": 39}))
    code, record, err = retrace(copy)
    assert (code, record["status"], record["divergence"]["update"]) == (1, "diverged", 40)
    assert err == "rollmill: diverged at update 40: field updates: the run ended after 39, by its summary.json"


FAILING = """
import gymnasium as gym
import numpy as np

class Failing(gym.Env):
    '''Fails for good when it has made some steps, at the same place in every episode that gets so far.'''
    observation_space = gym.spaces.Box(-10, 10, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, lucky=0.8):
        self.lucky = lucky

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.fails_at = 0, 3 + int(self.np_random.integers(20)) if self.np_random.random() > self.lucky else 99
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        if self.t == self.fails_at:
            raise RuntimeError("out of order")
        return np.full(2, self.t / 10, np.float32), float(action), False, self.t >= 20, {}
"""


def test_a_run_with_environments_that_failed_is_retraced(tmp_path, monkeypatch, retrace):
    (tmp_path / "failing_to_retrace.py").write_text(FAILING)
    monkeypatch.chdir(tmp_path)
    path = train("cartpole", 500, tmp_path, {"kind": "serial"}, env={**CARTPOLE, "id": "failing_to_retrace.py:Failing"})
    assert json.loads((path / "summary.json").read_text())["failures"]["environments"] > 0
    check_equal(retrace(path), path)


FORGETFUL = """
from pathlib import Path
import gymnasium as gym
import numpy as np

class Forgetful(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, marker):
        self.odd = 2 if Path(marker).exists() else 0  # the first episode can't be brought back then

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.odd -= 1
        self.t, self.pace = 0, float(self.np_random.random())
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.t * self.pace + (self.odd > 0), np.float32), float(action), False, self.t >= 30, {}
"""


def test_running_episodes_that_a_resumed_run_lost_are_given_up_in_the_same_place(tmp_path, monkeypatch, retrace):
    (tmp_path / "forgetful_to_retrace.py").write_text(FORGETFUL)
    monkeypatch.chdir(tmp_path)
    env = {**CARTPOLE, "id": "forgetful_to_retrace.py:Forgetful", "args": {"marker": "marker"}}
    path = train("cartpole", 400, tmp_path, {"kind": "serial"}, env=env)
    (tmp_path / "marker").touch()
    rollmill.resume(path, **{"train.steps": 800})
    (tmp_path / "marker").unlink()
    lost = [e for e in read_flight(path / "flight.log").entries if isinstance(e, Note) and e.kind == "lost"]
    assert lost
    check_equal(retrace(path), path)
    tamper(path, lambda entries: entries.remove(lost[0]))
    code, record, _ = retrace(path)
    assert (code, record["divergence"]["actor"]) == (1, lost[0].facts["actor"])


def test_a_run_that_is_still_training_is_retraced_as_far_as_its_log_goes(tmp_path, retrace):
    experiment = Experiment(
        load_config(config_of("cartpole", 10**9, {"kind": "serial"})), tmp_path / "run", observers=[]
    )
    events = experiment.run()
    updates = (event for event in events if isinstance(event, Updated))
    for _ in range(6):
        next(updates)
    code, record, err = retrace(tmp_path / "run")
    assert (code, err, record["status"]) == (0, "", "equal")
    assert record["updates"] >= 6
    assert any("still running" in warning for warning in record["warnings"])
    events.close()
    (tmp_path / "run" / "summary.json").write_text(json.dumps(experiment.summary))
    check_equal(retrace(tmp_path / "run"), tmp_path / "run")


@pytest.mark.parametrize("words", [("--until", 7), ("--until", 40), ("--until", 1)], ids=str)
def test_until(asynchronous, retrace, words):
    code, record, _ = retrace(asynchronous, *words)
    assert (code, record["updates"], record["hashes"]) == (0, words[1], words[1] // 5)
    assert record["is_in_summary"] == (words[1] == 40)


# Forged records with valid checksums: each is reported at its update, actor and unroll.


def lie_about(update, unroll=0, **changes):
    def change(entries):
        place = place_of(entries, update)
        unrolls = list(entries[place].unrolls)
        ticket = unrolls[unroll].ticket
        for key, by in changes.items():
            ticket = ticket._replace(**{key: getattr(ticket, key) + by})
        unrolls[unroll] = unrolls[unroll]._replace(ticket=ticket)
        entries[place] = replace(entries[place], unrolls=tuple(unrolls))

    return change


def lie_about_checksum(update, unroll, field):
    def change(entries):
        place = place_of(entries, update)
        unrolls = list(entries[place].unrolls)
        sums = list(unrolls[unroll].checksums)
        sums[field] ^= 1 << 17
        unrolls[unroll] = unrolls[unroll]._replace(checksums=tuple(sums))
        entries[place] = replace(entries[place], unrolls=tuple(unrolls))

    return change


def lie_about_result(update):
    def change(entries):
        place = place_of(entries, update)
        entries[place] = replace(entries[place], learned=entries[place].learned ^ 1)

    return change


def lie_about_hash(update):
    def change(entries):
        place = next(n for n, e in enumerate(entries) if isinstance(e, HashEntry) and e.update == update)
        entries[place] = replace(entries[place], sha256="00" + entries[place].sha256[2:])

    return change


def swap(update):
    def change(entries):
        place = place_of(entries, update)
        entries[place] = replace(entries[place], unrolls=tuple(reversed(entries[place].unrolls)))

    return change


def leave_out(update):
    def change(entries):
        place = place_of(entries, update)
        entries[place] = replace(entries[place], unrolls=entries[place].unrolls[1:])

    return change


LIES = {
    "an older version": (lie_about(21, version=-1), 21, {"action", "records"}),
    "a version to come": (lie_about(21, version=30), 21, {"version"}),
    "another actor": (lie_about(21, actor=5), 21, {"actor"}),
    "another sequence": (lie_about(21, unroll=1, sequence=1), 21, {"sequence"}),
    "a checksum of actions": (lie_about_checksum(33, 1, 1), 33, {"action"}),
    "a checksum of states": (lie_about_checksum(1, 0, 5), 1, {"state"}),
    "what was learned": (lie_about_result(17), 17, {"metrics"}),
    "a hash": (lie_about_hash(25), 25, {"parameters_sha256"}),
    "the order of two unrolls": (swap(19), 19, {"metrics", "sequence"}),
    "an unroll left out": (leave_out(23), 23, {"unrolls", "sequence"}),
    "the last update": (lie_about_result(40), 40, {"metrics"}),
}


@pytest.mark.parametrize("name", LIES)
def test_a_forged_record_is_reported_where_it_is(name, copy, retrace):
    lie, update, fields = LIES[name]
    truth = {e.update: e for e in read_flight(copy / "flight.log").entries if isinstance(e, UpdateEntry)}
    tamper(copy, lie)
    told = {e.update: e for e in read_flight(copy / "flight.log").entries if isinstance(e, UpdateEntry)}
    code, record, err = retrace(copy)
    assert (code, record["status"]) == (1, "diverged")
    found = record["divergence"]
    assert found["update"] == update
    assert record["updates"] == update - 1 or found["field"] in ("metrics", "parameters_sha256")
    assert found["field"] in fields
    assert len(err.splitlines()) == 1
    assert err.startswith(f"rollmill: diverged at update {update}: ")
    assert found["field"] in err
    if found["actor"] is not None:
        wrong = [b.ticket for a, b in zip(truth[update].unrolls, told[update].unrolls, strict=False) if a != b]
        assert (found["actor"], found["unroll"]) in {ticket[:2] for ticket in wrong}
        assert f"actor {found['actor']}, unroll {found['unroll']}" in err


def test_entries_that_are_packed_again_make_the_same_log(copy):
    before = (copy / "flight.log").read_bytes()
    tamper(copy, lambda entries: None)
    assert (copy / "flight.log").read_bytes() == before


def test_a_forged_record_after_until_is_not_read(copy, retrace):
    tamper(copy, lie_about(21, unroll=1, sequence=1))
    assert retrace(copy, "--until", 20)[0] == 0


def test_swapped_unrolls_of_a_synchronous_run_are_reported(tmp_path, retrace):
    path = train("ppo", 600, tmp_path, {"kind": "serial"})
    tamper(path, swap(4))
    code, record, _ = retrace(path)
    assert (code, record["divergence"]["update"], record["divergence"]["field"]) == (1, 4, "order")


def test_another_hash_in_the_summary_is_reported(copy, retrace):
    summary = json.loads((copy / "summary.json").read_text())
    (copy / "summary.json").write_text(json.dumps({**summary, "parameters_sha256": "0" * 64}))
    code, record, err = retrace(copy)
    assert (code, record["divergence"]["update"]) == (1, 40)
    assert "in summary.json 0000" in err


def test_a_damaged_byte_is_reported_when_all_before_it_is_retraced(copy, retrace):
    log = copy / "flight.log"
    entries = read_flight(log).entries
    place = len(MAGIC) + len(chained([e.pack() for e in entries[: place_of(entries, 23)]], 0)[0]) + 30
    data = bytearray(log.read_bytes())
    data[place] ^= 4
    log.write_bytes(data)
    code, record, err = retrace(copy)
    assert (code, record["status"], record["updates"]) == (1, "damaged", 22)
    assert "the record after update 22 is damaged" in err
    assert "22 updates before it are equal" in err
    assert retrace(copy, "--until", 22)[0] == 0


def test_a_log_cut_short_is_retraced_as_far_as_it_goes(copy, retrace):
    log = copy / "flight.log"
    entries = read_flight(log).entries
    whole = len(MAGIC) + len(chained([e.pack() for e in entries[: place_of(entries, 9)]], 0)[0])
    log.write_bytes(log.read_bytes()[: whole + 20])
    code, record, err = retrace(copy)
    assert (code, err, record["updates"], record["ends"]) == (0, "", 8, "after update 8 of 40")


def test_a_full_disk_ends_the_log_and_never_the_run(tmp_path, retrace):
    experiment = Experiment(load_config(config_of("cartpole", 900, {"kind": "serial"})), tmp_path / "run", observers=[])
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for event in experiment.run():
            if isinstance(event, Updated) and event.version == 6:  # the next checkpoint is due at 8
                size = (tmp_path / "run" / "flight.log").stat().st_size
                resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, before[1]))
            if isinstance(event, Updated) and event.version == 7:
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert experiment.summary["status"] == "done"
    assert "File too large" in experiment.summary["flight_log"]["lost"]
    (tmp_path / "run" / "summary.json").write_text(json.dumps(experiment.summary))
    code, record, _ = retrace(tmp_path / "run")
    assert (code, record["updates"]) == (0, 6)
    assert f"after update 6 of {experiment.summary['updates']}: flight.log can't be written" in record["ends"]


def test_a_run_without_a_log_is_refused(tmp_path, retrace):
    path = train("ppo", 200, tmp_path, {"kind": "serial"}, observe={**OBSERVE, "flight_log": False})
    assert not (path / "flight.log").exists()
    assert "flight_log" not in json.loads((path / "summary.json").read_text())
    code, _, err = retrace(path)
    assert code == 2
    assert "observe.flight_log=false" in err


def test_bad_input_is_refused_in_one_line(copy, tmp_path, retrace):
    def refused(path, *words):
        code, record, err = retrace(path, *words)
        assert (code, record, len(err.splitlines())) == (2, None, 1)
        return err

    assert "not a run folder" in refused(tmp_path)
    assert "not a run folder" in refused(tmp_path / "nowhere")
    assert "--until 41 is not between 1 and 40" in refused(copy, "--until", 41)
    assert "--until 0 is not between 1 and 40" in refused(copy, "--until", 0)
    (copy / "flight.log").write_bytes(b"rollmill flight log 7\n")
    assert "version 7 and 2 is known here" in refused(copy)
    (copy / "flight.log").write_bytes(b"something else")
    assert "not a flight log" in refused(copy)
    (copy / "flight.log").write_bytes(MAGIC)
    assert "holds no update" in refused(copy)


def test_other_versions_of_packages_are_named_before_anything_else(copy, capsys):
    process = json.loads((copy / "run.json").read_text())
    process["versions"]["torch"] = "1.0"
    (copy / "run.json").write_text(json.dumps(process))
    assert main(["retrace", str(copy), "--until", "2"]) == 0
    first, *others = capsys.readouterr().out.splitlines()
    assert first.startswith("made with torch 1.0 (now ")
    assert any("retraced" in line for line in others)


# The debugger.

SEEN: list[dict] = []


def look():
    """What PYTHONBREAKPOINT names here: takes note of what a debugger would show."""
    SEEN.append(dict(sys._getframe(1).f_locals))


@pytest.fixture
def seen(monkeypatch):
    sys.modules["look_at_retrace"] = sys.modules[__name__]
    monkeypatch.setenv("PYTHONBREAKPOINT", "look_at_retrace.look")
    SEEN.clear()
    yield SEEN
    del sys.modules["look_at_retrace"]


def test_break_opens_the_debugger_before_the_update(asynchronous, retrace, seen):
    code, record, _ = retrace(asynchronous, "--until", 12, "--break")
    assert (code, record["updates"]) == (0, 12)
    (names,) = seen
    assert (names["update"], names["divergence"]) == (12, None)
    assert names["learner"].trainer.updates == 12  # by now; there it was 11
    assert names["batch"]["action"].shape == (8, 8)
    assert names["network"] is names["learner"].trainer.network


def test_break_opens_the_debugger_where_the_run_diverges(copy, retrace, seen):
    tamper(copy, lie_about_checksum(9, 0, 2))
    code, _, err = retrace(copy, "--break")
    assert code == 1
    (names,) = seen
    assert names["update"] == 9
    assert str(names["divergence"]) in err
    assert names["batch"]["reward"].shape == (8, 8)
    tamper(copy, lie_about_result(5))
    assert retrace(copy, "--break")[0] == 1
    assert (seen[1]["update"], seen[1]["batch"]["reward"].shape) == (5, (8, 8))


EXPLODING = """
import gymnasium as gym
import numpy as np

class Exploding(gym.Env):
    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.t, np.float32), float("nan") if self.t == 30 else 1.0, False, self.t >= 40, {}
"""


def test_break_opens_the_debugger_before_the_update_that_ended_the_run(tmp_path, monkeypatch, retrace, seen):
    (tmp_path / "exploding_to_retrace.py").write_text(EXPLODING)
    monkeypatch.chdir(tmp_path)
    env = {**CARTPOLE, "id": "exploding_to_retrace.py:Exploding"}
    with pytest.raises(Detected):
        train("ppo", 10_000, tmp_path, {"kind": "serial"}, env=env)
    path = tmp_path / "ppo"
    code, record, _ = retrace(path)  # the NaN is in step 30, and an unroll has 8
    assert (code, record["updates"]) == (0, 3)
    assert "in update 4, which ended the run" in record["ends"]
    code, record, _ = retrace(path, "--break")
    assert code == 0
    assert "update 4" in record["failure"]
    (names,) = seen
    assert names["update"] == 4
    assert names["batch"]["reward"].isnan().any()


def test_a_run_that_its_first_update_ended_has_nothing_to_retrace_before_it(tmp_path, monkeypatch, retrace):
    (tmp_path / "exploding_at_once.py").write_text(EXPLODING)
    monkeypatch.chdir(tmp_path)
    env = {**CARTPOLE, "id": "exploding_at_once.py:Exploding"}
    with pytest.raises(Detected):  # the NaN is in step 30
        train("ppo", 10_000, tmp_path, {"kind": "serial"}, env=env, algorithm={**PPO, "unroll": 32})
    path = tmp_path / "ppo"
    code, record, _ = retrace(path)
    assert (code, record["updates"], record["failure"]) == (0, 0, "")
    assert "in update 1, which ended the run" in record["ends"]
    assert record["is_in_summary"], "the weights are those that it began with"
    code, record, _ = retrace(path, "--until", 1)
    assert (code, record["updates"]) == (0, 0)
    assert "update 1 ends as it ended the run" in record["failure"]


def test_an_edited_config_is_refused_by_name(copy, retrace):
    file = copy / "config.yaml"
    text = file.read_text()
    rate = load_config(file).config.algorithm.learning_rate
    file.write_text(text.replace(f"  learning_rate: {rate}", "  learning_rate: 0.0077"))
    code, record, err = retrace(copy)
    assert (code, record) == (2, None)
    assert f"algorithm.learning_rate is 0.0077 in config.yaml but {rate} in " in err
    assert len(err.splitlines()) == 1
    file.write_text(text.replace("workers: 2", "workers: 1"))
    assert retrace(copy, "--until", 2)[0] == 0, "where it runs is no part of what it is"


@pytest.mark.slow
def test_the_debugger_may_be_left(asynchronous):
    words = [sys.executable, "-m", "rollmill", "retrace", str(asynchronous), "--until", "3", "--break"]
    ended = subprocess.run(words, input="p 'update', update\nq\n", capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    assert "('update', 3)" in ended.stdout
    assert "retraced    2 of 40 updates" in ended.stdout


@pytest.mark.slow
def test_control_c_ends_it_with_130(asynchronous):
    process = subprocess.Popen(
        [sys.executable, "-m", "rollmill", "retrace", str(asynchronous), "--until", "3", "--break"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONBREAKPOINT": "signal.pause"},
    )
    assert process.stdout.readline() == "retracing: 3 updates\n"
    assert "before update 3" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, ""), out
    assert out == "interrupted; equal up to update 2\n"
