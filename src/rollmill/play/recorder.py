"""Keeps what is to be kept of the episodes that a group plays: trajectories and videos."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rollmill.envs.group import EnvGroup, StepResult
from rollmill.play.playing import Episode, Played
from rollmill.play.trajectory import TrajectoryFile
from rollmill.play.video import VideoFile
from rollmill.types import Array


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
        """Where the trajectory of an episode lies."""
        return self.folder / "trajectories" / f"episode-{number:05}.npz"

    def video_path(self, number: int) -> Path:
        """Where the video of an episode lies."""
        return self.folder / "video" / f"episode-{number:05}.mp4"

    def files_from(self, number: int) -> list[Path]:
        """The files of all episodes from this number on."""
        found = [path for kind in ("trajectories", "video") for path in (self.folder / kind).glob("episode-*")]
        return [path for path in found if int(path.name.partition(".")[0].removeprefix("episode-")) >= number]


class Recorder:
    """A `Witness` that writes files; each appears when its episode is over."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._trajectories: dict[int, TrajectoryFile] = {}
        self._videos: dict[int, VideoFile] = {}

    def begin(self, k: int, episode: Episode, group: EnvGroup) -> None:
        """Start the files of row k."""
        if self._recording.dump:
            path = self._recording.trajectory_path(episode.number)
            self._trajectories[k] = TrajectoryFile(path, episode, self._recording.info)
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
        for trajectory in self._trajectories.values():
            trajectory.discard()
        for video in self._videos.values():
            video.discard()
        self._trajectories.clear()
        self._videos.clear()
