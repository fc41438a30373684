"""The command line together with the real experiment: nothing here trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
CARTPOLE = str(CONFIGS / "ppo" / "cartpole.yaml")


def test_every_config_of_the_repository_is_valid(rollmill: Callable[..., Any]) -> None:
    ended = rollmill("check", str(CONFIGS))
    lines = ended.out.splitlines()
    assert (ended.code, ended.err) == (0, "")
    assert len(lines) == len(list(CONFIGS.rglob("*.yaml"))) > 0
    absent = [line for line in lines if not line.startswith("ok ")]
    assert all(line.startswith("absent ") for line in absent)  # they name what a repository can't hold:
    assert {line.partition(" env.args.")[2].partition("=")[0] for line in absent} == {"build", "frozen"}


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("algorithm.clp=0.1", "override: unknown key 'algorithm.clp': did you mean 'clip'?"),
        ("algorithm.name=ppoo", "override: algorithm.name: 'ppoo' is unknown: did you mean 'ppo'?"),
        ("train.steps=many", "override: train.steps: 'many' is not a whole number"),
        ("train.steps=0", "override: train.steps: 0 is out of range: must be ≥ 1"),
        ("algorithm.minibatch=100", "minibatch"),  # doesn't divide; from here on the words belong to the owners
        ("env.id=CartPol-v1", "CartPole-v1"),
        ("runtime.workers=9", "workers"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(
    rollmill: Callable[..., Any], tmp_path: Path, override: str, said: str
) -> None:
    run = tmp_path / "run"
    code, out, err = rollmill("train", CARTPOLE, override, "--run", str(run))
    assert (code, out) == (2, "")
    assert err.startswith("rollmill: ")
    assert said in err
    assert err.count("\n") == 1
    assert not run.exists()


def test_show_prints_the_graph_behind_the_tree(rollmill: Callable[..., Any]) -> None:
    tree, graph = rollmill("show", CARTPOLE).out.split("\n\n", 1)
    assert f"# {CARTPOLE}:2" in tree
    assert "learner" in graph


def test_the_schema_names_the_sections(rollmill: Callable[..., Any]) -> None:
    schema = json.loads(rollmill("check", "--schema").out)
    assert {"seed", "env", "model", "algorithm", "train", "runtime", "observe"} <= set(schema["properties"])


@pytest.mark.parametrize(("what", "name"), [("algorithms", "ppo"), ("envs", "CartPole-v1")])
def test_list_knows_what_is_there(rollmill: Callable[..., Any], what: str, name: str) -> None:
    ended = rollmill("list", what)
    assert ended.code == 0
    assert name in [line.split()[0] for line in ended.out.splitlines()]
