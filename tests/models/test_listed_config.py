"""What `model.conv`, `padding`, `vector_hidden` and `features: null` take and refuse."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.settings import load_config

BASE = {"env": {"id": "CartPole-v1"}, "algorithm": {"name": "ppo"}, "train": {"steps": 100}}
CONV = [[16, 8, 4], [32, 4, 2]]


def parse(**values):
    return ModelConfig.model_validate_json(json.dumps(values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"torso": "cnn"}, ("torso=cnn", "add conv: [[filters, kernel, stride], …]")),
        ({"padding": "same"}, ("padding='same'", "without conv", "list the convolutions")),
        ({"torso": "mlp", "conv": CONV}, ("conv=[[16, 8, 4], [32, 4, 2]]", "torso=mlp", "choose torso cnn or merged")),
        ({"torso": "nature_cnn", "conv": CONV}, ("conv=", "torso=nature_cnn", "choose torso cnn")),
        ({"torso": "cnn", "conv": CONV, "hidden": [8]}, ("hidden=[8]", "torso=cnn", "set features")),
        ({"torso": "cnn", "conv": CONV, "vector_hidden": [8]}, ("vector_hidden=[8]", "torso=cnn", "torso merged")),
        ({"torso": "mlp", "vector_hidden": [8]}, ("vector_hidden=[8]", "torso=mlp", "choose torso merged")),
        ({"torso": "mlp", "features": None}, ("features=null", "torso=mlp", "set hidden")),
        ({"file": "net.py", "class": "Net", "conv": CONV}, ("conv=", "custom model", "args")),
        ({"file": "net.py", "class": "Net", "vector_hidden": [8]}, ("vector_hidden=[8]", "custom model")),
    ],
    ids=str,
)
def test_a_key_that_nothing_would_read_is_refused_in_one_line_with_the_remedy(values, words):
    with pytest.raises(ValidationError) as caught:
        parse(**values)
    (error,) = caught.value.errors()
    for word in words:
        assert word in error["msg"]
    assert "\n" not in error["msg"]


@pytest.mark.parametrize(
    "values",
    [
        {"conv": CONV, "padding": "same", "features": None, "activation": "relu"},
        {"torso": "cnn", "conv": CONV, "activation": "silu", "features": 64},
        {"torso": "merged", "vector_hidden": [32, 32], "conv": CONV, "hidden": [256, 256]},
        {"vector_hidden": [32]},
    ],
    ids=str,
)
def test_a_resolved_config_loads_to_an_equal_one(values):
    config = parse(**values)
    assert parse(**config.model_dump(mode="json", by_alias=True)) == config


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("conv", [[16, 8]], r"model.conv\[0\]: \[16, 8\] has too few items"),
        ("conv", [[16, 8, 4, 1]], r"model.conv\[0\]: \[16, 8, 4, 1\] is refused: .*at most 3"),
        ("conv", [[16, 0, 4]], r"model.conv\[0\]\[1\]: 0 is out of range: must be ≥ 1"),
        ("conv", [16, 8, 4], r"model.conv\[0\]: 16 is not a list"),
        ("padding", "sane", r"model.padding: 'sane' is unknown: did you mean 'same'"),
        ("vector_hidden", [0], r"model.vector_hidden\[0\]: 0 is out of range: must be ≥ 1"),
    ],
)
def test_wrong_values_are_named_with_their_place(key, value, message):
    with pytest.raises(Refused, match=message) as refusal:
        load_config(BASE, {f"model.{key}": value})
    assert "\n" not in str(refusal.value)
