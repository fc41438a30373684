"""A small schema with every kind of field that the real one has."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from rollmill.config.base import Config
from rollmill.config.load import load
from rollmill.errors import Refused


class Ppo(Config):
    name: Literal["ppo"] = "ppo"
    clip_range: float = Field(0.2, gt=0, le=1)
    minibatch: int = Field(256, ge=1)


class Vpg(Config):
    name: Literal["vpg"] = "vpg"
    baseline: bool = True
    vpg: int = 0  # a key that is called like the tag: messages must not take the one for the other


class Train(Config):
    steps: int = Field(ge=1)
    lengths: tuple[int, int] = (1, 2)


class Model(Config):
    kind: Literal["mlp", "cnn"] = "mlp"
    hidden: tuple[int, ...] = (64, 64)
    class_: str | None = Field(None, alias="class")
    args: dict[str, Any] = Field(default_factory=dict)
    scale: int | tuple[int, ...] = 1
    extra: Annotated[Ppo | Vpg, Field(discriminator="name")] | None = None


class Toy(Config):
    seed: int = Field(1, ge=0)
    rate: float = 1e-3
    verbose: bool = False
    algorithm: Annotated[Ppo | Vpg, Field(discriminator="name")] = Ppo()
    train: Train
    model: Model = Model()

    @model_validator(mode="after")
    def _minibatch_divides(self) -> Toy:
        if isinstance(self.algorithm, Ppo) and self.train.steps % self.algorithm.minibatch not in (0, self.train.steps):
            size = self.algorithm.minibatch
            raise ValueError(f"algorithm.minibatch: {size} doesn't divide train.steps={self.train.steps}\nuse 256")
        return self


@pytest.fixture(scope="session")
def toy() -> type[Toy]:
    return Toy


@pytest.fixture
def refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What is said about a config file `x.yaml` with this text."""
    monkeypatch.chdir(tmp_path)

    def refuse(text: str | bytes, *overrides: str) -> str:
        Path("x.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        with pytest.raises(Refused) as caught:
            load(Path("x.yaml"), overrides, Toy)
        return str(caught.value)

    return refuse


@pytest.fixture
def values_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Toy]:
    """The config of a file with this text."""
    monkeypatch.chdir(tmp_path)

    def read(text: str, *overrides: str) -> Toy:
        Path("x.yaml").write_text(text)
        return load(Path("x.yaml"), overrides, Toy).config

    return read
