"""What a viewer is shown, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rollmill.types import Array


@dataclass(frozen=True)
class Scene:
    """A moment of an episode."""

    picture: Array  # uint8 [H, W, 3]
    title: str  # e.g. "ppo on CartPole-v1"
    run: str
    trained_steps: int | None  # env steps that the policy had learned from; None where it is unknown
    episode: int  # counted from 1, since watching began
    step: int  # agent decisions of this episode
    episode_return: float  # raw, so far
    end: str  # "" | "terminated" | "truncated"
    returns: tuple[float, ...] = ()  # of the last episodes, oldest first

    def facts(self) -> dict[str, Any]:
        """All but the picture, for JSON."""
        return {name: value for name, value in vars(self).items() if name != "picture"}

    def caption(self) -> str:
        """The facts in one line."""
        trained = "" if self.trained_steps is None else f" after {self.trained_steps:,} steps"
        end = f", {self.end}" if self.end else ""
        return f"{self.title}{trained}  episode {self.episode}  step {self.step}  return {self.episode_return:.4g}{end}"


class Screen(Protocol):
    """A place where scenes are shown."""

    most_per_second: float  # scenes that it can make use of

    @property
    def is_watched(self) -> bool:
        """Whether there is a viewer; if not, nothing is played."""
        ...

    def show(self, scene: Scene) -> None:
        """Show a scene in the place of the last."""
        ...

    def say(self, text: str) -> None:
        """Tell the viewer something while there is nothing to show."""
        ...

    def close(self) -> None:
        """Leave everything as it was found."""
        ...
