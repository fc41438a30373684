"""Settings of a Doom scenario: section `env.args` when `env.id` is `doom/<scenario>`."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from rollmill.config.base import Config


class DoomConfig(Config):
    """How a scenario is played and observed; null: the scenario's own value."""

    conventions: Literal["sample_factory", "scenario"] = Field(
        default="sample_factory",
        description="default buttons and rewards: Sample Factory's (which differ for health "
        "gathering) or those of the scenario's file",
    )
    resolution: str = Field(default="160x120", description="screen of the engine, one of those that it knows")
    width: int = Field(default=128, ge=8, description="of the observed image, in pixels")
    height: int = Field(default=72, ge=8, description="of the observed image, in pixels")
    resize: Literal["nearest", "area"] = Field(
        default="nearest", description="how the screen becomes the image; area is smoother and slower"
    )
    grey: bool = Field(default=False, description="a grey image [height, width] instead of [height, width, 3]")
    variables: tuple[str, ...] = Field(
        default=(), description="game variables to observe, e.g. HEALTH; makes a dict of image and variables"
    )
    frame_skip: int = Field(default=4, ge=1, description="tics (35 a second) per agent decision")
    actions: Literal["flat", "groups"] = Field(
        default="flat",
        description="flat: nothing or one button; groups: one choice for every pair of opposite buttons, and so on",
    )
    buttons: tuple[str, ...] | None = Field(default=None, description="that may be pressed; null: the scenario's")
    combinations: tuple[tuple[str, ...], ...] | None = Field(
        default=None, description="the list of actions, each the buttons pressed together, instead of `actions`"
    )
    rewards: dict[str, float] = Field(
        default_factory=dict, description="rewards of the engine by name: living (per tic), death, kill, frag, item …"
    )
    health_bonus: float | None = Field(
        default=None, description="reward of a decision after which there is more health than before"
    )
    tics: int | None = Field(default=None, ge=0, description="after which to truncate; 0: never")
    skill: int | None = Field(default=None, ge=1, le=5, description="difficulty")
    map: str | None = Field(default=None, description="name of the map, e.g. map01")
    bots: Annotated[int, Field(ge=0, le=7)] | None = Field(
        default=None, description="computer players, in scenarios for several players"
    )
    game: str | None = Field(default=None, description="path of the game's own .wad file; null: Freedoom")

    @model_validator(mode="after")
    def _names_actions_once(self) -> Self:
        for key in ("buttons", "actions"):
            if (
                self.combinations is not None
                and key in self.model_fields_set
                and getattr(self, key) not in (None, "flat")
            ):
                raise ValueError(f"{key} is not read together with combinations; remove one of them")
        return self
