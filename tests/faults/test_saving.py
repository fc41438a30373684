"""Full disks, folders that vanish, damaged checkpoints, dumps, warm starts: nothing is lost without a word."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from chaos import retraced

import rollmill
from rollmill.errors import Detected, Refused
from rollmill.events import Checkpointed, Said, Updated
from rollmill.experiment import Experiment, load_config
from rollmill.learners.optimizer import FlatOptimizer
from rollmill.persist.checkpoints import Checkpoints
from rollmill.persist.run_folder import RunFolder

CONFIG = {
    "env": {"id": "CartPole-v1", "groups": 2, "group_size": 2},
    "algorithm": {"name": "ppo", "unroll": 16, "minibatch": 32, "epochs": 1},
    "train": {"steps": 64 * 20},
    "checkpoint": {"updates": 4},
    "observe": {"baseline_seconds": 0.05, "final_episodes": 0, "console": "none", "curve": False, "log_interval": 0},
}

ASYNC = {**CONFIG, "algorithm": {**CONFIG["algorithm"], "name": "appo", "unrolls": 2, "in_flight": 2}}
BOTH = pytest.mark.parametrize("config", [CONFIG, ASYNC], ids=["sync", "async"])


def expected(run, config, folder):
    """The hash of an undisturbed run; where what is in flight is lost with a process, that to which its log leads."""
    if config is ASYNC:
        return retraced(run)
    return rollmill.train(config, run=folder / "whole").summary["parameters_sha256"]


def test_checkpoint_0_comes_first_and_the_last_one_is_of_the_end(tmp_path):
    experiment = Experiment(load_config(CONFIG), tmp_path / "run")
    made = [event.progress.updates for event in experiment.run() if isinstance(event, Checkpointed)]
    assert made == [0, 4, 8, 12, 16, 20]
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").glob("0*"))
    assert kept[-3:] == ["000000012", "000000016", "000000020"]
    assert (tmp_path / "run" / "checkpoints" / "latest").resolve().name == "000000020"
    account = experiment.summary["checkpoints"]
    assert (account["written"], account["failed"], account["error"]) == (6, 0, None)
    assert experiment.summary["resume_grade"] == "exact"


def test_a_resumed_run_counts_what_all_its_processes_saved_and_logged(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rollmill.train({**CONFIG, "train": {"steps": 64 * 4}}, run="run")  # 0 and 4
    for number, updates in enumerate((8, 12)):
        kept = Checkpoints.read(tmp_path / "run" / "checkpoints" / "latest").state["run"]["saving"]
        run = rollmill.resume("run", **{"train.steps": 64 * updates})
        account = run.summary["checkpoints"]
        assert account["written"] == 3 + number
        assert account["seconds"] > kept["seconds"] > 0
        assert run.summary["flight_log"]["bytes"] == (tmp_path / "run" / "flight.log").stat().st_size
    assert account["last"] == "run/checkpoints/000000012"
    assert account["best"].startswith("run/checkpoints/0")  # spelled like the last


@BOTH
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_an_interrupted_run_says_how_to_go_on_and_does(tmp_path, number, config):
    if number == signal.SIGINT:
        signal.signal(number, signal.default_int_handler)  # tests that run in the background ignore it
    experiment = Experiment(load_config(config), tmp_path / "part")
    for event in experiment.run():
        if isinstance(event, Updated) and event.progress.updates == 7:
            os.kill(os.getpid(), number)
    assert experiment.summary["status"] == "interrupted"
    assert f"rollmill train {tmp_path / 'part'} --resume" in experiment.summary["reason"]
    assert experiment.summary["updates"] in (7, 8)
    resumed = rollmill.resume(tmp_path / "part")
    assert resumed.status == "done"
    assert resumed.summary["parameters_sha256"] == expected(resumed.path, config, tmp_path)
    assert [set(at) for at in resumed.summary["resumed"]] == [{"update", "env_steps", "flight_mark"}]


def test_a_metric_that_does_not_exist_is_named_once(tmp_path):
    experiment = Experiment(load_config(CONFIG, ["checkpoint.best=mean_10"]), tmp_path / "run")
    said = [event.text for event in experiment.run() if isinstance(event, Said) and event.level == "warning"]
    assert said == [
        "checkpoint.best=mean_10 is no metric of this run, so no checkpoint is kept as the best: "
        "did you mean 'mean_100'?"
    ]


def test_a_damaged_checkpoint_is_named_and_the_newest_good_one_is_used(tmp_path):
    whole = rollmill.train(CONFIG, run=tmp_path / "whole")
    run = rollmill.train(CONFIG, run=tmp_path / "part", **{"train.steps": 64 * 16})
    newest = run.path / "checkpoints" / "000000016" / "weights.safetensors"
    damaged = bytearray(newest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    newest.write_bytes(damaged)
    experiment = Experiment.resumed(run.path, ["train.steps=1280"])
    said = [event.text for event in experiment.run() if isinstance(event, Said) and event.level == "warning"]
    assert len(said) == 1
    assert "000000016" in said[0]
    assert "checksum" in said[0]
    (point,) = experiment.summary["resumed"]
    assert (point["update"], point["env_steps"]) == (12, 64 * 12)
    assert experiment.summary["parameters_sha256"] == whole.summary["parameters_sha256"]


def test_without_any_good_checkpoint_a_resume_is_refused_and_touches_nothing(tmp_path):
    run = rollmill.train(CONFIG, run=tmp_path / "run")
    for state in (run.path / "checkpoints").glob("0*/state.json"):
        state.write_bytes(state.read_bytes()[:-3])
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(Refused, match=r"no good checkpoint .*000000020.*; start it again with --overwrite"):
        rollmill.resume(run.path, **{"train.steps": 9999})
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({}, "has made all its steps"),
        ({"seed": 2}, "seed can't be changed"),
        ({"train.steps": 5000, "env.groups": 4}, "env.groups can't be changed"),
        ({"runtimes.kind": "serial"}, "can't be changed"),
    ],
)
def test_what_a_resume_may_not_change_is_refused(tmp_path, overrides, message):
    run = rollmill.train(CONFIG, run=tmp_path / "run", **{"train.steps": 64})
    with pytest.raises(Refused, match=message):
        rollmill.resume(run.path, **overrides)


@pytest.mark.parametrize(("old", "new", "key"), [("seed: 1", "seed: 7", "seed"), ("epochs: 1", "epochs: 2", "epochs")])
def test_a_run_is_not_resumed_under_another_config(tmp_path, old, new, key):
    run = rollmill.train(CONFIG, run=tmp_path / "run", seed=1, **{"train.steps": 64})
    config = run.path / "config.yaml"
    config.write_text(config.read_text().replace(old, new))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    with pytest.raises(Refused, match=rf"{key} is .* in config.yaml but .* put it back"):
        rollmill.resume(run.path, **{"train.steps": 6400})
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_a_run_that_is_only_just_starting_is_not_overwritten(tmp_path):
    first = Experiment(load_config(CONFIG), tmp_path / "run").run()
    next(first)
    (tmp_path / "run" / "summary.json").unlink(missing_ok=True)  # as it is before the baseline is over
    with pytest.raises(Refused, match="is being written by another process"):
        rollmill.train(CONFIG, run=tmp_path / "run", overwrite=True)
    assert (tmp_path / "run" / "config.yaml").exists()
    first.close()


def test_a_run_in_use_is_not_resumed_twice(tmp_path):
    rollmill.train(CONFIG, run=tmp_path / "run", **{"train.steps": 64})
    first, second = (Experiment.resumed(tmp_path / "run", ["train.steps=12800"]) for _ in range(2))
    events = first.run()
    next(events)
    with pytest.raises(Refused, match="is being written by another process"):
        next(second.run())
    events.close()


def test_a_warm_start_begins_with_the_weights_and_nothing_else(tmp_path):
    old = rollmill.train(CONFIG, run=tmp_path / "old")
    for source in (old.path, old.path / "checkpoints" / "latest", old.path / "weights.safetensors"):
        experiment = Experiment(load_config(CONFIG), tmp_path / f"new-{source.name}", start_from=source)
        events = experiment.run()
        next(event for event in events if isinstance(event, Checkpointed))
        content = Checkpoints.read(tmp_path / f"new-{source.name}" / "checkpoints" / "000000000")
        begun, ended = (
            content.arrays["weights"],
            Checkpoints.read(old.path / "checkpoints" / "latest").arrays["weights"],
        )
        assert all(np.array_equal(begun[name], ended[name]) for name in ended)
        assert not content.arrays["optimizer"]["mean"].any()
        assert content.env_steps == 0
        events.close()


def test_a_warm_start_with_another_networks_weights_is_refused_before_anything_is_made(tmp_path):
    old = rollmill.train(CONFIG, run=tmp_path / "old", **{"train.steps": 64})
    with pytest.raises(Refused, match=f"--from {old.path}: the weights don't fit"):
        rollmill.train(CONFIG, run=tmp_path / "new", start_from=old.path, **{"model.hidden": [8]})
    assert not (tmp_path / "new").exists()


def test_the_policy_of_a_killed_run_loads_from_its_checkpoint(tmp_path):
    run = rollmill.train(CONFIG, run=tmp_path / "run")
    (run.path / "weights.safetensors").unlink()
    newest, older = rollmill.load(run.path), rollmill.load(run.path / "checkpoints" / "000000016")
    obs = np.array([0.1, 0.2, -0.1, 0.3], np.float32)
    assert newest(obs) in (0, 1)
    assert older(obs) in (0, 1)


def test_a_nan_leaves_a_dump_that_can_be_looked_at_and_no_new_checkpoint(tmp_path):
    config = {**CONFIG, "algorithm": {**CONFIG["algorithm"], "learning_rate": 1e30, "max_grad_norm": None}}
    with pytest.raises(Detected, match=r"from gradient step \d of 2 on"):
        rollmill.train(config, run=tmp_path / "run")
    (folder,) = (tmp_path / "run" / "dumps").iterdir()
    dump = Checkpoints.read(folder)
    assert dump.arrays["batch"]["0.obs"].shape == (17, 4, 4)
    assert all(np.isfinite(array).all() for array in dump.arrays["weights"].values())
    assert not all(np.isfinite(array).all() for array in dump.arrays["weights_after"].values())
    assert "update" in dump.state["message"]
    found = Checkpoints(tmp_path / "run" / "checkpoints", load_config(config).config.checkpoint).newest()
    assert found.content.update < int(folder.name.rpartition("-")[2])


@BOTH
def test_half_an_update_is_never_saved(tmp_path, monkeypatch, config):
    rollmill.train(config, run=tmp_path / "undisturbed")
    whole = Checkpoints.read(tmp_path / "undisturbed" / "checkpoints" / "000000016")
    apply, steps = FlatOptimizer.apply, []

    def break_in_the_middle(self):
        steps.append(self)
        if len(steps) == 2 * 16 + 2:  # the second of the two gradient steps of update 17
            raise RuntimeError("out of order")
        return apply(self)

    monkeypatch.setattr(FlatOptimizer, "apply", break_in_the_middle)
    with pytest.raises(RuntimeError, match="out of order"):
        rollmill.train(config, run=tmp_path / "run")
    monkeypatch.undo()
    weights = RunFolder.read_weights(tmp_path / "run" / "weights.safetensors")
    assert all(np.array_equal(weights[name], array) for name, array in whole.arrays["weights"].items())
    resumed = rollmill.resume(tmp_path / "run")
    (point,) = resumed.summary["resumed"]
    assert (point["update"], point["env_steps"]) == (16, 16 * 64)
    assert resumed.summary["parameters_sha256"] == expected(tmp_path / "run", config, tmp_path)


def test_a_run_folder_deleted_during_the_run_costs_what_was_in_it_and_no_more(tmp_path):
    whole = rollmill.train(CONFIG, run=tmp_path / "whole")
    experiment = Experiment(load_config(CONFIG), tmp_path / "run")
    for event in experiment.run():
        if isinstance(event, Updated) and event.progress.updates == 6:
            while (tmp_path / "run").exists():  # observers are writing there at this moment
                shutil.rmtree(tmp_path / "run", ignore_errors=True)
    assert experiment.summary["status"] == "done"
    assert experiment.summary["losses"], "the summary says what was lost"
    assert experiment.summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    assert Checkpoints(tmp_path / "run" / "checkpoints", experiment.config.checkpoint).newest().content.update == 20


FULL_DISK = """
import json, os, sys
from rollmill.experiment import Experiment, load_config
from rollmill.events import Updated
run, config = sys.argv[1], json.loads(sys.argv[2])
experiment = Experiment(load_config(config), run)
filler = os.path.join(os.path.dirname(run), "filler")
try:
    for event in experiment.run():
        if isinstance(event, Updated) and event.progress.updates == 6:
            with open(filler, "wb", buffering=0) as file:
                try:
                    while True:
                        file.write(bytes(4096))
                except OSError:
                    pass
        if isinstance(event, Updated) and event.progress.updates == int(sys.argv[3]):
            os.unlink(filler)
finally:
    print(json.dumps(experiment.summary))
"""


@BOTH
@pytest.mark.parametrize("room_at", [14, 999], ids=["for a while", "to the end"])
def test_a_full_disk_costs_checkpoints_and_never_the_run(tmp_path, room_at, config):
    """On a tmpfs of 2 MB, mounted in a namespace of its own."""
    disk = tmp_path / "disk"
    disk.mkdir()
    inner = (
        f"mount -t tmpfs -o size=2m none {disk} && exec {sys.executable} -c '{FULL_DISK.replace(chr(39), chr(34))}' "
    )
    inner += f"{disk}/run '{json.dumps(config)}' {room_at}; "
    command = ["unshare", "-rm", "sh", "-c", f"{inner}"]
    if subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces here")
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    summary = json.loads(ended.stdout.splitlines()[-1])
    whole = rollmill.train(config, run=tmp_path / "whole")
    assert summary["parameters_sha256"] == whole.summary["parameters_sha256"]
    assert summary["status"] == "done"
    account = summary["checkpoints"]
    assert account["failed"] >= 1
    assert account["error"] == "No space left on device"
    is_room_again = room_at < 20
    assert Path(account["last"]).name == ("000000020" if is_room_again else "000000004"), "the last good one stays"
    assert (ended.returncode == 0) == is_room_again
    if not is_room_again:
        assert "the final weights could not be written: No space left on device" in ended.stderr
