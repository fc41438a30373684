"""A stand-in for `rollmill.experiment`: the command line is tested apart from training."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from pydantic import Field

from rollmill.cli import main
from rollmill.config.base import Config
from rollmill.config.load import Loaded, load
from rollmill.errors import Refused


class Train(Config):
    steps: int = Field(ge=1)


class Toy(Config):
    seed: int = 1
    title: str = 'a "toy"'
    train: Train


class Ended(NamedTuple):
    """How a command ended and what it wrote."""

    code: int
    out: str
    err: str


@pytest.fixture
def rollmill(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Ended]:
    """Run the command line in this process."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(variable, "1")  # what `main` sets is undone after the test

    def run(*words: str) -> Ended:
        code = main(words)
        written = capsys.readouterr()
        return Ended(code, written.out, written.err)

    return run


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """The stand-in; `train_run` may be replaced, its calls are kept in `calls`."""
    module: Any = ModuleType("rollmill.experiment")
    module.ExperimentConfig = Toy
    module.calls = []

    def train_run(*arguments: Any) -> Any:
        module.calls.append(arguments)
        return SimpleNamespace(status="done", signal=None)

    def check_config(loaded: Loaded[Toy]) -> None:
        if loaded.config.seed == 13:
            raise Refused("seed: 13 can't be wired: choose another")

    module.train_run = train_run
    module.load_config = lambda path, overrides: load(path, overrides, Toy)
    module.check_config = check_config
    module.graph_text = lambda loaded: "actor ─► learner"
    module.known_algorithms = lambda: {"ppo": "clipped policy gradients", "vpg": "plain ones", "appo": "asynchronous"}
    monkeypatch.setitem(sys.modules, "rollmill.experiment", module)
    monkeypatch.chdir(tmp_path)
    return module
