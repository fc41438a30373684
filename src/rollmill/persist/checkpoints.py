"""The checkpoints of a run: when one is due, writing it at once or not at all, which to keep, finding the newest good.

In the order of calls:

    checkpoints = Checkpoints(run / "checkpoints", config)
    found = checkpoints.newest()  # resume from found.content, say checkpoints.complaints
    while training:
        if checkpoints.due(update, perf_counter()):
            checkpoints.write(Content(arrays, state, update, env_steps), metric)
"""

from __future__ import annotations

import math
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from rollmill.config.base import Config
from rollmill.persist.best import EVALUATED
from rollmill.persist.checkpoint_files import (
    Content,
    Damaged,
    Manifest,
    Metric,
    Unjudged,
    read_content,
    read_manifest,
    sync_folder,
    write_files,
)

__all__ = ["EVALUATION", "CheckpointConfig", "Checkpoints", "Content", "Damaged", "Found", "Unjudged"]

EVALUATION = "evaluation"  # the value of checkpoint.best that leaves the choice to periodic evaluation

_NUMBERED = re.compile(r"[0-9]{9,18}")
_HIDDEN = re.compile(r"\.(draft|aside|trash)-([a-z0-9]+)-([0-9]{1,18})")  # kind, subject, process


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
class Found:
    """The newest good checkpoint, and a sentence about each newer one that is not."""

    content: Content
    path: Path
    complaints: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Hidden:
    """Something that is being worked on in the folder."""

    path: Path
    subject: str  # the name that it had or will have
    process: int

    @property
    def is_of_update(self) -> bool:
        return _NUMBERED.fullmatch(self.subject) is not None

    @property
    def is_abandoned(self) -> bool:
        """No other process works on it: its maker is gone, or is ourselves and failed."""
        if self.process == os.getpid():
            return True
        try:
            os.kill(self.process, 0)
        except (ProcessLookupError, OverflowError):
            return True
        except PermissionError:  # of another user
            return False
        return False


class Checkpoints:
    """The folder `<run>/checkpoints`: one folder per checkpoint, named by its update, and the links latest and best.

    Hidden names are work in progress: `.draft-…` is being written, `.aside-…` is the good checkpoint that a new one of
    the same update is replacing, `.trash-…` is being removed; the last part is the process that does it.
    """

    def __init__(self, folder: Path, config: CheckpointConfig) -> None:
        self.folder = folder
        self.config = config
        self.complaints: list[str] = []  # of the last `newest()`, also if it found none
        self._manifests: dict[int, Manifest] = {}  # of the checkpoints that seem good
        self._condemned: set[int] = set()  # updates whose checkpoint is damaged
        self._stands_at: int | None = None  # the update of the checkpoint that was found or written last
        self._last_due: tuple[int, float] | None = None

    @property
    def last_update(self) -> int | None:
        """The update of the checkpoint that was found or written last."""
        return self._stands_at

    @property
    def best_value(self) -> float | None:
        """The metric of the checkpoint that is kept as the best; None if none has one."""
        self._survey()
        best = self._best()
        return None if best is None else self._value(best)

    def due(self, update: int, seconds: float) -> bool:
        """Whether to write now, by the clock reading `seconds`; counts as tried, so a full disk isn't asked each time.

        The first question is answered with yes (checkpoint 0), except at the update that `newest()` has found.
        """
        if self._last_due is None:
            is_due = update != self._stands_at
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

        OSError means that nothing can be said for the new one and all others are as they were; a folder that is gone
        is made again.
        """
        self._make_folder()
        self._sweep()
        final = self._path(content.update)
        draft = self._hidden("draft", final.name)
        measured = None
        if metric is not None and math.isfinite(metric):
            measured = Metric(name=self.config.best, value=float(metric))
        try:
            manifest = write_files(draft, content, measured)
            self._put_in_place(draft, final)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        self._manifests[content.update] = manifest
        self._condemned.discard(content.update)
        self._stands_at = content.update
        # From here on the checkpoint is safe; links and old checkpoints can wait for the next time.
        with suppress(OSError):
            for aside in self._hidden_ones("aside"):
                if aside.is_abandoned:
                    self._discard(aside.path)
        self._survey()
        self._link("latest", final.name)
        if self.config.best == EVALUATION:
            self._link("best", EVALUATED)  # leads nowhere until something has been evaluated
        elif (best := self._best()) is not None:
            self._link("best", self._path(best).name)
        self._prune()
        return final

    def newest(self) -> Found | None:
        """The newest good checkpoint; the links are not asked, and what is wrong with newer ones is in `complaints`."""
        self.complaints = []
        try:
            candidates = self._candidates()
        except OSError as error:
            self.complaints.append(f"{self.folder}: can't be listed: {error.strerror}")
            return None
        for update, path in candidates:
            try:
                content = self.read(path)
                if content.update != update:
                    raise Unjudged(path, f"is named for update {update} but holds update {content.update}")
            except Damaged as damaged:
                self.complaints.append(str(damaged))
                if path == self._path(update) and not isinstance(damaged, Unjudged):
                    self._condemned.add(update)
            else:
                self._stands_at = update
                self._condemned -= {update} if path == self._path(update) else set()
                return Found(content, path, list(self.complaints))
        return None

    @staticmethod
    def read(path: Path) -> Content:
        """The content of one checkpoint, or `Damaged`."""
        return read_content(path)

    def _path(self, update: int) -> Path:
        return self.folder / f"{update:09d}"

    def _hidden(self, kind: str, name: str) -> Path:
        return self.folder / f".{kind}-{name}-{os.getpid()}"

    def _make_folder(self) -> None:
        if not self.folder.is_dir():
            self.folder.mkdir(parents=True, exist_ok=True)
            sync_folder(self.folder.parent)

    def _put_in_place(self, draft: Path, final: Path) -> None:
        if not os.path.lexists(final):
            os.rename(draft, final)
            sync_folder(self.folder)
            return
        # A folder that isn't empty can't be renamed over: for a moment only the hidden name holds a good checkpoint.
        aside = self._hidden("aside", final.name)
        if os.path.lexists(aside):  # of a process with our number that was killed at this point
            self._discard(final)
        else:
            os.rename(final, aside)
        try:
            os.rename(draft, final)
        except BaseException:
            os.rename(aside, final)
            raise
        sync_folder(self.folder)

    def _discard(self, path: Path) -> None:
        """Remove a checkpoint so that no half of one is ever seen under its name."""
        with suppress(OSError):
            trash = self._hidden("trash", "".join(re.findall("[a-z0-9]+", path.name)))
            os.rename(path, trash)
            _remove(trash)

    def _sweep(self) -> None:
        """Finish what processes that are gone have left half done."""
        for left in self._hidden_ones("draft", "trash"):
            if left.is_abandoned:
                _remove(left.path)
        for aside in self._hidden_ones("aside"):
            if aside.is_abandoned and aside.is_of_update and not os.path.lexists(self.folder / aside.subject):
                os.rename(aside.path, self.folder / aside.subject)

    def _hidden_ones(self, *kinds: str) -> list[_Hidden]:
        found = [(name, _HIDDEN.fullmatch(name)) for name in self._names()]
        return [
            _Hidden(self.folder / name, match[2], int(match[3])) for name, match in found if match and match[1] in kinds
        ]

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.folder)
        except FileNotFoundError:
            return []

    def _numbered(self) -> Iterator[int]:
        for name in self._names():
            if _NUMBERED.fullmatch(name) and name == f"{int(name):09d}":
                yield int(name)

    def _candidates(self) -> list[tuple[int, Path]]:
        """Newest first; of one update the checkpoint itself comes before the one that it was to replace."""
        found = [(update, True, self._path(update)) for update in self._numbered()]
        # also of a process that seems alive: its number may have gone to another one since
        found += [(int(aside.subject), False, aside.path) for aside in self._hidden_ones("aside") if aside.is_of_update]
        return [(update, path) for update, _, path in sorted(found, reverse=True)]

    def _survey(self) -> None:
        """Know the manifest of every checkpoint in the folder."""
        try:
            present = set(self._numbered())
        except OSError:
            return  # what is known already has to do
        self._condemned &= present
        self._manifests = {
            update: manifest
            for update, manifest in self._manifests.items()
            if update in present and update not in self._condemned
        }
        for update in present - self._manifests.keys() - self._condemned:
            try:
                manifest = read_manifest(self._path(update))
            except Unjudged:  # neither counted nor removed
                continue
            except Damaged:
                self._condemned.add(update)
                continue
            if manifest.update == update:
                self._manifests[update] = manifest

    def _line(self) -> list[int]:
        """The updates of the checkpoints that led to the present state of the run, newest first.

        Higher ones are of a line that was given up, e.g. because it was damaged: they are left alone until passed.
        """
        return sorted(
            (update for update in self._manifests if self._stands_at is None or update <= self._stands_at), reverse=True
        )

    def _value(self, update: int) -> float | None:
        metric = self._manifests[update].metric
        return metric.value if metric is not None and metric.name == self.config.best else None

    def _best(self) -> int | None:
        """The earliest among those with the highest value: it is never removed, so it needs no record of its own."""
        values = [(value, -update) for update in self._line() if (value := self._value(update)) is not None]
        return -max(values)[1] if values else None

    def _milestones(self) -> set[int]:
        """The first checkpoint after each multiple: never removed either, so those after it stay recognisable."""
        if self.config.milestone_steps is None:
            return set()
        first: dict[int, int] = {}
        for update in self._line():
            first[self._manifests[update].env_steps // self.config.milestone_steps] = update
        return {update for multiple, update in first.items() if multiple > 0}

    def _prune(self) -> None:
        line = self._line()
        kept = {*line[: self.config.keep], self._best(), *self._milestones()}
        passed = {update for update in self._condemned if self._stands_at is not None and update < self._stands_at}
        for update in passed.union(line) - kept:
            self._discard(self._path(update))

    def _link(self, name: str, target: str) -> None:
        link = self.folder / name
        if link.is_symlink() and os.readlink(link) == target:
            return
        draft = self._hidden("draft", name)
        try:
            os.symlink(target, draft)
            os.replace(draft, link)
        except OSError:  # some file systems have no links; nothing depends on them
            _remove(draft)


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        with suppress(OSError):
            path.unlink()
    else:
        shutil.rmtree(path, ignore_errors=True)
