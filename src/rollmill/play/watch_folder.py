"""Scenes as files, for whatever looks at them: an image viewer, a notebook, a web server."""

from __future__ import annotations

from pathlib import Path

from rollmill.errors import Refused
from rollmill.persist.writing import to_json, write_atomically
from rollmill.play.pictures import png_bytes
from rollmill.play.watch_scene import Scene


class FolderScreen:
    """Rewrites latest.png and latest.json; with `keeps_all` also writes every scene under its number."""

    most_per_second = 30.0
    is_watched = True

    def __init__(self, folder: Path, keeps_all: bool = False) -> None:
        self._folder, self._keeps_all = folder, keeps_all
        if keeps_all:
            self.most_per_second = 1e6
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Refused(f"--frames {folder} can't be made: {error.strerror}; choose another folder") from error

    def show(self, scene: Scene) -> None:
        """Write the picture, then what belongs to it; a reader never sees half a file."""
        data = png_bytes(scene.picture)
        try:
            if self._keeps_all:
                episode = self._folder / f"episode-{scene.episode:05d}"
                episode.mkdir(exist_ok=True)
                write_atomically(episode / f"{scene.step:06d}.png", data)
            write_atomically(self._folder / "latest.png", data)
            write_atomically(self._folder / "latest.json", to_json(scene.facts()) + "\n")
        except OSError as error:
            raise Refused(f"--frames {self._folder} can't be written to: {error.strerror}; make room") from error

    def say(self, text: str) -> None:
        """Print a line."""
        print(text, flush=True)

    def close(self) -> None:
        """The files stay."""
