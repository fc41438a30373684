"""Records the episodes that a group plays: trajectories and videos.

A trajectory is an npz file:

observation      [T+1, …]  the first one to the true final one; parts of a dict as observation/<key>
action           [T, …]    as the agent stores it: counted from 0, not yet clipped
reward           [T]       raw
terminated, truncated [T]
episode, seed, return      single numbers
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any
from zipfile import ZIP_DEFLATED, ZipFile

import numpy as np

from rollmill.envs.group import EnvGroup, StepResult
from rollmill.nested import Nested
from rollmill.persist.writing import DraftFile, json_value
from rollmill.play.playing import Episode, Played
from rollmill.play.video import VideoFile
from rollmill.types import Array

IN_MEMORY = 1 << 20  # bytes of a column that are kept there; the rest waits in a file without a name


@dataclass(frozen=True)
class Recording:
    """What is to be kept, and where."""

    folder: Path
    video: int = 0  # how many of the first episodes are filmed
    dump: bool = False  # trajectories of all
    info: bool = False  # with what the environment says next to the observation

    @property
    def is_wanted(self) -> bool:
        """Whether anything is to be kept at all."""
        return self.dump or self.video > 0

    def films(self, episode: Episode) -> bool:
        """Whether this episode is filmed."""
        return episode.number < self.video

    def trajectory_path(self, number: int) -> Path:
        """The file of an episode's trajectory."""
        return self.folder / "trajectories" / f"episode-{number:05}.npz"

    def video_path(self, number: int) -> Path:
        """The file of an episode's video."""
        return self.folder / "video" / f"episode-{number:05}.mp4"

    def files_from(self, number: int) -> list[Path]:
        """The files of all episodes from this number on."""
        found = [path for kind in ("trajectories", "video") for path in (self.folder / kind).glob("episode-*")]
        return [path for path in found if int(path.name.partition(".")[0].removeprefix("episode-")) >= number]


class Recorder:
    """An `EpisodeListener` that writes files; each appears when its episode is over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._trajectories: dict[int, TrajectoryFile] = {}
        self._videos: dict[int, VideoFile] = {}

    def begin(self, k: int, episode: Episode, group: EnvGroup) -> None:
        """Start the files of row k."""
        if self._recording.dump:
            path = self._recording.trajectory_path(episode.number)
            self._trajectories[k] = TrajectoryFile(path, self._recording.info)
            self._trajectories[k].see(group, k)
        if self._recording.films(episode):
            self._videos[k] = VideoFile(self._recording.video_path(episode.number), group.frame_rate)
            self._videos[k].add(group.render(k))

    def step(self, k: int, group: EnvGroup, action: Array, result: StepResult) -> None:
        """Continue with the files of row k."""
        if k in self._trajectories:
            self._trajectories[k].step(group, k, action, result)
        if k in self._videos:
            self._videos[k].add(group.render(k))

    def end(self, k: int, played: Played) -> None:
        """Finish the files of row k; those of an episode that failed are dropped."""
        trajectory, video = self._trajectories.pop(k, None), self._videos.pop(k, None)
        if trajectory is not None:
            trajectory.discard() if played.failure else trajectory.finish(played)
        if video is not None:
            video.discard() if played.failure else video.finish()

    def abandon(self) -> None:
        """Drop the files of episodes that were not played to their end."""
        files: list[TrajectoryFile | VideoFile] = [*self._trajectories.values(), *self._videos.values()]
        for file in files:
            file.discard()
        self._trajectories.clear()
        self._videos.clear()


class TrajectoryFile:
    """Collects the columns of one episode; memory stays bounded however long it gets."""

    def __init__(self, path: Path, with_info: bool) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._columns: dict[str, _Column] = {}
        self._info = DraftFile(path.with_suffix(".info.jsonl")) if with_info else None
        self._info_lines = self._info.draft.open("w", encoding="utf-8") if self._info else None

    def see(self, group: EnvGroup, k: int) -> None:
        """Row k shows an observation."""
        for name, leaf in _named_leaves("observation", group.obs):
            self._add(name, leaf[k])
        if self._info_lines is not None:
            self._info_lines.write(json.dumps(json_value(group.info(k)), allow_nan=False) + "\n")

    def step(self, group: EnvGroup, k: int, action: Array, result: StepResult) -> None:
        """Row k took its action and shows what followed."""
        self._add("action", action[k])
        self._add("reward", result.reward[k])
        self._add("terminated", result.terminated[k])
        self._add("truncated", result.truncated[k])
        self.see(group, k)

    def finish(self, played: Played) -> None:
        """Write the file."""
        file = DraftFile(self._path)
        facts = {"episode": played.episode.number, "seed": played.episode.seed, "return": played.total}
        try:
            with ZipFile(file.draft, "w", ZIP_DEFLATED, compresslevel=1) as archive:
                for name, column in self._columns.items():
                    with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                        column.copy_to(entry)
                for name, value in facts.items():
                    with archive.open(f"{name}.npy", "w") as entry:
                        np.lib.format.write_array(entry, np.array(value))
            if self._info is not None and self._info_lines is not None:
                self._info_lines.close()
                self._info.publish()
            file.publish()
        except BaseException:
            file.discard()
            raise
        finally:
            self.discard()

    def discard(self) -> None:
        """Let go of what was collected."""
        for column in self._columns.values():
            column.close()
        if self._info is not None and self._info_lines is not None:
            self._info_lines.close()
            self._info.discard()

    def _add(self, name: str, value: Any) -> None:
        if name not in self._columns:
            self._columns[name] = _Column(np.asarray(value))
        self._columns[name].add(value)


class _Column:
    """Rows of one array, of any number."""

    def __init__(self, first: Array) -> None:
        self._shape, self._dtype = first.shape, first.dtype
        self._count = 0
        self._data = SpooledTemporaryFile(max_size=IN_MEMORY)  # noqa: SIM115 closed in `close`

    def add(self, value: Any) -> None:
        self._data.write(np.asarray(value, self._dtype).tobytes())
        self._count += 1

    def copy_to(self, target: Any) -> None:
        header = {
            "shape": (self._count, *self._shape),
            "fortran_order": False,
            "descr": np.lib.format.dtype_to_descr(self._dtype),
        }
        np.lib.format.write_array_header_1_0(target, header)
        self._data.seek(0)
        shutil.copyfileobj(self._data, target, 1 << 20)

    def close(self) -> None:
        self._data.close()


def _named_leaves(name: str, tree: Nested) -> Iterator[tuple[str, Array]]:
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _named_leaves(f"{name}/{key}", part)
    else:
        yield name, tree
