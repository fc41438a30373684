"""Settings of environments: section `env` of a config."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from rollmill.config.base import Config
from rollmill.envs.names import is_atari

ATARI_STACK = 4  # frames, as since Mnih et al. (2015)

AtariPreset = Literal["classic", "machado", "dopamine", "apex"]
# Published settings by name; a key that is given with a preset wins over it.
ATARI_PRESETS: dict[AtariPreset, dict[str, Any]] = {
    "classic": {"noop_max": 30, "sticky": 0.0, "full_actions": False, "one_life": False, "max_frames": 108_000},
    "machado": {"noop_max": 0, "sticky": 0.25, "full_actions": True, "one_life": False, "max_frames": 18_000},
    "dopamine": {"noop_max": 0, "sticky": 0.25, "full_actions": False, "one_life": False, "max_frames": 108_000},
    "apex": {"noop_max": 30, "sticky": 0.0, "full_actions": True, "one_life": True, "max_frames": 108_000},
}


class AtariConfig(Config):
    """How an Atari game is played and seen; read only when `env.id` is an Atari game."""

    preset: AtariPreset | None = Field(
        default=None,
        description="values of noop_max, sticky, full_actions, one_life and max_frames that aren't given: "
        "as DQN played (classic), Machado et al. (2018), Dopamine, or Ape-X with one life",
    )
    frame_skip: int = Field(
        default=4, ge=1, description="emulator frames per agent decision; the last two are max-pooled"
    )
    noop_max: int = Field(
        default=30, ge=0, description="at most this many no-op frames start an episode (at least 1; 0: none)"
    )
    sticky: float = Field(
        default=0.0, ge=0.0, lt=1.0, description="probability, per frame, that the last action is repeated"
    )
    one_life: bool = Field(default=False, description="a lost life ends the episode; the next one is a fresh game")
    full_actions: bool = Field(default=False, description="all 18 actions instead of those the game knows")
    max_frames: int = Field(
        default=108_000, ge=1, description="emulator frames (no-ops included) after which to truncate"
    )
    size: int = Field(default=84, ge=1, description="height and width of the grey image, in pixels")
    fire_reset: bool = Field(default=False, description="press FIRE once at the start, in games that have that action")

    @model_validator(mode="before")
    @classmethod
    def _fill_in_preset(cls, values: Any) -> Any:
        """The values of the preset under those that were given; a wrong name is left to be refused."""
        preset = values.get("preset") if isinstance(values, dict) else None
        known = ATARI_PRESETS.get(preset) if isinstance(preset, str) else None  # type: ignore[call-overload]
        return values if known is None else {**known, **values}


class EnvConfig(Config):
    """Which environment, how many of them, and what is done to their observations and rewards."""

    id: str = Field(
        min_length=1,
        description="gymnasium id, Atari game, path/to/file.py:Name, package.module:Name, or one of oscillator/, "
        "dodgeball/, doom/, unity/ and probe/<name>",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="arguments of the environment's constructor")
    groups: int = Field(default=1, ge=1, description="number of env groups; each is one actor")
    group_size: int = Field(default=8, ge=1, description="environments per group, stepped as one batch")
    frame_stack: int | None = Field(
        default=None, ge=1, description="observations seen at once; null: 4 for Atari, else 1"
    )
    time_limit: int | None = Field(
        default=None, ge=1, description="agent decisions after which to truncate, instead of the registered limit"
    )
    previous: bool = Field(
        default=False, description="add the last action and reward to the observation, for recurrent agents"
    )
    reward_scale: float = Field(
        default=1.0, gt=0.0, description="factor on rewards before learning; returns are logged raw"
    )
    reward_clip: float | None = Field(
        default=None, gt=0.0, description="clip scaled rewards to ± this; null: no clipping"
    )
    atari: AtariConfig = Field(default_factory=AtariConfig, description="Atari games only")

    @property
    def is_atari(self) -> bool:
        """Whether `id` means an Atari game."""
        return is_atari(self.id)

    @property
    def stacked_frames(self) -> int:
        """How many observations the agent sees at once, with the default of the kind of environment resolved."""
        return self.frame_stack or (ATARI_STACK if self.is_atari else 1)

    @model_validator(mode="after")
    def _refuse_unread_keys(self) -> EnvConfig:
        """A key that would not be read is an error: it looks like a setting and does nothing."""
        if "atari" in self.model_fields_set and not self.is_atari:
            raise ValueError(f"env.atari is not read: env.id={self.id} is not an Atari game; remove it")
        if self.args and self.is_atari:
            raise ValueError(f"env.args is not read: env.id={self.id} is an Atari game; use env.atari instead")
        return self

    @model_serializer(mode="wrap")
    def _leave_out_unread_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out the section that would be refused as unread, so that the dump can be loaded again."""
        tree: dict[str, Any] = serialize(self)
        if not self.is_atari:
            tree.pop("atari", None)
        return tree
