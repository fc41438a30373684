"""The checkpoints of a run: when one is due, writing it at once or not at all, which to keep, finding the newest good.

In the order of calls:

    checkpoints = Checkpoints(run / "checkpoints", config)
    found = checkpoints.newest()  # resume from found.content, report checkpoints.complaints
    while training:
        if checkpoints.due(update, perf_counter()):
            checkpoints.write(Content(arrays, state, update, env_steps), metric)
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from pydantic import Field

from rollmill.config.base import Config
from rollmill.launch.proc import is_alive
from rollmill.persist.best import EVALUATED
from rollmill.persist.parts import Checkpoint, Content, Damaged, Manifest, Metric, Unjudged, write_parts
from rollmill.persist.writing import link_atomically, remove, sync_folder

__all__ = ["EVALUATION", "Checkpoint", "CheckpointConfig", "Checkpoints", "Content", "Damaged", "Found", "Unjudged"]

EVALUATION = "evaluation"  # the value of checkpoint.best that leaves the choice to periodic evaluation

_HIDDEN = re.compile(r"\.(?:draft|trash)-.+-([0-9]{1,18})")  # what it is of, and the process

T = TypeVar("T")


class CheckpointConfig(Config):
    """When checkpoints are made and which of them are kept."""

    seconds: float = Field(default=60, gt=0, description="a checkpoint at least this often, in seconds of wall time")
    updates: int | None = Field(
        default=None, ge=1, description="also a checkpoint at every multiple of this many updates; null: by time alone"
    )
    keep: int = Field(default=3, ge=1, description="how many of the newest checkpoints are kept")
    milestone_steps: int | None = Field(
        default=None, ge=1, description="the first checkpoint after each multiple of this many steps is kept for ever"
    )
    best: str = Field(
        default="mean_100",
        description="the metric whose highest value makes the checkpoint that is kept as `best`; "
        "evaluation: the mean return found by observe.evaluate",
    )


@dataclass(frozen=True)
class Found(Generic[T]):
    """What was read from the newest good checkpoint, and a sentence about each newer one that is not good."""

    content: T
    path: Path  # of the checkpoint
    complaints: list[str]


class _Name(NamedTuple):
    """The name of a checkpoint's folder; newer ones are greater."""

    update: int
    attempt: int  # above 0 if there was a checkpoint of this update already

    def __str__(self) -> str:
        return f"{self.update:09d}" + (f"-{self.attempt}" if self.attempt else "")

    @classmethod
    def read(cls, text: str) -> _Name | None:
        match = re.fullmatch(r"([0-9]{9,18})(?:-([0-9]{1,9}))?", text)
        name = cls(int(match[1]), int(match[2] or 0)) if match else None
        return name if str(name) == text else None


class Checkpoints:
    """The folder `<run>/checkpoints`: one folder per checkpoint, named by its update, and the links latest and best.

    Nothing is replaced in place: if there is a checkpoint of an update already, the next one is `<update>-1`, and the
    former is removed after it. Hidden names are work in progress: `.draft-…` is being written, `.trash-…` is being
    removed; the last part is the process that does it.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder = folder
        self.config = config
        self.complaints: list[str] = []  # of the last `newest()`, also if it found none
        self._listed: set[_Name] = set()  # all that were there then
        self._known: dict[_Name, Manifest | None] = {}  # of the checkpoints that seem good; None: it is damaged
        self._current: _Name | None = None  # the one that was found or written last
        self._last_due: tuple[int, float] | None = None

    @property
    def last_update(self) -> int | None:
        """The update of the checkpoint that was found or written last."""
        return None if self._current is None else self._current.update

    def due(self, update: int, seconds: float) -> bool:
        """Whether to write now, by the clock reading `seconds`; counts as tried, so a full disk isn't tried each time.

        The first call returns True (checkpoint 0), except at the update that `newest()` has found.
        """
        if self._last_due is None:
            is_due = update != self.last_update
        else:
            last_update, last_seconds = self._last_due
            every = self.config.updates
            is_due = update != last_update and (
                seconds - last_seconds >= self.config.seconds
                or (every is not None and update // every > last_update // every)
            )
        if is_due or self._last_due is None:
            self._last_due = update, seconds
        return is_due

    def write(self, content: Content, metric: float | None = None) -> Path:
        """Put a checkpoint on the disk, point the links at it and remove those that need not be kept.

        After an OSError the new one may be missing; all others are as they were. A folder that is gone is made again.
        """
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)
        self._sweep()
        name = _Name(
            content.update, max((n.attempt + 1 for n in self._names() if n.update == content.update), default=0)
        )
        draft = self._hidden("draft", str(name))
        measured = None
        if metric is not None and math.isfinite(metric):
            measured = Metric(name=self.config.best, value=float(metric))
        try:
            manifest = write_parts(draft, content, measured, self._previous())
            os.rename(draft, self._path(name))
            sync_folder(self.folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._known[name], self._current = manifest, name
        # From here on the checkpoint is safe; links and old checkpoints can wait for the next time.
        self._survey()
        self._link("latest", str(name))
        if self.config.best == EVALUATION:
            self._link("best", EVALUATED)  # leads nowhere until something has been evaluated
        elif (best := self._best()) is not None:
            self._link("best", str(best))
        self._prune()
        return self._path(name)

    def newest(self) -> Found[Content] | None:
        """The newest good checkpoint, all of it; what is wrong with newer ones is in `complaints`."""
        return self.newest_with(Checkpoint.content)

    def newest_with(self, read: Callable[[Checkpoint], T]) -> Found[T] | None:
        """The newest checkpoint of which `read` finds all that it reads to be good; the links are not used."""
        self.complaints = []
        try:
            self._listed = self._names()
        except OSError as error:
            self.complaints.append(f"{self.folder}: can't be listed: {error.strerror}")
            return None
        for name in sorted(self._listed, reverse=True):
            path = self._path(name)
            try:
                checkpoint = Checkpoint(path)
                content = read(checkpoint)
                if checkpoint.update != name.update:
                    reason = f"is named for update {name.update} but holds update {checkpoint.update}"
                    raise Unjudged(path, reason)
            except Damaged as damaged:
                self.complaints.append(str(damaged))
                if not isinstance(damaged, Unjudged):
                    self._known[name] = None
            else:
                self._known[name], self._current = checkpoint.manifest, name
                return Found(content, path, list(self.complaints))
        return None

    def has_changed(self) -> bool:
        """Whether there are other checkpoints than `newest()` has seen; under a name there is only ever one."""
        return self._names() != self._listed

    @staticmethod
    def read(path: Path) -> Content:
        """All of one checkpoint, or `Damaged`."""
        return Checkpoint(path).content()

    def _path(self, name: _Name) -> Path:
        return self.folder / str(name)

    def _hidden(self, kind: str, name: str) -> Path:
        return self.folder / f".{kind}-{name}-{os.getpid()}"

    def _names(self) -> set[_Name]:
        try:
            return {name for entry in os.listdir(self.folder) if (name := _Name.read(entry)) is not None}
        except FileNotFoundError:
            return set()

    def _previous(self) -> Checkpoint | None:
        """The checkpoint from which this run came to where it is; only its chunks are surely those of the same name."""
        if self._current is None or (manifest := self._known.get(self._current)) is None:
            return None
        return Checkpoint(self._path(self._current), manifest)

    def _sweep(self) -> None:
        """Remove what processes that have ended left half done, and this one when it failed."""
        for entry in os.listdir(self.folder):
            match = _HIDDEN.fullmatch(entry)
            if match and (int(match[1]) == os.getpid() or not is_alive(int(match[1]))):
                remove(self.folder / entry)

    def _survey(self) -> None:
        """Know every checkpoint in the folder; those that can't be judged are neither counted nor removed."""
        try:
            present = self._names()
        except OSError:
            return  # use what is known already
        self._known = {name: manifest for name, manifest in self._known.items() if name in present}
        for name in present - self._known.keys():
            try:
                manifest = Checkpoint(self._path(name)).manifest
                if manifest.update == name.update:
                    self._known[name] = manifest
            except Unjudged:
                continue
            except Damaged:
                self._known[name] = None

    def _line(self) -> dict[_Name, Manifest]:
        """The checkpoints that led to the present state of the run, newest first; of an update the last one.

        Higher ones are of a line that was given up, e.g. because it was damaged: they are left alone until passed.
        """
        passed = sorted(name for name in self._known if self._current is None or name <= self._current)
        last = {name.update: (name, known) for name in passed if (known := self._known[name]) is not None}
        return dict(sorted(last.values(), key=lambda pair: pair[0], reverse=True))

    def _best(self) -> _Name | None:
        """The earliest among those with the highest value: it is never removed, so it needs no record of its own."""
        metrics = [(name, manifest.metric) for name, manifest in reversed(self._line().items())]
        values = {name: metric.value for name, metric in metrics if metric and metric.name == self.config.best}
        return max(values, key=values.__getitem__, default=None)

    def _milestones(self) -> set[_Name]:
        """The first checkpoint after each multiple: never removed either, so those after it stay recognisable."""
        if self.config.milestone_steps is None:
            return set()
        first = {known.env_steps // self.config.milestone_steps: name for name, known in self._line().items()}
        return {name for multiple, name in first.items() if multiple > 0}

    def _prune(self) -> None:
        """Remove what the present checkpoint has passed and nothing keeps; first renamed, so no half of one is seen."""
        kept = {*list(self._line())[: self.config.keep], self._best(), *self._milestones()}
        for name in self._known.keys() - kept:
            if self._current is not None and name < self._current:
                with suppress(OSError):
                    trash = self._hidden("trash", str(name))
                    os.rename(self._path(name), trash)
                    remove(trash)

    def _link(self, name: str, target: str) -> None:
        link = self.folder / name
        if not (link.is_symlink() and os.readlink(link) == target):
            with suppress(OSError):  # some file systems have no links; nothing depends on them
                link_atomically(link, target, self._hidden("draft", name))
