"""Frames for a viewer, and what shows them: `FolderScreen` here, a terminal or a web page next to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rollmill.errors import Refused
from rollmill.persist.run_folder import make_folder
from rollmill.persist.writing import to_json, write_atomically
from rollmill.play.pictures import png_bytes
from rollmill.types import Array


@dataclass(frozen=True)
class WatchFrame:
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
    """A place where frames are shown."""

    most_per_second: float  # frames that it can make use of

    @property
    def is_watched(self) -> bool:
        """Whether there is a viewer; if not, nothing is played."""
        ...

    def show(self, frame: WatchFrame) -> None:
        """Show a frame in the place of the last."""
        ...

    def say(self, text: str) -> None:
        """Show a message while there is no frame."""
        ...

    def close(self) -> None:
        """Restore what was changed."""
        ...


class FolderScreen:
    """Rewrites latest.png and latest.json; with `keeps_all` also writes every frame under its number."""

    most_per_second = 30.0
    is_watched = True

    def __init__(self, folder: Path, keeps_all: bool = False) -> None:
        self._folder, self._keeps_all = folder, keeps_all
        if keeps_all:
            self.most_per_second = 1e6
        make_folder(folder, "--frames")

    def show(self, frame: WatchFrame) -> None:
        """Write the picture, then what belongs to it; a reader never sees half a file."""
        data = png_bytes(frame.picture)
        try:
            if self._keeps_all:
                episode = self._folder / f"episode-{frame.episode:05d}"
                episode.mkdir(exist_ok=True)
                write_atomically(episode / f"{frame.step:06d}.png", data)
            write_atomically(self._folder / "latest.png", data)
            write_atomically(self._folder / "latest.json", to_json(frame.facts()) + "\n")
        except OSError as error:
            raise Refused(f"--frames {self._folder} can't be written to: {error.strerror}; make room") from error

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def close(self) -> None:
        """The files stay."""
