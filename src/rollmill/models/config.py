"""The `model` section: a network from the parts that are here, or one of the user's own."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from rollmill.config.base import Config, shown

TorsoName = Literal["auto", "mlp", "nature_cnn", "small_cnn", "cnn", "merged"]
ActivationName = Literal["tanh", "relu", "silu", "elu"]
MemoryName = Literal["none", "gru", "lstm"]
PaddingName = Literal["valid", "same"]
Width = Annotated[int, Field(ge=1)]
Convolution = tuple[Width, Width, Width]  # filters, kernel, stride

_TORSO_KEYS = ("torso", "hidden", "activation", "conv", "padding", "features", "vector_hidden", "shared")
_BUILT_IN_ONLY = (*_TORSO_KEYS, "memory", "memory_size", "normalise_images")
_MLP_ONLY = ("hidden", "activation")  # the published CNNs have ReLUs and one linear layer, of width `features`


class ModelConfig(Config):
    """Settings of the network; a key that its combination with others leaves unread is refused."""

    torso: TorsoName = Field(
        default="auto",
        description="what reads the observation; auto: merged for dicts; for images cnn if conv is set, otherwise "
        "nature_cnn from 36 pixels on both sides on and small_cnn below; mlp for the rest",
    )
    hidden: tuple[Width, ...] = Field(default=(64, 64), description="units of each layer of the MLP, or after merging")
    activation: ActivationName = Field(
        default="tanh", description="after the layers of the MLP, and of conv; nature_cnn and small_cnn have ReLUs"
    )
    conv: tuple[Convolution, ...] = Field(
        default=(), description="convolutions of torso cnn and of the images of a dict, each [filters, kernel, stride]"
    )
    padding: PaddingName = Field(
        default="valid", description="of conv; same: with zeros around, so that only strides make an image smaller"
    )
    features: int | None = Field(
        default=512, ge=1, description="units of the linear layer after the convolutions; null: no such layer"
    )
    vector_hidden: tuple[Width, ...] = Field(
        default=(),
        description="MLP of the entries of a dict that are not images, before they are merged with the images",
    )
    shared: bool | None = Field(
        default=None, description="one torso for policy and value; null: only where it is a CNN, merged or has memory"
    )
    memory: MemoryName = Field(default="none", description="recurrent layer after the torso")
    memory_size: int = Field(default=64, ge=1, description="units of the recurrent layer")
    initialisation: Literal["orthogonal", "default"] = Field(
        default="orthogonal",
        description="of the weights; default: PyTorch's own; a custom model keeps its own but for the heads",
    )
    zero_last_layer: bool | None = Field(
        default=None,
        description="start with the policy's last layer zero (maximum entropy); null: as the algorithm wants",
    )
    normalise_observations: bool = Field(
        default=False, description="float observations to zero mean and unit standard deviation, by running statistics"
    )
    normalise_images: bool = Field(
        default=False, description="the same for uint8 images, per channel; otherwise 0–255 is read as 0–1"
    )
    initial_log_std: float = Field(
        default=0.0, description="log of the standard deviation of a continuous action at the start"
    )
    rescale_actions: bool = Field(
        default=True, description="-1 and 1 of a continuous policy are the action's bounds; false: only clip to them"
    )
    file: str | None = Field(default=None, description="Python file with a custom model, relative to the config file")
    class_: str | None = Field(default=None, alias="class", description="class of the custom model in `file`")
    module: str | None = Field(default=None, description="custom model of an installed package, as package.module:Name")
    args: dict[str, Any] = Field(default={}, description="keyword arguments of the custom model's class")

    @property
    def is_custom(self) -> bool:
        """The user names the model's code."""
        return self.file is not None or self.module is not None

    @property
    def setting(self) -> str:
        """How refusals name the model, e.g. `model.file=my_net.py`."""
        if self.file is not None:
            return f"model.file={self.file}"
        return f"model.module={self.module}" if self.module is not None else f"model.torso={self.torso}"

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.file is not None and self.module is not None:
            raise ValueError(f"file={self.file} and module={self.module} name two models; remove one")
        if self.file is not None and self.class_ is None:
            raise ValueError(f"file={self.file} needs the name of a class in it; add class: MyNet")
        if self.torso == "cnn" and not self.conv:
            raise ValueError("torso=cnn has no convolutions; add conv: [[filters, kernel, stride], …]")
        if self.memory != "none" and self.shared is False:
            raise ValueError(f"shared=false: memory={self.memory} is one for policy and value; remove shared")
        return self

    @model_validator(mode="after")
    def _has_no_unread_key(self) -> Self:
        if self.is_custom:
            self._refuse(_BUILT_IN_ONLY, f"with a custom model ({self.setting})", "pass it through args, or remove it")
            if self.module is not None:
                self._refuse(("class_",), "with module", "write module: package.module:Name and remove it")
            return self
        self._refuse(("class_", "args"), "without a custom model", "name its file or module, or remove it")
        if self.memory == "none":
            self._refuse(("memory_size",), "while memory=none", "choose memory gru or lstm, or remove it")
        while_torso = f"while torso={self.torso}"
        if self.torso == "mlp":
            self._refuse(("features",), while_torso, "set hidden instead, or remove it")
        if self.torso in ("nature_cnn", "small_cnn", "cnn"):
            keys = ("hidden",) if self.torso == "cnn" else _MLP_ONLY
            self._refuse(keys, while_torso, "set features instead, or remove it")
        if self.torso in ("mlp", "nature_cnn", "small_cnn"):
            self._refuse(("conv",), while_torso, "choose torso cnn or merged, or remove it")
        if self.torso not in ("auto", "merged"):
            self._refuse(("vector_hidden",), while_torso, "choose torso merged, or remove it")
        if not self.conv:
            self._refuse(("padding",), "without conv", "list the convolutions, or remove it")
        return self

    def _refuse(self, keys: tuple[str, ...], why: str, remedy: str) -> None:
        """Refuse a value other than the default; defaults pass, since a resolved config names every key."""
        for key in keys:
            field, value = type(self).model_fields[key], getattr(self, key)
            if value != field.default:
                raise ValueError(f"{field.alias or key}={shown(value)} is not read {why}; {remedy}")
