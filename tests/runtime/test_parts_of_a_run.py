"""Of a checkpoint only what is needed is read: weights without the rest, every file once by a resume."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import rollmill
from rollmill.errors import Refused
from rollmill.numerics import SWITCHES
from rollmill.persist.parts import Checkpoint, FileRecord

CONFIG = {
    "env": {"id": "CartPole-v1", "groups": 1, "group_size": 2},
    "model": {"hidden": [4]},
    "algorithm": {"name": "ppo", "unroll": 8, "minibatch": 16, "epochs": 1},
    "train": {"steps": 64},
    "checkpoint": {"updates": 2, "keep": 2},
    "observe": {"baseline_seconds": 0.01, "final_episodes": 0, "console": "none", "curve": False},
}
# The same, made before checkpoints had parts and runs had spaces, with the switches of portable numerics: every CPU
# continues it to the same weights.
OLD = Path(__file__).parent / "run_of_a6fc170"


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return rollmill.train(CONFIG, run=tmp_path_factory.mktemp("trained") / "run")


@pytest.fixture
def run(trained, tmp_path):
    return Path(shutil.copytree(trained.path, tmp_path / "run", symlinks=True))


OPENED: list[str] | None = None  # the files that were opened, while it is a list


def _hear(event: str, arguments: tuple) -> None:
    if event == "open" and OPENED is not None and isinstance(arguments[0], str | bytes | os.PathLike):
        file, mode = os.fspath(arguments[0]), arguments[1]
        if mode is not None or OPENED[-1:] != [file]:  # open(…, opener=os.open) is heard twice
            OPENED.append(file)


@pytest.fixture
def opened(monkeypatch):
    """Every file that this process opens from here on."""
    if not getattr(sys, "_rollmill_test_hears_opens", False):  # a hook can't be removed
        sys._rollmill_test_hears_opens = True
        sys.addaudithook(_hear)
    files: list[str] = []
    monkeypatch.setattr(sys.modules[__name__], "OPENED", files)
    return files


def counts(opened: list[str], folder: Path) -> Counter[str]:
    """How often each file in a folder was opened."""
    return Counter(Path(file).name for file in opened if str(file).startswith(f"{os.path.realpath(folder)}/"))


def test_a_resume_reads_every_file_of_the_checkpoint_once(run, opened):
    folder = run / "checkpoints" / "000000004"
    expected = dict.fromkeys(os.listdir(folder), 1)
    resumed = rollmill.resume(run, **{"train.steps": 80})
    assert resumed.summary["resumed"][0]["update"] == 4
    assert dict(counts(opened, folder)) == expected
    assert len(expected) == 5


def test_a_resume_reads_again_what_another_process_has_added_meanwhile(run):
    first = rollmill.Experiment.resumed(run, {"train.steps": 128})
    rollmill.resume(run, **{"train.steps": 96})
    for _ in first.run():
        pass
    assert [point["update"] for point in first.summary["resumed"]] == [4, 6]


@pytest.mark.parametrize("source", ["run", "checkpoint"])
def test_a_policy_is_loaded_from_manifest_and_weights_alone(run, opened, source):
    (run / "weights.safetensors").unlink()
    folder = run / "checkpoints" / "000000004"
    policy = rollmill.load(run if source == "run" else folder)
    assert dict(counts(opened, folder)) == {"manifest.json": 1, "weights.safetensors": 1}
    assert policy(np.zeros(4, np.float32)) in (0, 1)


MEASURE = """
import resource, sys, time
import torch
import rollmill, rollmill.experiment
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before, begun = peak(), time.perf_counter()
policy = rollmill.load(sys.argv[1])
policy([0.0, 0.0, 0.0, 0.0])
print((peak() - before) / 1024, time.perf_counter() - begun)
"""


def test_loading_a_policy_takes_no_memory_for_a_part_of_2_gb(run):
    """The part is a file without blocks; its checksum is wrong, so whatever reads it would say so."""
    (run / "weights.safetensors").unlink()
    folder = run / "checkpoints" / "000000004"
    manifest = Checkpoint(folder).manifest
    with (folder / "store@0.safetensors").open("wb") as file:
        file.truncate(2 << 30)
    large = {"store@0.safetensors": FileRecord(size=2 << 30, sha256="0" * 64)}
    manifest = manifest.model_copy(update={"files": {**manifest.files, **large}})
    (folder / "manifest.json").write_bytes(manifest.to_bytes())
    for path in (run, folder):
        done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, check=True)
        megabytes, seconds = map(float, done.stdout.split())
        assert megabytes <= 100, f"and {seconds} s"


# --- spaces

ENVIRONMENT = """
import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Tuple

class Nested(gym.Env):
    observation_space = Dict(z=Tuple((Box(-1, 1, (2,)), Discrete(3))), a=Box(-np.inf, np.inf, (3,)))
    action_space = Box(np.array([-2, 0], np.float32), np.array([2, 0.3], np.float32))
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self._obs(), {}
    def step(self, action):
        return self._obs(), 1.0, bool(self.np_random.random() < 0.2), False, {}
    def _obs(self):
        row = self.np_random.random(5).astype(np.float32)
        return {"z": (row[:2], 1), "a": row[2:]}
"""


def test_a_policy_is_loaded_without_its_environment(tmp_path):
    file = tmp_path / "nested.py"
    file.write_text(ENVIRONMENT)
    run = rollmill.train({**CONFIG, "env": {"id": f"{file}:Nested", "group_size": 2}}, run=tmp_path / "run").path
    obs = {"z": (np.array([0.5, -0.5], np.float32), 2), "a": np.ones(3, np.float32)}
    before = rollmill.load(run)
    file.unlink()
    after = rollmill.load(run)
    assert list(after.observation_space) == list(before.observation_space)
    assert after.action_space == before.action_space
    np.testing.assert_array_equal(after(obs), before(obs))


def test_spaces_that_are_damaged_are_refused_in_one_line(run):
    for text in ("{", "{}", '{"observation": {"kind": "Box"}, "action": 3}'):
        (run / "spaces.json").write_text(text)
        with pytest.raises(Refused, match=r"spaces\.json can't be read: .*; it is cut short or damaged"):
            rollmill.load(run)


# --- what was written before


def test_a_run_of_an_earlier_version_continues_and_its_policy_is_loaded(tmp_path):
    run = Path(shutil.copytree(OLD, tmp_path / "run"))
    assert rollmill.load(run)(np.zeros(4, np.float32)) in (0, 1)  # its environment is made: it kept no spaces
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(CONFIG))  # which is YAML, too
    for words in ([run, "--resume"], [config, "--run", tmp_path / "whole"]):
        command = [sys.executable, "-m", "rollmill", "train", *map(str, words), "train.steps=128"]
        subprocess.run(command, check=True, env=os.environ | SWITCHES)
    resumed, whole = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("run", "whole"))
    assert (resumed["status"], resumed["updates"]) == ("done", 8)
    assert resumed["parameters_sha256"] == whole["parameters_sha256"]
    assert rollmill.load(run)(np.zeros(4, np.float32)) in (0, 1)
    assert (run / "spaces.json").is_file()
