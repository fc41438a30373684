"""What evaluation gives to its processes: units of episodes, and the environments and players that play them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.make import make_group
from rollmill.envs.player import MakePlayer
from rollmill.errors import RollmillError
from rollmill.play.named_players import PlayerSpec, make_player
from rollmill.play.playing import Episode, Played, play_episodes
from rollmill.play.recorder import Recorder, Recording
from rollmill.play.trained_policy import PolicySource
from rollmill.settings import ExperimentConfig
from rollmill.types import Array


@dataclass(frozen=True)
class Job:
    """All that a process needs to play."""

    env: EnvConfig
    size: int  # of a group
    seed: int
    players: tuple[PlayerSpec, ...]
    recording: Recording  # of the first player
    config: ExperimentConfig | None  # of the run whose policy plays
    weights: Mapping[str, Array] | None
    env_seconds: float  # that one call of an environment may take


class Unit(NamedTuple):
    """What one group plays at a time: an episode in each of its first rows.

    Which episodes play together is decided before any is played, and the group has its full size also for the last
    unit: a policy's last bits may depend on the row and on the number of rows. So results don't depend on the number
    of processes.
    """

    player: int  # which of the job's
    episodes: tuple[Episode | None, ...]  # by row; None: that row sits out


class UnitPlayer:
    """Makes groups and players when they are first needed, and keeps the groups."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made: EnvGroup | None = None
        self._draws = False  # whether that group draws pictures
        self._source: PolicySource | None = None

    def play(self, unit: Unit, may_continue: Callable[[], bool]) -> Iterator[Played]:
        """Play a unit; episodes come out as they end."""
        recording = self._job.recording
        is_recorded = unit.player == 0 and recording.is_wanted
        draws = is_recorded and any(episode is not None and recording.films(episode) for episode in unit.episodes)
        group = self._group(draws)
        recorder = Recorder(recording) if is_recorded else None
        rows = [[] if episode is None else [episode] for episode in unit.episodes]
        rows += [[] for _ in range(group.size - len(rows))]
        player = self.maker(unit.player)(group.size)
        try:
            yield from play_episodes(group, player, rows, recorder, may_continue=may_continue)
        finally:
            if recorder is not None:
                recorder.abandon()

    def maker(self, player: int) -> MakePlayer:
        """The function that makes the players of one kind."""
        job, group = self._job, self._group(False)
        spec = job.players[player]
        if spec.kind == "policy" and self._source is None:
            assert job.config is not None
            assert job.weights is not None
            self._source = PolicySource(job.config, group.observation_space, group.action_space)
            self._source.refresh(job.weights, "the job")
        return make_player(spec, job.env, group.action_space, self._source, job.seed)

    def close(self) -> None:
        """Close the environments; a failure is ignored, because the scores are known."""
        if self._made is not None:
            with suppress(RollmillError):
                self._made.close()
        self._made = None

    def _group(self, draws: bool) -> EnvGroup:
        """A group; one that draws is used for the rest too."""
        if self._made is None or (draws and not self._draws):
            self.close()
            self._made, self._draws = make_group(self._job.env, self._job.size, pictures=draws), draws
        return self._made
