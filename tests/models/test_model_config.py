import json

import pytest
from pydantic import ValidationError

from rollmill.models.config import ModelConfig


def parse(**values):
    return ModelConfig.model_validate_json(json.dumps(values))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"memory_size": 32}, ("memory_size=32", "memory=none", "choose memory gru or lstm")),
        ({"torso": "mlp", "features": 256}, ("features=256", "torso=mlp", "set hidden")),
        ({"torso": "nature_cnn", "hidden": [32]}, ("hidden=[32]", "torso=nature_cnn", "set features")),
        ({"torso": "small_cnn", "activation": "relu"}, ("activation='relu'", "torso=small_cnn")),
        ({"args": {"a": 1}}, ('args={"a": 1}', "without a custom model", "name its file")),
        ({"class": "Net"}, ("class='Net'", "without a custom model")),
        ({"file": "net.py", "class": "Net", "hidden": [32]}, ("hidden=[32]", "model.file=net.py", "args")),
        ({"file": "net.py", "class": "Net", "memory": "gru"}, ("memory='gru'", "custom model")),
        ({"module": "p.q:Net", "class": "Net"}, ("class='Net'", "module")),
        ({"file": "net.py", "module": "p.q:Net", "class": "Net"}, ("two models", "remove one")),
        ({"file": "net.py"}, ("file=net.py", "add class")),
        ({"memory": "lstm", "shared": False}, ("shared=false", "memory=lstm", "remove shared")),
    ],
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
        {},
        {"memory": "gru", "memory_size": 32},
        {"torso": "merged", "features": 64, "hidden": [32], "activation": "relu"},
        {"file": "net.py", "class": "Net", "args": {"width": 3}, "normalise_observations": True},
        {"module": "p.q:Net", "args": {"width": 3}},
        {"hidden": []},
    ],
)
def test_a_resolved_config_loads_to_an_equal_one(values):
    config = parse(**values)
    assert parse(**config.model_dump(mode="json", by_alias=True)) == config


@pytest.mark.parametrize("values", [{"hidden": [64, 0]}, {"features": 0}, {"memory_size": -1, "memory": "gru"}])
def test_widths_are_positive(values):
    with pytest.raises(ValidationError, match="greater than or equal to 1"):
        parse(**values)


def test_every_key_is_described_for_editors():
    properties = ModelConfig.model_json_schema()["properties"]
    assert "class" in properties
    assert [key for key, schema in properties.items() if not schema.get("description")] == []
