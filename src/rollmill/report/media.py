"""Videos and pictures of a run, carried inside the page."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rollmill.report.groups import Group
from rollmill.report.run_record import Record

MOST_OF_ONE = 8_000_000  # bytes of a file
MOST_OF_ALL = 40_000_000  # bytes of all files; a page much larger than this opens slowly
PICTURES = 4  # of one run
KINDS = {".mp4": "video/mp4", ".png": "image/png"}


@dataclass(frozen=True)
class Medium:
    """A file to show, or to name where it is too large."""

    run: Record
    file: Path
    size: int
    uri: str | None  # data: URI; None if it was left out for its size

    @property
    def is_video(self) -> bool:
        """Whether it moves."""
        return self.file.suffix == ".mp4"


class MediaBudget:
    """How many bytes of videos and pictures the page may still take."""

    def __init__(self, size: int = MOST_OF_ALL) -> None:
        self._left = size

    def load(self, run: Record, file: Path) -> Medium | None:
        """The file, without its content if there is no room; None if it can't be read or is empty."""
        try:
            size = file.stat().st_size
            if not size:
                return None
            if size > min(MOST_OF_ONE, self._left):
                return Medium(run, file, size, None)
            content = base64.b64encode(file.read_bytes()).decode()
        except OSError:
            return None
        self._left -= size
        return Medium(run, file, size, f"data:{KINDS[file.suffix]};base64,{content}")


def media_of(group: Group, budget: MediaBudget) -> list[Medium]:
    """The newest evaluation's video and pictures of each run; if no run has any, the curve of the best one."""
    found = [medium for run in group.runs for file in _shown(run) if (medium := budget.load(run, file))]
    if not found:
        best = max(group.runs, key=_score)
        curve = budget.load(best, best.path / "curve.png") if (best.path / "curve.png").is_file() else None
        found = [curve] if curve else []
    return found


def _score(run: Record) -> float:
    mean = run.number("returns", "mean_100")
    return float("-inf") if mean is None else mean


def _shown(run: Record) -> Iterator[Path]:
    folder = run.evaluation
    if folder is None:
        return
    videos = sorted(path for path in folder.rglob("*.mp4") if not path.name.startswith("."))
    grids = [path for path in videos if path.stem == "grid"]
    yield from (grids or videos)[:1]
    yield from sorted(path for path in folder.rglob("*.png") if not path.name.startswith("."))[:PICTURES]
