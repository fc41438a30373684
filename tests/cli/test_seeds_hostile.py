"""`rollmill train --seeds` with weights that don't fit, forged files and a disk that takes no more."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import rollmill.trials.seeds_folder
from rollmill.cli import main
from rollmill.errors import Refused
from rollmill.trials.seeds_folder import SeedsFolder

CONFIG = """\
env: {id: CartPole-v1, groups: 1, group_size: 4}
model: {hidden: [8]}
algorithm: {name: ppo, unroll: 16, epochs: 1, minibatch: 64}
train: {steps: 64}
observe: {console: none, tensorboard: false, curve: false, final_episodes: 0, baseline_episodes: 0}
"""


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text(CONFIG)
    return tmp_path


def test_weights_to_begin_with_are_looked_at_before_anything_is_made(config, capsys):
    assert main(["train", "tiny.yaml", "--run", "wide", "model.hidden=[16]"]) == 0
    for named in ("nowhere", "wide"):
        capsys.readouterr()
        assert main(["train", "tiny.yaml", "--seeds", "1,2", "--from", named, "--run", "many"]) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert err.startswith(f"rollmill: --from {named}: ")
        assert not Path("many").exists()


@pytest.mark.parametrize("seeds", [[], [True], [-1], ["1"], 5])
def test_forged_seeds_are_refused(config, seeds):
    Path("many").mkdir()
    Path("many/seeds.json").write_text(json.dumps({"seeds": seeds}))
    with pytest.raises(Refused, match="is damaged"):
        SeedsFolder.open(Path("many"))


def test_a_full_disk_ends_no_run(config, monkeypatch):
    folder = SeedsFolder(config, {"seeds": [1, 2]})

    def refuse(path, content):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(rollmill.trials.seeds_folder, "write_atomically", refuse)
        folder.mark(1, "running")
    folder.mark(2, "running")
    assert json.loads((config / "seeds.json").read_text())["status"] == {"1": "running", "2": "running"}
