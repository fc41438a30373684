"""What a config resolves to: origins, rows, text that loads again, a schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.config.load import build, config_files, dump, flattened, json_schema, load

TEXT = """\
seed: 5
train:
  steps: 512
model:
  args: {depth: 2}
  hidden: [8,
    9]
"""


def test_every_value_has_its_origin(tmp_path: Path, monkeypatch: Any, toy: Any) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.yaml").write_text(TEXT)
    loaded = load(Path("x.yaml"), ["rate=0.5", "algorithm={name: ppo, minibatch: 128}"], toy)
    assert loaded.path == Path("x.yaml")
    assert [(key, value, loaded.origins[key]) for key, value in flattened(loaded.config).items()] == [
        ("seed", 5, "x.yaml:1"),
        ("rate", 0.5, "override"),
        ("verbose", False, "default"),
        ("algorithm.name", "ppo", "override"),
        ("algorithm.clip_range", 0.2, "default"),
        ("algorithm.minibatch", 128, "override"),
        ("train.steps", 512, "x.yaml:3"),
        ("train.lengths", [1, 2], "default"),
        ("model.kind", "mlp", "default"),
        ("model.hidden", [8, 9], "x.yaml:6"),
        ("model.class", None, "default"),
        ("model.args.depth", 2, "x.yaml:5"),
        ("model.scale", 1, "default"),
        ("model.extra", None, "default"),
    ]
    assert loaded.origins.keys() == flattened(loaded.config).keys()


def test_a_section_that_was_replaced_leaves_no_origins(tmp_path: Path, toy: Any) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(TEXT + "algorithm: {name: ppo, clip_range: 0.1}")
    assert load(file, ["algorithm={name: ppo}"], toy).origins["algorithm.clip_range"] == "default"


def test_values_given_in_python_say_so(toy: Any) -> None:
    origins = build({"train": {"steps": 5}}, {"seed": 3}, toy).origins
    assert {key: origin for key, origin in origins.items() if origin != "default"} == {
        "train.steps": "argument",
        "seed": "override",
    }


def test_the_text_is_made_to_be_read(toy: Any) -> None:
    config = build({"train": {"steps": 5}, "model": {"class": "on", "args": {"a": {}, "b": "1e-4"}}}, {}, toy).config
    assert dump(config) == (
        "seed: 1\nrate: 0.001\nverbose: false\n"
        "algorithm:\n  name: ppo\n  clip_range: 0.2\n  minibatch: 256\n"
        "train:\n  steps: 5\n  lengths: [1, 2]\n"
        "model:\n  kind: mlp\n  hidden: [64, 64]\n  class: on\n  args:\n    a: {}\n    b: '1e-4'\n"
        "  scale: 1\n  extra: null\n"
    )


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
trees = st.recursive(scalars, lambda t: st.lists(t, max_size=3) | st.dictionaries(text, t, max_size=3), max_leaves=8)


@settings(deadline=None, max_examples=60)
@given(args=st.dictionaries(text, trees, max_size=4), rate=st.floats(allow_nan=False, allow_infinity=False), name=text)
def test_the_text_loads_to_an_equal_config(
    toy: Any, tmp_path_factory: pytest.TempPathFactory, args: Any, rate: float, name: str
) -> None:
    config = build({"train": {"steps": 5}, "rate": rate, "model": {"args": args, "class": name}}, {}, toy).config
    file = tmp_path_factory.getbasetemp() / "round_trip.yaml"
    file.write_text(dump(config), encoding="utf-8", newline="")
    assert load(file, [], toy).config == config


def test_the_schema_knows_every_key_under_the_name_it_has_in_files(toy: Any) -> None:
    schema = json_schema(toy)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert set(schema["properties"]) == {"seed", "rate", "verbose", "algorithm", "train", "model"}
    assert "class" in schema["$defs"]["Model"]["properties"]
    assert schema["additionalProperties"] is False


def test_config_files_are_found_at_any_depth_and_sorted(tmp_path: Path) -> None:
    for name in ("b.yaml", "a/c.yml", "a/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert config_files(tmp_path) == [tmp_path / "a/c.yml", tmp_path / "b.yaml"]
