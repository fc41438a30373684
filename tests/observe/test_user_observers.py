"""Users' observers: called in order with the right progress, refused when wrong, and never a burden on the run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import hooks_parts
import psutil
import pytest

import rollmill
from rollmill.cli import main
from rollmill.config.yaml_text import written
from rollmill.errors import Refused
from rollmill.events import Progress, Updated, WorkerReplaced
from rollmill.experiment import Experiment, load_config
from rollmill.observe.calls import call

PARTS = str(Path(hooks_parts.__file__))
BASE = {
    "seed": 7,
    "env": {"id": "CartPole-v1", "groups": 4, "group_size": 2},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 64, "epochs": 2},
    "train": {"steps": 640},  # 5 updates of 128 steps
    "observe": {"console": "none", "tensorboard": False, "curve": False, "final_episodes": 0, "baseline_seconds": 0.1},
}


def observed(*observers, **changes):
    return {**BASE, "observe": {**BASE["observe"], "observers": list(observers), **changes}}


def entry(name, **settings):
    return {"path": f"{PARTS}:{name}", **settings}


def patient(name, **settings):
    """One that loses nothing, however slow the machine is."""
    return entry(name, overflow="block", **settings)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    run = rollmill.train(BASE, run=tmp_path_factory.mktemp("undisturbed") / "run")
    return run.summary["parameters_sha256"]


@pytest.mark.parametrize(
    ("runtime", "where"),
    [("serial", "thread"), ("serial", "process"), pytest.param("processes", "process", marks=pytest.mark.slow)],
)
def test_every_hook_is_called_in_order_with_the_progress_of_its_moment(tmp_path, runtime, where, undisturbed):
    config = observed(patient("Diary", where=where))
    run = rollmill.train(config, run=tmp_path / "run", **{"runtime.kind": runtime, "runtime.workers": 2})
    calls = json.loads((run.path / "diary.json").read_text())
    hooks = [call["hook"] for call in calls]
    assert hooks[:3] == ["init", "start", "checkpoint"]
    assert hooks[-1] == "stop"
    assert hooks[-2] == "checkpoint", "the final one"
    assert all(call["exists"] for call in calls if call["hook"] == "checkpoint")
    assert calls[0]["target"] == 640
    assert (calls[0]["pid"] == os.getpid()) == (where == "thread")
    assert calls[1]["title"] == "ppo on CartPole-v1"
    for update in range(1, 6):
        of_update = [call for call in calls if call["updates"] == update and call["hook"] not in ("checkpoint", "stop")]
        names = [call["hook"] for call in of_update if call["hook"] != "episode"]
        assert names == ["trajectory"] * 4 + ["training_step"], "an update's unrolls come before it"
        assert {call["steps"] for call in of_update} == {128 * update}
        assert {call["fraction"] for call in of_update} == {128 * update / 640}
        unrolls = [call for call in of_update if call["hook"] == "trajectory"]
        tickets = [(call["actor"], call["sequence"], call["version"], call["update"]) for call in unrolls]
        assert tickets == [(actor, update - 1, update - 1, update) for actor in range(4)]
        assert {call["rewards"] for call in unrolls} == {32.0}, "16 steps × 2 environments × reward 1"
        assert not any(call["is_writeable"] for call in unrolls)
        step = of_update[-1]
        assert step["version"] == update
        assert step["has_metrics"]
    episodes = [call for call in calls if call["hook"] == "episode"]
    assert len(episodes) == calls[-1]["episodes"] == run.summary["episodes"] > 10
    assert all(call["raw_return"] == call["length"] for call in episodes), "CartPole pays 1 a step"
    assert calls[-1]["status"] == "done"
    counts = run.summary["observers"]["Diary"]
    events = len(calls) - len(episodes) + len({call["updates"] for call in episodes})  # one event for an update's all
    assert counts["delivered"] == events
    assert counts["dropped"] == counts["errors"] == counts["detached"] == 0
    assert run.summary["parameters_sha256"] == undisturbed
    if where == "process":
        assert not psutil.pid_exists(calls[0]["pid"]), "it does not outlive the run"


def test_observers_from_python_come_beside_those_of_the_config_and_the_standard_ones(tmp_path):
    passed, other = hooks_parts.Diary("passed.json"), hooks_parts.Diary("other.json")
    passed.overflow = other.overflow = "block"
    run = rollmill.train(observed(entry("Diary")), run=tmp_path / "run", observers=[passed, other])
    files = ["diary.json", "passed.json", "other.json", "metrics.jsonl", "summary.json"]
    assert [name for name in files if not (run.path / name).exists()] == []
    written = json.loads((run.path / "summary.json").read_text())["observers"]
    assert {"Diary", "Diary-2", "Diary-3", "summary", "jsonl"} <= set(written)
    assert passed.calls[-1]["hook"] == "stop"


class Scribbler(rollmill.Hooks):
    """Writes into all that it gets."""

    def on_training_step(self, progress, version, metrics):
        metrics.clear()

    def on_stop(self, progress, status, summary):
        summary["returns"]["mean_100"] = 1e9
        summary.clear()


def test_what_an_observer_writes_into_what_it_gets_is_seen_by_nobody_else(tmp_path):
    run = rollmill.train(observed(), run=tmp_path / "run", observers=[Scribbler()])
    assert run.summary["observers"]["Scribbler"]["errors"] == 0
    kept = json.loads((run.path / "summary.json").read_text())
    assert kept["returns"]["mean_100"] == run.summary["returns"]["mean_100"] < 1e3
    updated = Updated(Progress(), 1, {"loss": 0.5})
    call(Scribbler(), updated)
    assert updated.metrics == {"loss": 0.5}


def test_an_interrupted_run_ends_its_observers_too(tmp_path):
    diary = hooks_parts.Diary()
    experiment = Experiment(load_config(BASE), tmp_path / "run", hooks=[diary])
    for event in experiment.run():
        if event.progress.updates == 2:
            experiment.stop()
    assert diary.calls[-1]["hook"] == "stop"
    assert diary.calls[-1]["status"] == "interrupted"


def test_a_resumed_run_finds_its_observers_again(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(Path(PARTS).read_text())
    config = {**observed({"path": "mine.py:Diary"}), "train": {"steps": 256}}
    monkeypatch.chdir(tmp_path)
    run = rollmill.train(config, run=tmp_path / "run")
    monkeypatch.chdir(Path(__file__).parent)
    rollmill.resume(run.path, **{"train.steps": 512})
    calls = json.loads((run.path / "diary.json").read_text())
    begun = [(call["hook"], call["steps"], call["updates"]) for call in calls[:2]]
    assert begun == [("init", 256, 2), ("start", 256, 2)]
    assert calls[-1]["steps"] == 512


@pytest.mark.slow
def test_a_worker_that_was_killed_is_told_to_observers_and_the_slots_they_hold_stay_good(tmp_path, undisturbed):
    config = load_config(observed(patient("Diary")), {"runtime.kind": "processes", "runtime.workers": 2})
    experiment = Experiment(config, tmp_path / "run")
    killed = False
    replaced = 0
    for event in experiment.run():
        replaced += isinstance(event, WorkerReplaced)
        if event.progress.updates >= 2 and not killed:
            killed = True
            log = tmp_path / "run/logs/actor.0.log"
            deadline = time.monotonic() + 30
            while not (log.is_file() and "process " in log.read_text()):  # an observer writes it in its own time
                assert time.monotonic() < deadline
                time.sleep(0.01)
            line = next(line for line in log.read_text().splitlines() if "process " in line)
            os.kill(int(line.split("process ")[1].split(",")[0]), 9)
    assert replaced == 1
    calls = json.loads((tmp_path / "run/diary.json").read_text())
    failures = [(call["place"], call["is_replaced"]) for call in calls if call["hook"] == "worker_failure"]
    assert failures == [("worker.0", True)]
    assert sum(call["hook"] == "trajectory" for call in calls) == 20
    assert experiment.summary["parameters_sha256"] == undisturbed


@pytest.mark.parametrize(
    ("runtime", "overflow"),
    [
        ("serial", "drop"),
        ("serial", "block"),
        pytest.param("processes", "drop", marks=pytest.mark.slow),
    ],
)
def test_a_burden_changes_nothing_is_counted_and_named(tmp_path, runtime, overflow, undisturbed, capfd):
    names = ("Sleeper", "Raiser", "Flooder")
    config = observed(*(entry(name, overflow=overflow, capacity=4) for name in names))
    run = rollmill.train(config, run=tmp_path / "run", **{"runtime.kind": runtime, "runtime.workers": 2})
    assert run.status == "done"
    assert run.summary["parameters_sha256"] == undisturbed
    counts = json.loads((run.path / "summary.json").read_text())["observers"]
    sleeper, raiser, flooder = (counts[name] for name in names)
    assert (sleeper["dropped"] > 0) == (overflow == "drop")
    assert raiser["errors"] >= 3
    assert raiser["detached"] == 1
    assert raiser["first_error"].startswith("Raiser.on_trajectory: ValueError: no such luck (hooks_parts.py, line ")
    assert flooder["errors"] == 0
    for record in (sleeper, raiser, flooder):
        offered = record["delivered"] + record["dropped"] + record["errors"]
        assert offered == 25 or record["detached"], "5 updates × (4 unrolls + 1 update)"
        assert 0 < record["handover_seconds"] < run.summary["throughput"]["seconds"] + 60
        assert record["handover_share"] > 0
        assert record["blocked_seconds"] == 0 or overflow == "block"
    assert main(["show", str(run.path)]) == 0
    shown = next(line for line in capfd.readouterr().out.splitlines() if line.strip().startswith("observers"))
    assert "Sleeper (" in shown or overflow == "block"
    assert "Raiser (" in shown
    assert "ValueError: no such luck" in shown


def test_an_observer_that_holds_the_run_up_is_named_though_nothing_is_lost(tmp_path, capfd):
    run = rollmill.train(observed(patient("Sleeper", capacity=4)), run=tmp_path / "run")
    record = run.summary["observers"]["Sleeper"]
    assert (record["delivered"], record["dropped"], record["cut_off"]) == (25, 0, 0)
    assert record["blocked_seconds"] > 0.5, "25 events × 0.05 s, most of it waited for"
    assert main(["show", str(run.path)]) == 0
    shown = next(line for line in capfd.readouterr().out.splitlines() if line.strip().startswith("observers"))
    assert re.search(r"Sleeper \(held the run up for \d\.\d s, \d+ % of the time\)", shown)


def test_an_observer_that_hangs_at_the_end_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("rollmill.observe.dispatcher.Dispatcher.dismiss.__defaults__", (0.3,))
    begun = time.monotonic()
    run = rollmill.train(observed(entry("Sleeper", args={"seconds": 60})), run=tmp_path / "run")
    assert time.monotonic() - begun < 30
    assert run.summary["observers"]["Sleeper"]["detached"] == 1
    assert "busy" in run.summary["observers"]["Sleeper"]["first_error"]


def test_a_run_waits_at_its_end_for_no_longer_than_it_says(tmp_path, monkeypatch):
    monkeypatch.setattr("rollmill.observe.dispatcher.Dispatcher.dismiss.__defaults__", (1.0,))
    config = load_config(observed(patient("Sleeper", args={"seconds": 0.5})))
    experiment = Experiment(config, tmp_path / "run")
    for event in experiment.run():
        if event.progress.updates == 2:
            experiment.stop()
    record = experiment.summary["observers"]["Sleeper"]
    assert record["cut_off"] > 0, "2 updates × (4 unrolls + 1 update) × 0.5 s"
    assert (record["delivered"] + record["cut_off"], record["dropped"], record["detached"]) == (10, 0, 0)


def test_a_hanging_process_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("rollmill.observe.dispatcher.Dispatcher.dismiss.__defaults__", (1.0,))
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    run = rollmill.train(observed(entry("Hanger", where="process")), run=tmp_path / "run")
    assert run.summary["observers"]["Hanger"]["detached"] == 1
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


@pytest.mark.parametrize("where", ["thread", "process"])
def test_an_observer_that_calls_exit_is_counted_like_one_that_raises(tmp_path, where, undisturbed):
    run = rollmill.train(observed(entry("Quitter", where=where)), run=tmp_path / "run")
    record = run.summary["observers"]["Quitter"]
    assert run.status == "done"
    assert run.summary["parameters_sha256"] == undisturbed
    assert (record["errors"], record["detached"]) == (3, 1)
    assert record["first_error"].startswith("Quitter.on_training_step: SystemExit: 0 (hooks_parts.py, line ")


def test_an_observer_whose_process_is_killed_is_counted_and_the_run_goes_on(tmp_path, undisturbed):
    config = observed(entry("Suicide", where="process"))
    run = rollmill.train(config, run=tmp_path / "run")
    record = run.summary["observers"]["Suicide"]
    assert run.summary["parameters_sha256"] == undisturbed
    assert (record["delivered"], record["errors"], record["detached"]) == (2, 1, 1), "init and the first update"
    assert record["first_error"] == "because its process was killed by signal 9"


@pytest.mark.slow
def test_a_process_does_not_outlive_a_run_that_is_killed(tmp_path):
    config = {**observed(entry("Diary", where="process")), "train": {"steps": 10_000_000}}
    (tmp_path / "config.yaml").write_text(written(config))
    command = [sys.executable, "-m", "rollmill", "train", str(tmp_path / "config.yaml"), "--run", str(tmp_path / "run")]
    training = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        helpers = []
        deadline = time.monotonic() + 60
        while not helpers and time.monotonic() < deadline:
            time.sleep(0.2)
            children = psutil.Process(training.pid).children(recursive=True)
            helpers = [child for child in children if "process_observer" in " ".join(child.cmdline()[:4])]
    finally:
        training.kill()
        training.wait()
    assert helpers
    _, alive = psutil.wait_procs(helpers, timeout=10)
    assert not alive


REFUSED = {
    "a file that is missing": ({"path": "nowhere.py:Mine"}, "nowhere.py"),
    "a module that is missing": ({"path": "no_such_module:Mine"}, "no_such_module"),
    "a class that is missing": (entry("Dairy"), "did you mean 'Diary'?"),
    "no hooks": (entry("NoHooks"), f"={PARTS}:NoHooks is not a class derived from rollmill.Hooks; derive it"),
    "no class": (entry("np"), f"={PARTS}:np is not a class derived from rollmill.Hooks"),
    "a misspelt key": ({"pth": f"{PARTS}:Diary"}, "unknown key 'observe.observers[1].pth': did you mean 'path'?"),
    "another key": ({"file": f"{PARTS}:Diary"}, "(and 1 more)"),
    "no colon": ({"path": PARTS}, "must be path/to/file.py:Name"),
    "an unknown overflow": (entry("Diary", overflow="dorp"), "did you mean 'drop'?"),
    "an overflow that was dropped": (entry("Diary", overflow="thin"), "overflow"),
    "a share that was dropped": (entry("Diary", hold_share=0.5), "unknown key 'observe.observers[1].hold_share'"),
    "an unknown place": (entry("Diary", where="proces"), "did you mean 'process'?"),
    "an unknown argument": (entry("Diary", args={"fil": "x"}), "arguments of Diary: file"),
    "an argument that is missing": (entry("Fussy"), "missing a required argument: 'keep'"),
    "an argument that its constructor refuses": (entry("Fussy", args={"keep": 0}), "keep must be positive"),
    "a class with an unknown overflow": (entry("Confused"), "Confused.overflow='explode'"),
    "a misspelt hook": (
        entry("Typo"),
        "Typo.on_epsiode is not a hook, so it would never be called; did you mean 'on_episode'?",
    ),
    "a class without a hook": (entry("Deaf"), "Deaf has no hook"),
    "no room at all": (entry("Diary", capacity=0), "must be ≥ 1"),
    "no path": ({"args": {}}, "path"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_observe_is_refused_in_one_line_before_training(tmp_path, case, capsys):
    wrong, said = REFUSED[case]
    (tmp_path / "config.yaml").write_text(written(observed(entry("Diary"), wrong)))
    assert main(["check", str(tmp_path / "config.yaml")]) == 2
    checked = capsys.readouterr().out
    assert said in checked
    assert "observe.observers[1]" in checked
    assert main(["train", str(tmp_path / "config.yaml"), "--run", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.strip().splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_what_is_passed_from_python_must_be_hooks(tmp_path):
    for wrong in (hooks_parts.NoHooks(), hooks_parts.Diary):
        with pytest.raises(Refused, match=r"observers\[0\]"):
            rollmill.train(BASE, run=tmp_path / "run", observers=[wrong])
    assert not (tmp_path / "run").exists()


def test_a_hook_may_be_an_attribute_of_the_object_and_a_misspelt_one_is_refused_there_too(tmp_path):
    deaf, seen = hooks_parts.Deaf(), []
    deaf.on_stop = lambda progress, status, summary: seen.append(status)
    rollmill.train(BASE, run=tmp_path / "run", observers=[deaf])
    assert seen == ["done"]
    deaf.on_strat = deaf.on_stop
    with pytest.raises(Refused, match=r"observers\[0\]: Deaf.on_strat is not a hook.*'on_start'"):
        rollmill.train(BASE, run=tmp_path / "other", observers=[deaf])
    assert not (tmp_path / "other").exists()


def test_paths_are_relative_to_the_config_file(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text("import rollmill\nclass Mine(rollmill.Hooks):\n    pass\n")
    (tmp_path / "config.yaml").write_text(
        "env: {id: CartPole-v1}\nalgorithm: {name: ppo}\ntrain: {steps: 100}\n"
        "observe: {observers: [{path: 'mine.py:Mine'}]}\n"
    )
    monkeypatch.chdir("/")
    config = load_config(tmp_path / "config.yaml").config
    assert config.observe.observers[0].path == f"{tmp_path / 'mine.py'}:Mine"


def test_the_docs_list_every_array_of_an_unroll(tmp_path):
    class Names(rollmill.Hooks):
        names = frozenset()

        def on_trajectory(self, progress, unroll):
            self.names = frozenset(unroll.arrays)

    names = Names()
    rollmill.train(BASE, run=tmp_path / "run", observers=[names])
    page = (Path(__file__).parents[2] / "docs/observers.md").read_text()
    table = page.split("| Arrays | Shape |")[1].split("\n\n")[0]
    assert names.names
    assert names.names - set(re.findall(r"\w+", table)) == set()


def test_names_of_the_standard_observers_stay_theirs(tmp_path):
    from rollmill.console.standard import default_observers
    from rollmill.observe.config import EvaluateConfig, ObserveConfig
    from rollmill.observe.user_observers import STANDARD

    config = ObserveConfig(evaluate=EvaluateConfig(seconds=60.0), console="lines")
    assert {observer.name for observer in default_observers(tmp_path, config, sys.stdout)} == set(STANDARD)
