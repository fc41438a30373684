"""Settings of drone dodgeball: `env.args`."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from rollmill.config.base import Config

TREES = {"dodgeball/box": 0, "dodgeball/forest": 8}  # ids, and how many trees each has by default
RATE = 50  # agent decisions per second
MASS_LIMIT = 2.0  # kilograms: 20 N / 9.81 m/s², rounded down


TIME_LIMIT = 250  # agent decisions, unless env.time_limit says otherwise


class DodgeballConfig(Config):
    """Lengths in metres, masses in kilograms, forces in newtons, times in seconds unless a field says otherwise."""

    mode: Literal[1, 2, 3] = Field(
        default=3, description="which axes are controlled: 1 thrust, 2 thrust and roll, 3 all; the others are ignored"
    )
    flatten: bool = Field(default=False, description="one action of 81 instead of four of 3")
    rays: bool = Field(default=True, description="add the image of ray distances to the vector")
    ray_range: float = Field(default=15.0, gt=0.0, description="distance that is shown as 255, like all beyond it")
    launchers: int = Field(default=1, ge=0, le=8, description="ball launchers on the front wall")
    launch_interval: float = Field(default=1.2, ge=0.1, le=60.0, description="between two balls of a launcher")
    force_min: float = Field(default=60.0, gt=0.0, le=500.0, description="least force of a throw; it acts for 1/50 s")
    force_max: float = Field(default=90.0, gt=0.0, le=500.0, description="greatest force of a throw")
    spread: float = Field(default=0.3, ge=0.0, le=5.0, description="a throw misses its aim by up to this on each axis")
    ball_mass: float = Field(default=0.12, gt=0.0, description="lighter balls are faster")
    ball_radius: float = Field(default=0.25, gt=0.0, le=2.0, description="of a ball")

    drone_mass: float = Field(
        default=1.5, gt=0.0, description="a heavier drone reacts more slowly; 20 N of thrust must lift it"
    )
    drone_radius: float = Field(default=0.3, gt=0.0, le=2.0, description="of the sphere that balls and trees hit")
    trees: int | None = Field(
        default=None, ge=0, le=32, description="obstacles, from floor to ceiling; null: 8 in the forest, else none"
    )
    tree_radius: float = Field(default=0.3, gt=0.0, le=2.0, description="of a tree")

    waypoint_reward: float = Field(default=1.0, ge=0.0, description="weight of clamp(1 / (d + 0.5) − 0.1, 0, 1)")
    survival_reward: float = Field(default=0.01, ge=0.0, description="for a step that doesn't end the episode")
    tilt_penalty: float = Field(default=0.1, ge=0.0, description="for a step beyond 70° and not beyond 85°")
    flip_penalty: float = Field(default=1.0, ge=0.0, description="for tilting beyond 85°, which ends the episode")
    hit_penalty: float = Field(default=1.0, ge=0.0, description="for touching a ball or tree, which ends the episode")
    exit_penalty: float = Field(default=1.0, ge=0.0, description="for leaving the box, which ends the episode")

    def with_trees_of(self, env_id: str) -> DodgeballConfig:
        """The settings with the id's number of trees, unless it was given."""
        return self if self.trees is not None else self.model_copy(update={"trees": TREES[env_id]})

    @property
    def interval_steps(self) -> int:
        """Agent decisions between two balls of a launcher."""
        return max(1, round(self.launch_interval * RATE))

    @model_validator(mode="after")
    def _is_a_range(self) -> Self:
        if self.force_min > self.force_max:
            raise ValueError(f"force_min={self.force_min} is above force_max={self.force_max}; swap them")
        return self

    @model_validator(mode="after")
    def _can_fly(self) -> Self:
        if self.drone_mass >= MASS_LIMIT:
            raise ValueError(f"drone_mass={self.drone_mass} can't be lifted by 20 N; choose less than {MASS_LIMIT}")
        return self
