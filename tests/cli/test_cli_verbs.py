"""What each verb does with its arguments and what it prints."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML

Rollmill = Callable[..., Any]


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def test_train_passes_its_arguments_on(rollmill: Rollmill, experiment: Any) -> None:
    assert rollmill("train", "x.yaml").code == 0
    words = ["train", "x.yaml", "seed=3", "--run", "runs/a", "train.steps=5", "--overwrite", "--dev"]
    assert rollmill(*words).code == 0
    assert rollmill("train", "runs/a", "train.steps=9", "--resume").code == 0
    assert rollmill("train", "x.yaml", "--from", "runs/b").code == 0
    assert experiment.calls == [
        (Path("x.yaml"), [], None, False, False, False, None),
        (Path("x.yaml"), ["seed=3", "train.steps=5"], Path("runs/a"), True, True, False, None),
        (Path("runs/a"), ["train.steps=9"], None, False, False, True, None),
        (Path("x.yaml"), [], None, False, False, False, Path("runs/b")),
    ]


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 143), (10, 143)])
def test_an_interrupted_training_says_by_which_signal(
    rollmill: Rollmill, experiment: Any, signal: int, code: int
) -> None:
    experiment.train_run = lambda *_: SimpleNamespace(status="interrupted", signal=signal)
    assert rollmill("train", "x.yaml").code == code


def test_show_prints_the_resolved_tree_with_origins_and_the_graph(rollmill: Rollmill, experiment: Any) -> None:
    write("x.yaml", "# toy\ntrain:\n  steps: 512\n")
    ended = rollmill("show", "x.yaml")
    assert ended == (
        0,
        "seed: 1             # default\n"
        'title: "a \\"toy\\""  # default\n'
        "train:\n"
        "  steps: 512        # x.yaml:3\n"
        "\n"
        "actor ─► learner\n",
        "",
    )
    tree, _ = ended.out.split("\n\n")
    assert YAML(typ="safe").load(tree) == {"seed": 1, "title": 'a "toy"', "train": {"steps": 512}}


def test_show_prints_a_config_as_json(rollmill: Rollmill, experiment: Any) -> None:
    write("x.yaml", "train: {steps: 512}")
    assert json.loads(rollmill("show", "x.yaml", "--json").out) == {
        "config": {"seed": 1, "title": 'a "toy"', "train": {"steps": 512}},
        "origins": {"seed": "default", "title": "default", "train.steps": "x.yaml:1"},
    }


def test_show_names_the_nearest_config(rollmill: Rollmill, experiment: Any) -> None:
    write("toy.yaml", "train: {steps: 512}")
    assert rollmill("show", "toi.yaml") == (2, "", "rollmill: toi.yaml: no such file: did you mean 'toy.yaml'?\n")


def test_check_prints_one_line_per_file_and_fails_if_any_does(rollmill: Rollmill, experiment: Any) -> None:
    write("configs/a.yaml", "train: {steps: 512}")
    write("configs/deep/b.yml", "train: {step: 512}")
    write("configs/deep/unwired.yaml", "seed: 13\ntrain: {steps: 512}")
    write("configs/notes.txt", "not a config")
    assert rollmill("check", "configs", "gone.yaml") == (
        2,
        "ok       configs/a.yaml\n"
        "refused  configs/deep/b.yml:1: unknown key 'train.step': did you mean 'steps'?\n"
        "refused  configs/deep/unwired.yaml: seed: 13 can't be wired: choose another\n"
        "refused  gone.yaml: no such file: `rollmill list configs` shows what there is\n",
        "",
    )
    assert rollmill("check", "configs/a.yaml").code == 0


def test_check_lays_overrides_over_every_file(rollmill: Rollmill, experiment: Any) -> None:
    write("configs/a.yaml", "train: {steps: 512}")
    write("b=1.yaml", "train: {steps: 512}")
    assert rollmill("check", "configs", "b=1.yaml", "seed=13") == (
        2,
        "refused  configs/a.yaml: seed: 13 can't be wired: choose another\n"
        "refused  b=1.yaml: seed: 13 can't be wired: choose another\n",
        "",
    )
    assert rollmill("check", "configs", "b=1.yaml", "seed=12").code == 0


def test_check_refuses_to_check_nothing(rollmill: Rollmill, experiment: Any) -> None:
    Path("empty").mkdir()
    nothing = "rollmill: empty: no YAML file in this folder: name one that holds configs\n"
    assert rollmill("check", "empty") == (2, "", nothing)
    no_path = "rollmill: check: no path given: name config files or a folder, such as configs/\n"
    assert rollmill("check") == (2, "", no_path)


def test_check_prints_the_schema_for_editors(rollmill: Rollmill, experiment: Any) -> None:
    schema = json.loads(rollmill("check", "--schema").out)
    assert schema["properties"]["seed"] == {"default": 1, "title": "Seed", "type": "integer"}


def test_list_shows_algorithms_with_what_they_are(rollmill: Rollmill, experiment: Any) -> None:
    assert rollmill("list", "algorithms").out == (
        "ppo   clipped policy gradients\nvpg   plain ones\nappo  asynchronous\n"
    )


def test_list_shows_configs_with_their_first_comment(rollmill: Rollmill, experiment: Any) -> None:
    refused = rollmill("list", "configs")
    assert refused.code == 2
    assert refused.err.startswith("rollmill: list configs: no folder 'configs' in ")
    write("configs/ppo/toy.yaml", "# The smallest one.\nseed: 1\n")
    write("configs/plain.yaml", "seed: 1\n")
    assert rollmill("list", "configs").out == "configs/plain.yaml\nconfigs/ppo/toy.yaml  The smallest one.\n"
