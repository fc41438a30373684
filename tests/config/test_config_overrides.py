"""`key=value` on the command line and dotted keys in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmill.config.load import build
from rollmill.errors import Refused

OK = "train: {steps: 512}\nseed: 7\n"


def test_values_are_yaml_and_win_over_the_file(values_of: Callable[..., Any]) -> None:
    config = values_of(
        OK + "algorithm: {name: ppo}",
        "seed=3",
        "rate=1e-4",
        "verbose=true",
        "model.hidden=[8, 9]",
        "model.class=a=b",
        "algorithm.clip_range=0.5",
    )
    assert (config.seed, config.rate, config.verbose) == (3, 1e-4, True)
    assert config.model.hidden == (8, 9)
    assert config.model.class_ == "a=b"  # only the first = divides
    assert config.algorithm.clip_range == 0.5
    assert config.train.steps == 512


def test_a_mapping_replaces_the_section_so_that_no_key_of_the_old_one_lingers(values_of: Callable[..., Any]) -> None:
    config = values_of(OK + "algorithm: {name: ppo, clip_range: 0.1}", "algorithm={name: vpg}")
    assert config.algorithm.name == "vpg"


def test_a_later_override_refines_an_earlier_one(values_of: Callable[..., Any]) -> None:
    assert values_of(OK, "train={steps: 256}", "train.steps=1024").train.steps == 1024


def test_a_section_left_empty_in_the_file_can_be_filled(values_of: Callable[..., Any]) -> None:
    assert values_of("train:\n", "train.steps=5").train.steps == 5


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["seed"], "override 'seed': no '=' in it: write key=value, such as train.steps=1000"),
        (["=3"], "override '': a name is missing in the key: write key=value, such as train.steps=1000"),
        (
            ["train..steps=3"],
            "override 'train..steps': a name is missing in the key: write key=value, such as train.steps=1000",
        ),
        (["seed=1", "seed=2"], "override 'seed' is given twice, 1 and 2: keep one"),
        (["sed=1"], "override: unknown key 'sed': did you mean 'seed'?"),
        (["trian.steps=1"], "override: unknown key 'trian': did you mean 'train'?"),
        (
            ["algorithm={name: ppo, clip_rang: 1}"],
            "override: unknown key 'algorithm.clip_rang': did you mean 'clip_range'?",
        ),
        (["train=3"], "override: train: 3 is not a section with keys; its keys: steps, lengths"),
        (["train.steps=many"], "override: train.steps: 'many' is not a whole number"),
        (["train.steps=0"], "override: train.steps: 0 is out of range: must be ≥ 1"),
        (["seed="], "override: seed: null is not a whole number"),
        (["seed.x=1"], "override 'seed.x': seed is 7, not a section: override seed whole"),
        (["algorithm.minibatch=3"], "override: missing key 'algorithm.name': add 'name: …' below 'algorithm'"),
        (
            ["seed=[1"],
            "override 'seed=[1': broken YAML at column 3: while parsing a flow sequence of line 1,"
            " expected ',' or ']', but got '<stream end>'",
        ),
        (
            ["model.args={a: 1, a: 2}"],
            "override 'model.args={a: 1, a: 2}': duplicate key 'a' (first at line 1): keep one",
        ),
    ],
)
def test_a_wrong_override_is_refused_in_one_line(
    refusal: Callable[..., str], overrides: list[str], message: str
) -> None:
    assert refusal(OK, *overrides) == message


def test_errors_in_the_file_are_reported_before_errors_in_overrides(refusal: Callable[..., str]) -> None:
    assert refusal(OK + "sed: 1", "rate=x") == "x.yaml:3: unknown key 'sed': did you mean 'seed'? (and 1 more)"


def test_in_python_values_are_taken_as_they_are(toy: Any) -> None:
    values = {"train": {"steps": 5}, "model": {"hidden": (8, 9)}}
    loaded = build(values, {"train.steps": 100, "seed": 3, "model.class": Path("a/b")}, toy)
    assert (loaded.config.train.steps, loaded.config.seed) == (100, 3)
    assert (loaded.config.model.hidden, loaded.config.model.class_) == ((8, 9), "a/b")
    assert loaded.path is None
    assert values == {"train": {"steps": 5}, "model": {"hidden": (8, 9)}}  # the caller's dict is not touched


def test_a_record_may_replace_its_section(toy: Any) -> None:
    algorithm = type(toy(train={"steps": 5}).algorithm)(clip_range=0.5)  # its tag is left to the default
    loaded = build({"train": {"steps": 5}, "algorithm": algorithm}, {}, toy)
    assert loaded.config.algorithm == algorithm
    assert loaded.origins["algorithm.clip_range"] == "argument"


@pytest.mark.parametrize(
    ("values", "overrides", "message"),
    [
        ({"train": {"steps": "5"}}, {}, "argument: train.steps: '5' is not a whole number"),
        ({"train": {"steps": 5}}, {"sed": 3}, "override: unknown key 'sed': did you mean 'seed'?"),
        ({}, {}, "argument: missing key 'train': add 'train: …' at the top level"),
        (
            {"train": {"steps": {1, 2}}},
            {},
            "train.steps: a set can't be in a config: give numbers, text, lists or dicts",
        ),
        (
            {},
            {"train.steps": print},
            "train.steps: a builtin_function_or_method can't be in a config: give numbers, text, lists or dicts",
        ),
    ],
)
def test_wrong_values_in_python_are_refused_in_one_line(toy: Any, values: Any, overrides: Any, message: str) -> None:
    with pytest.raises(Refused) as caught:
        build(values, overrides, toy)
    assert str(caught.value) == message
