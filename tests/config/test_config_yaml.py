"""The YAML dialect: the core of version 1.2, with lines for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rollmill.config.base import Origin
from rollmill.config.load import load
from rollmill.config.yaml_text import parse
from rollmill.errors import Refused


def value(text: str) -> Any:
    return parse(text, lambda line: Origin("x", line))[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1e-4", 1e-4),  # text for YAML 1.1, which wants a dot and a sign
        ("1E5", 1e5),
        (".5", 0.5),
        ("-3.", -3.0),
        ("1_000_000", 1_000_000),
        ("010", 10),  # eight for YAML 1.1
        ("0x10", 16),
        ("0o10", 8),
        ("1:30", "1:30"),  # ninety for YAML 1.1
        ("2001-01-01", "2001-01-01"),  # a date for YAML 1.1
        ("on", "on"),
        ("no", "no"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("''", ""),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("5.0.1", "5.0.1"),
        ("-", [None]),
        ("1e", "1e"),
        ("=", "="),
    ],
)
def test_scalars_are_read_as_yaml_1_2_does(text: str, expected: Any) -> None:
    read = value(text)
    assert (read, type(read)) == (expected, type(expected))


def test_anchors_and_merge_keys_keep_the_order_of_precedence() -> None:
    text = "a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc: {<<: [*a, *b], x: 3}"
    assert value(text)["c"] == {"x": 3, "y": 1, "z": 2}


def test_a_merged_value_has_the_line_on_which_it_was_written() -> None:
    _, lines = parse("a: &a\n  x: 1\nc:\n  <<: *a\n", lambda line: Origin("x", line))
    assert lines[("c", "x")] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1\ntrain:\n  steps: 1\nseed: 2", "x.yaml:4: duplicate key 'seed' (first at line 1): keep one"),
        (
            "train:\n  steps: 1\n  steps: 1\n  steps: 1",
            "x.yaml:3: duplicate key 'train.steps' (first at line 2): keep one (and 1 more)",
        ),
        (
            "seed: 1\n\ttrain: 2",
            "x.yaml:2: broken YAML at column 1: found character '\\t' that cannot start any token:"
            " indent with spaces, not tabs",
        ),
        (
            "train: [1, 2\nseed: 3",
            "x.yaml:2: broken YAML at column 5: while parsing a flow sequence of line 1,"
            " expected ',' or ']', but got ':'",
        ),
        ("seed: 1\nrate: a: b", "x.yaml:2: broken YAML at column 8: mapping values are not allowed here"),
        ("seed: *s", "x.yaml:1: broken YAML at column 7: found undefined alias 's'"),
        (
            "seed: 1\n---\nseed: 2",
            "x.yaml:2: broken YAML at column 1: expected a single document in the stream of line 1,"
            " but found another document",
        ),
        ("seed: 1\nrate: \x01", "x.yaml:2: broken YAML: character '\\x01' isn't allowed"),
        (
            "seed: !!python/object/apply:os.system [date]",
            "x.yaml:1: tag 'tag:yaml.org,2002:python/object/apply:os.system' isn't allowed:"
            " a config holds plain values only",
        ),
        ("seed: !mine 3", "x.yaml:1: tag '!mine' isn't allowed: a config holds plain values only"),
        ("seed: !!int many", "x.yaml:1: 'many' is not a number"),
        ("seed: !!int ''", "x.yaml:1: '' is not a number"),
        ("seed: !!bool maybe", "x.yaml:1: 'maybe' is not a boolean"),
        ("? [1, 2]\n: 3", "x.yaml:1: a list or a mapping can't be a key: write 'key: value'"),
        ("train: {<<: 3}", "x.yaml:1: '<<' merges mappings only: name the anchor of one"),
        ("seed: &a [*a]", "x.yaml:1: aliases make 'seed[0]' endless: write the values out"),
        ("[" * 1000, "x.yaml:1: nested too deeply: a config has a few levels"),
        ("", "x.yaml: the file is empty: start from a copy of one that `rollmill list configs` shows"),
        ("# only this\n", "x.yaml: the file is empty: start from a copy of one that `rollmill list configs` shows"),
        ("- 1\n", "x.yaml:1: the top level is [1]: write keys with values, such as 'seed: 1'"),
        ("seed", "x.yaml:1: the top level is 'seed': write keys with values, such as 'seed: 1'"),
        (b"seed: 1\xff", "x.yaml: not UTF-8 text (byte 7): save it as UTF-8, or name another file"),
        ("seed: 1".encode("utf-16"), "x.yaml: not UTF-8 text (byte 0): save it as UTF-8, or name another file"),
    ],
)
def test_a_broken_file_is_refused_in_one_line(refusal: Callable[..., str], text: str | bytes, message: str) -> None:
    assert refusal(text) == message


def test_aliases_of_aliases_do_not_explode(refusal: Callable[..., str]) -> None:
    levels = "".join(f"{b}: &{b} [{','.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcde", "bcdef", strict=True))
    assert "endless" in refusal("a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n" + levels)  # 10^6 values


def test_a_byte_order_mark_is_not_part_of_the_first_key(values_of: Callable[..., Any]) -> None:
    assert values_of("\ufeffseed: 5\ntrain: {steps: 1}").seed == 5


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("configs/ppo/cartpole.yaml", "configs/vpg/pong.yaml", "mine.yaml"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("seed: 1")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "message"),
    [
        (
            "configs/ppo/cartpol.yaml",
            "configs/ppo/cartpol.yaml: no such file: did you mean 'configs/ppo/cartpole.yaml'?",
        ),
        (
            "configs/pp/cartpole.yaml",
            "configs/pp/cartpole.yaml: no such file: did you mean 'configs/ppo/cartpole.yaml'?",
        ),
        ("cartpole", "cartpole: no such file: did you mean 'configs/ppo/cartpole.yaml'?"),
        ("mime.yaml", "mime.yaml: no such file: did you mean 'mine.yaml'?"),
        ("zzz.yaml", "zzz.yaml: no such file: `rollmill list configs` shows what there is"),
        ("configs", "configs: a folder, not a config file: name a file, `rollmill list configs` shows some"),
        ("mine.yaml/x", "mine.yaml/x: can't be read: Not a directory"),
    ],
)
def test_a_path_that_is_not_a_file_is_refused_with_the_nearest(folder: Path, toy: Any, path: str, message: str) -> None:
    with pytest.raises(Refused) as caught:
        load(Path(path), [], toy)
    assert str(caught.value) == message
