"""`rollmill train --seeds`: one config with several seeds, each an ordinary run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

import rollmill
from rollmill.cli import main
from rollmill.errors import Refused
from rollmill.persist.run_folder import RunFolder
from rollmill.trials.seeds import cores_needed, deal_cores, read_seeds
from rollmill.trials.seeds_folder import SeedsFolder

CONFIG = """\
env: {id: CartPole-v1, groups: 2, group_size: 4}
model: {hidden: [8]}
algorithm: {name: ppo, unroll: 16, epochs: 1, minibatch: 128}
train: {steps: 2048}
observe: {tensorboard: false, curve: false, final_episodes: 1, baseline_episodes: 2, log_interval: 0.0}
"""
ENDLESS = "train.steps=1000000000"


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "tiny.yaml"
    file.write_text(CONFIG)
    return file


def begin(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rollmill", "train", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, process_group=0)


def wait_for_updates(folder: Path, *seeds: int) -> None:
    deadline = time.monotonic() + 60
    while not all((folder / f"seed-{seed}" / "metrics.jsonl").exists() for seed in seeds):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status(folder: Path) -> dict[str, str]:
    return json.loads((folder / "seeds.json").read_text())["status"]


def digest(run: Path) -> str:
    return json.loads((run / "summary.json").read_text())["parameters_sha256"]


def test_seeds_are_read_in_their_order():
    assert read_seeds("3,1, 2") == [3, 1, 2]
    assert read_seeds("7,1-3") == [7, 1, 2, 3]


def test_a_run_needs_the_threads_of_all_its_processes():
    base = {"env": {"id": "CartPole-v1", "groups": 2}, "algorithm": {"name": "ppo"}, "train": {"steps": 1}}

    def needed(**runtime):
        return cores_needed(rollmill.load_config({**base, "runtime": runtime}).config)

    assert needed() == 1
    assert needed(threads={"learner": 3}) == 3
    assert needed(kind="processes", workers=2) == 3
    assert needed(kind="processes", workers=2, threads={"learner": 2}) == 4


def test_cores_are_dealt_out_as_far_as_they_go():
    assert deal_cores([0, 1, 2, 3], need=1, runs=3, wanted=None) == [[0, 3], [1], [2]]
    assert deal_cores([0, 1, 2, 3], need=2, runs=3, wanted=None) == [[0, 2], [1, 3]]
    assert deal_cores([4, 5], need=3, runs=3, wanted=None) == [[]]  # in turn, on whatever there is
    assert deal_cores([4, 5], need=1, runs=3, wanted=3) == [[], [], []]  # more than they carry: all share


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--seeds", ""], "--seeds '': a seed is missing: write whole numbers"),
        (["--seeds", "1,,2"], "--seeds '1,,2': a seed is missing: write whole numbers"),
        (["--seeds", "1,two"], "--seeds '1,two': 'two' is no seed: write whole numbers"),
        (["--seeds", "-1"], "--seeds '-1': '-1' is no seed: write whole numbers"),
        (["--seeds", "1.5"], "--seeds '1.5': '1.5' is no seed: write whole numbers"),
        (["--seeds", "3-1"], "--seeds '3-1': '3-1' is no range of up to 1000 seeds: write whole numbers"),
        (["--seeds", "1,2,1"], "--seeds '1,2,1': 1 is given twice: keep one"),
        (["--seeds", "1,2", "seed=3"], "seed=3 and --seeds exclude each other: leave one of them out"),
        (["--seeds", "1,2", "train.step=3"], "train.step"),
        (["--seeds", "1", "--side-by-side", "0"], "--side-by-side 0: at least one run is trained at a time: give 1"),
        (["--side-by-side", "2"], "--side-by-side 2 is about several seeds: add --seeds"),
    ],
)
def test_bad_input_is_refused_in_one_line_and_nothing_is_made(config, capsys, words, line):
    assert main(["train", str(config), "--run", "runs/many", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert line in err
    assert err.startswith("rollmill: ")
    assert err.count("\n") == 1
    assert not Path("runs").exists()


def test_folders_of_others_are_left_alone(config, capsys):
    folder = Path("many")
    folder.mkdir()
    (folder / "diary.txt").write_text("dear diary")
    for words in ([], ["--overwrite"]):
        assert main(["train", str(config), "--seeds", "1,2", "--run", "many", *words]) == 2
    (folder / "seeds.json").write_text('{"seeds": [1]}')
    assert main(["train", "many"]) == 2
    assert main(["train", "many", "--resume", "--seeds", "4"]) == 2
    (folder / "seeds.json").write_text('{"seeds": ["x"]}')
    assert main(["train", "many", "--resume"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "rollmill: --run many exists",
        "rollmill: --run many is no folder of several seeds (no seeds.json), so it is kept",
        "rollmill: many is a folder of several seeds",
        "rollmill: --resume continues in place, with the seeds of the folder",
        "rollmill: many/seeds.json is damaged (seeds are whole numbers)",
    ]
    assert (folder / "diary.txt").read_text() == "dear diary"


def test_a_folder_that_is_being_trained_is_not_taken(config):
    folder = SeedsFolder.create(Path("many"), config, rollmill.load_config(config).config, [1], overwrite=False)
    with RunFolder(folder.path).locked(), pytest.raises(Refused, match="is being written by another process"):
        SeedsFolder.create(Path("many"), config, rollmill.load_config(config).config, [1], overwrite=True)


@pytest.mark.slow
def test_each_seed_is_the_run_that_it_would_be_alone_and_one_that_fails_stops_no_other(config, capsys):
    # the third seed finds its folder taken
    folder = SeedsFolder.create(Path("many"), config, rollmill.load_config(config).config, [1, 2, 3], overwrite=False)
    folder.run(3).mkdir()
    (folder.run(3) / "diary.txt").touch()
    assert main(["train", "many", "--resume", "--side-by-side", "3"]) == 2
    out = capsys.readouterr().out
    assert "seeds 1, 2, 3, 3 side by side, in many" in out
    assert "seed 3: refused (exit code 2): --run many/seed-3 exists" in out
    assert status(Path("many")) == {"1": "done", "2": "done", "3": "refused"}
    plain = rollmill.train(config, run="plain", seed=2, **{"observe.console": "none"})
    assert digest(Path("many/seed-2")) == plain.summary["parameters_sha256"]
    assert digest(Path("many/seed-1")) != digest(Path("many/seed-2"))
    assert plain.summary["parameters_sha256"][:12] in out  # in the table at the end


@pytest.mark.slow
def test_ctrl_c_ends_every_seed_in_order_and_all_can_be_resumed(config, capsys):
    training = begin(str(config), "--seeds", "1,2,3", "--side-by-side", "2", "--run", "many", ENDLESS)
    wait_for_updates(Path("many"), 1, 2)
    os.killpg(training.pid, signal.SIGINT)  # as a terminal does
    out, _ = training.communicate(timeout=60)
    assert training.returncode == 130
    assert status(Path("many")) == {"1": "interrupted", "2": "interrupted", "3": "waiting"}
    assert "Traceback" not in out
    summaries = [json.loads(Path(f"many/seed-{seed}/summary.json").read_text()) for seed in (1, 2)]
    assert [summary["status"] for summary in summaries] == ["interrupted", "interrupted"]
    steps = 1280 + max(summary["env_steps"] for summary in summaries)
    capsys.readouterr()
    assert main(["train", "many", "--resume", f"train.steps={steps}", "--side-by-side", "3"]) == 0
    assert status(Path("many")) == {"1": "done", "2": "done", "3": "done"}
    assert json.loads(Path("many/seed-1/summary.json").read_text())["resumed"]
    assert main(["train", "many", "--resume", f"train.steps={steps}"]) == 2
    assert "all seeds have made their" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["twice", "kill"])
def test_nothing_is_left_behind(config, how):
    training = begin(str(config), "--seeds", "1,2", "--side-by-side", "2", "--run", "many", ENDLESS)
    wait_for_updates(Path("many"), 1, 2)
    family = psutil.Process(training.pid).children(recursive=True)
    assert len(family) >= 2
    if how == "kill":
        training.kill()
    else:
        os.killpg(training.pid, signal.SIGINT)
        time.sleep(0.4)
        os.killpg(training.pid, signal.SIGINT)
    training.communicate(timeout=60)
    assert training.returncode == (-9 if how == "kill" else 130)
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


@pytest.mark.slow
def test_a_seed_that_begins_after_a_resume_begins_with_the_weights_that_were_given(config, tmp_path, monkeypatch):
    rollmill.train(config, run="first", **{"observe.console": "none"})
    assert main(["train", str(config), "--seeds", "1", "--run", "many", "--from", "first"]) == 0
    wanted = digest(Path("many/seed-1"))
    shutil.rmtree("many/seed-1")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["train", "../many", "--resume"]) == 0
    assert digest(tmp_path / "many" / "seed-1") == wanted
