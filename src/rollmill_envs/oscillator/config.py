"""Settings of an ensemble: `env.args` of `oscillator/…`; each model has defaults of its own."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rollmill.config.base import Config, shown

Range = tuple[float, float]  # low, high
Count = Annotated[int, Field(ge=1)]

_PULSE_ONLY = ("width", "recharge", "rest")


class OscillatorConfig(Config):
    """Settings that all ensembles share; times are counted in integration steps."""

    variables: ClassVar[int]  # of one neuron: x, y and for bursting z
    starts: ClassVar[tuple[Range, ...]]  # each variable of a neuron starts uniformly in its range
    current: ClassVar[Range]  # mean and deviation of the normal that each neuron's own current is drawn from
    bound: ClassVar[float]  # observations lie within ± this
    default_time_limit: ClassVar[int]  # integration steps

    neurons: int = Field(default=1000, ge=1, description="N, per ensemble")
    step: float = Field(gt=0, le=0.5, description="time that one integration step covers")
    coupling: float | Range = Field(description="ε; as [low, high] drawn uniformly per episode")
    drift: Literal["none", "linear", "walk"] = Field(
        default="none",
        description="ε within an episode, over the range of coupling: from low to high, or a random walk in it",
    )
    walk: float = Field(
        default=0.1, gt=0, le=1, description="deviation of the random walk per 250 steps, as a share of the range"
    )
    observe: Literal["x", "y"] = Field(description="variable whose mean is observed")
    window: int = Field(ge=2, description="how many of its last values are observed")
    warm_up: int | tuple[int, int] | None = Field(
        default=None,
        description="uncontrolled steps before an episode, at least window; as [low, high] drawn per episode, so that "
        "control begins at any phase of the beat; null: window",
    )
    action_limit: float = Field(gt=0, le=2, description="actions lie within ± this")
    levels: int | None = Field(
        default=None, ge=2, description="discrete actions, evenly spaced within the limits; null: continuous"
    )
    pulse: Literal["direct", "rectangular", "charge_balanced"] = Field(
        default="direct", description="an action moves every x at once, or over width steps, or is then reversed"
    )
    width: int = Field(default=5, ge=1, description="steps of a rectangular pulse")
    recharge: int = Field(default=20, ge=1, description="steps of the weaker opposite pulse; longer than width")
    rest: int = Field(default=0, ge=0, description="steps without current after a rectangular pulse")
    deviation_weight: float = Field(ge=0, description="factor of the squared deviation of X in the reward")
    action_weight: float = Field(ge=0, description="factor of |a| in the reward")
    target: float | Literal["mean"] = Field(description="what X should be; mean: the mean of its own window")
    frozen: str | None = Field(
        default=None, min_length=1, description="run or checkpoint of a first agent whose actions are added"
    )
    stagger: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="an episode ends before the time limit by up to this share of it, drawn from its seed, so that "
        "environments that started together don't stay in step",
    )
    examination: Literal["short", "long"] = Field(
        default="short", description="phases of the examination: 7500/7500/5000 or 25000/25000/5000 steps"
    )
    ensembles: Count = Field(default=4, description="that are examined")

    @property
    def coupling_range(self) -> Range:
        """Lowest and highest ε."""
        return self.coupling if isinstance(self.coupling, tuple) else (self.coupling, self.coupling)

    @property
    def warm_up_range(self) -> tuple[int, int]:
        """Fewest and most uncontrolled steps before an episode."""
        if isinstance(self.warm_up, tuple):
            return self.warm_up
        steps = self.window if self.warm_up is None else self.warm_up
        return steps, steps

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        low, high = self.coupling_range
        if low > high:
            raise ValueError(f"coupling=[{low:g}, {high:g}]: the lower end comes first; swap them")
        if self.drift != "none" and low == high:
            raise ValueError(f"drift={self.drift} needs a range to move in; write coupling: [{low:g}, 0.5], say")
        fewest, most = self.warm_up_range
        if fewest < self.window:
            raise ValueError(f"warm_up={shown(self.warm_up)} doesn't fill window={self.window}; raise it")
        if fewest > most:
            raise ValueError(f"warm_up=[{fewest}, {most}]: the lower end comes first; swap them")
        if self.pulse == "charge_balanced" and self.recharge <= self.width:
            raise ValueError(f"recharge={self.recharge} must be longer than width={self.width}; raise it")
        return self

    @model_validator(mode="after")
    def _has_no_unread_key(self) -> Self:
        unread = {"direct": _PULSE_ONLY, "rectangular": ("recharge",), "charge_balanced": ()}[self.pulse]
        for key in unread:
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key}={getattr(self, key)} is not read while pulse={self.pulse}; remove it")
        if self.walk != type(self).model_fields["walk"].default and self.drift != "walk":
            raise ValueError(f"walk={self.walk:g} is not read while drift={self.drift}; remove it")
        return self


class BvpConfig(OscillatorConfig):
    """Bonhoeffer–van der Pol: regular spiking."""

    variables = 2
    starts = ((-1.0, 1.0), (-1.0, 1.0))
    current = (0.6, 0.1)
    bound = 1.5
    default_time_limit = 10_000

    step: float = Field(default=0.2, gt=0, le=0.5, description="time that one integration step covers")
    coupling: float | Range = Field(default=0.03, description="ε; as [low, high] drawn uniformly per episode")
    observe: Literal["x", "y"] = Field(default="y", description="variable whose mean is observed")
    window: int = Field(default=250, ge=2, description="how many of its last values are observed")
    action_limit: float = Field(default=1.0, gt=0, le=2, description="actions lie within ± this")
    deviation_weight: float = Field(default=1.0, ge=0, description="factor of the squared deviation of X")
    action_weight: float = Field(default=2.0, ge=0, description="factor of |a| in the reward")
    target: float | Literal["mean"] = Field(default="mean", description="what X should be; mean: that of its window")


class HindmarshRoseConfig(OscillatorConfig):
    """Hindmarsh–Rose: bursts of spikes, with a slow third variable.

    The observation is the mean of x, which stays within ±2; the mean of y goes down to −10. With a step of 0.1 the
    method is unstable where strong actions push x below −2 (the Jacobian reaches −30), hence 0.05.
    """

    variables = 3
    starts = ((-1.0, 1.0), (-1.0, 1.0), (2.2, 3.0))  # z: where the slow variable stays once bursting has begun
    current = (3.0, 0.02)
    bound = 2.0
    default_time_limit = 5_000

    step: float = Field(default=0.05, gt=0, le=0.1, description="time that one integration step covers")
    coupling: float | Range = Field(default=0.2, description="ε; as [low, high] drawn uniformly per episode")
    observe: Literal["x", "y"] = Field(default="x", description="variable whose mean is observed")
    window: int = Field(default=150, ge=2, description="how many of its last values are observed")
    action_limit: float = Field(default=0.5, gt=0, le=2, description="actions lie within ± this")
    deviation_weight: float = Field(default=2.0, ge=0, description="factor of the squared deviation of X")
    action_weight: float = Field(default=0.5, ge=0, description="factor of |a| in the reward")
    target: float | Literal["mean"] = Field(default=-0.4, description="what X should be; mean: that of its window")


SETTINGS: dict[str, type[OscillatorConfig]] = {
    "oscillator/bvp": BvpConfig,
    "oscillator/hindmarsh-rose": HindmarshRoseConfig,
}
