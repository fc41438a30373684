"""Wrong values: one line that names the file, the line, the key, the value and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

OK = "train:\n  steps: 512\n"  # two lines, so that what is added begins on the third


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sed: 3", "x.yaml:3: unknown key 'sed': did you mean 'seed'?"),
        ("zzz: 3", "x.yaml:3: unknown key 'zzz': known: algorithm, model, rate, seed, train, verbose"),
        ("model:\n  hiden: 3", "x.yaml:4: unknown key 'model.hiden': did you mean 'hidden'?"),
        ("model:\n  class_: Net", "x.yaml:4: unknown key 'model.class_': did you mean 'class'?"),
        (
            "algorithm:\n  name: ppo\n  clip_rang: 0.1",
            "x.yaml:5: unknown key 'algorithm.clip_rang': did you mean 'clip_range'?",
        ),
        (
            "algorithm: {name: vpg, vpg: 1, clip: 1}",
            "x.yaml:3: unknown key 'algorithm.clip': known: baseline, name, vpg",
        ),
        ("algorithm: {name: vpg, vpg: x}", "x.yaml:3: algorithm.vpg: 'x' is not a whole number"),
        (
            "model: {extra: {name: ppo, x: 1}}",
            "x.yaml:3: unknown key 'model.extra.x': known: clip_range, minibatch, name",
        ),
        ("seed: many", "x.yaml:3: seed: 'many' is not a whole number"),
        ("seed: 1e6", "x.yaml:3: seed: 1000000.0 is not a whole number; write 1000000"),
        ("seed: 1.5", "x.yaml:3: seed: 1.5 is not a whole number"),
        ("seed: true", "x.yaml:3: seed: true is not a whole number"),
        ("seed:", "x.yaml:3: seed: null is not a whole number"),
        ("rate: '0.1'", "x.yaml:3: rate: '0.1' is not a number"),
        ("verbose: yes", "x.yaml:3: verbose: 'yes' is not true or false"),
        ("verbose: 1", "x.yaml:3: verbose: 1 is not true or false"),
        ("model: {class: 5}", "x.yaml:3: model.class: 5 is not text; write '5' in quotes"),
        ("model: {args: 5}", "x.yaml:3: model.args: 5 is not a section with keys"),
        (
            "model: big",
            "x.yaml:3: model: 'big' is not a section with keys; its keys: kind, hidden, class, args, scale, extra",
        ),
        ("algorithm: ppo", "x.yaml:3: algorithm: 'ppo' is not a section with keys"),
        ("model: {hidden: 64}", "x.yaml:3: model.hidden: 64 is not a list"),
        ("model:\n  hidden:\n  - 64\n  - x", "x.yaml:6: model.hidden[1]: 'x' is not a whole number"),
        ("model: {scale: x}", "x.yaml:3: model.scale: 'x' is not a whole number or a list"),
        ("model: {scale: [x]}", "x.yaml:3: model.scale[0]: 'x' is not a whole number"),
        ("seed: -1", "x.yaml:3: seed: -1 is out of range: must be ≥ 0"),
        ("algorithm: {name: ppo, clip_range: 0}", "x.yaml:3: algorithm.clip_range: 0 is out of range: must be > 0"),
        ("algorithm: {name: ppo, clip_range: 2}", "x.yaml:3: algorithm.clip_range: 2 is out of range: must be ≤ 1"),
        ("rate: .nan", "x.yaml:3: rate: NaN is out of range: must be finite"),
        ("rate: 1e999", "x.yaml:3: rate: Infinity is out of range: must be finite"),
        ("model: {kind: mpl}", "x.yaml:3: model.kind: 'mpl' is unknown: did you mean 'mlp'?"),
        ("model: {kind: zzz}", "x.yaml:3: model.kind: 'zzz' is unknown: known: cnn, mlp"),
        ("algorithm:\n  name: ppoo", "x.yaml:4: algorithm.name: 'ppoo' is unknown: did you mean 'ppo'?"),
        ("algorithm:\n  minibatch: 3", "x.yaml:3: missing key 'algorithm.name': add 'name: …' below 'algorithm'"),
        (
            "algorithm:\n  name: ppo\n  minibatch: 100",
            "x.yaml:5: algorithm.minibatch: 100 doesn't divide train.steps=512 use 256",
        ),
        ("seed: x\nsed: 3\nrate: x", "x.yaml:3: seed: 'x' is not a whole number (and 2 more)"),
        (
            "zzzz: 1\nseed: x",
            "x.yaml:3: unknown key 'zzzz': known: algorithm, model, rate, seed, train, verbose (and 1 more)",
        ),
        ("seed: " + "x" * 200, f"x.yaml:3: seed: '{'x' * 58}… is not a whole number"),
    ],
)
def test_a_wrong_value_is_refused_in_one_line(refusal: Callable[..., str], text: str, message: str) -> None:
    assert refusal(OK + text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seed: 1", "x.yaml: missing key 'train': add 'train: …' at the top level"),
        ("seed: 1\ntrain: {}", "x.yaml:2: missing key 'train.steps': add 'steps: …' below 'train'"),
        ("train: {steps: 0}", "x.yaml:1: train.steps: 0 is out of range: must be ≥ 1"),
        ("train: {steps: 1, lengths: [1]}", "x.yaml:1: train.lengths: [1] has too few items"),
        (
            "train: {steps: 1, lengths: [1, 2, 3]}",
            "x.yaml:1: train.lengths: [1, 2, 3] is refused: tuple should have at most 2 items after validation, not 3",
        ),
    ],
)
def test_a_missing_value_is_refused_in_one_line(refusal: Callable[..., str], text: str, message: str) -> None:
    assert refusal(text) == message


def test_lists_become_tuples_and_whole_numbers_serve_as_numbers(values_of: Callable[..., Any]) -> None:
    config = values_of(OK + "rate: 1\nmodel: {hidden: [8, 9], class: Net, args: {depth: [1, 2]}}")
    assert config.model.hidden == (8, 9)
    assert (config.rate, type(config.rate)) == (1.0, float)
    assert config.model.class_ == "Net"
    assert config.model.args == {"depth": [1, 2]}
