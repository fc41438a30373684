"""Playing for a viewer: the newest policy of a run, an episode at a time, at the environment's own speed."""

from __future__ import annotations

import time
from collections import deque
from contextlib import suppress
from pathlib import Path

from rollmill.envs.group import EnvGroup, StepResult
from rollmill.envs.make import opened_group
from rollmill.errors import Refused, RollmillError
from rollmill.launch.proc import is_gone
from rollmill.launch.pulse import watchdog
from rollmill.persist.run_folder import MARK, RunFolder
from rollmill.persist.writing import read_record
from rollmill.play.pictures import Camera
from rollmill.play.playing import Episode, Played, play_episodes
from rollmill.play.trained_policy import PolicySource, Subject, open_subject
from rollmill.play.watch_screen import Screen, WatchFrame
from rollmill.seeding import integer_seed
from rollmill.types import Array

WAIT_SECONDS = 0.25  # between two looks for a checkpoint, or for a viewer
END_SECONDS = 0.7  # that the last frame of an episode stays
REMEMBERED = 10  # returns


def watch(
    path: Path,
    screen: Screen,
    episodes: int | None = None,  # None: until it is ended
    greedy: bool = True,
    per_second: float | None = None,  # agent decisions; None: the environment's own rate; 0: as fast as it goes
    seed: int = 0,
) -> None:
    """Show the newest policy of a run playing; between two episodes newer weights are taken over."""
    subject = open_subject(path)
    config = subject.config
    _wait_for_weights(subject, screen)
    with watchdog(config.runtime.env_seconds), opened_group(config.env, 1, pictures=True) as group:
        source = PolicySource(config, group.observation_space, group.action_space)
        policy = _NewestPolicy(subject, source)
        title = f"{config.algorithm.name} on {config.env.id}"
        stage = _Stage(screen, group, title, subject, group.frame_rate if per_second is None else per_second)
        while episodes is None or stage.finished < episodes:
            stage.trained_steps = policy.refresh()
            episode = Episode(stage.finished, integer_seed(config.seed, "watch", seed, stage.finished))
            player = source.player(1, greedy)
            for played in play_episodes(group, player, [[episode]], stage):
                if played.failure:
                    raise RollmillError(f"{title} can't be watched: {played.failure}")


class _NewestPolicy:
    """Keeps a policy's weights up to date with the run, which may be training."""

    def __init__(self, subject: Subject, source: PolicySource) -> None:
        self._subject, self._source = subject, source
        self._seen: tuple[int, ...] = ()
        self._env_steps: int | None = None

    def refresh(self) -> int | None:
        """Load the newest weights, if there are newer ones; the env steps that they were trained for."""
        signs = self._signs()
        if signs != self._seen:
            try:
                weights = self._subject.read_weights()
            except RollmillError:
                if not self._seen:  # later ones may be missing for a moment, while the run is cleared up or resumed
                    raise
                return self._env_steps
            self._source.refresh(weights.arrays, weights.path)
            self._env_steps = weights.env_steps
            self._seen = signs
        return self._env_steps

    def _signs(self) -> tuple[int, ...]:
        """Something that changes whenever there may be newer weights, and costs nothing to find out."""
        folder = RunFolder(self._subject.run)
        return tuple(path.stat().st_mtime_ns if path.exists() else 0 for path in (folder.checkpoints, folder.weights))


class _Stage:
    """Sees every step of an episode and shows it in time."""

    def __init__(self, screen: Screen, group: EnvGroup, title: str, subject: Subject, per_second: float) -> None:
        self._screen, self._title, self._run = screen, title, str(subject.path)
        self._camera = Camera(group)
        self._pause = 1.0 / per_second if per_second > 0 else 0.0
        self._frame_seconds = 1.0 / screen.most_per_second
        self._next_step = self._next_frame = 0.0
        self._step, self._return = 0, 0.0
        self._returns: deque[float] = deque(maxlen=REMEMBERED)
        self.trained_steps: int | None = None
        self.finished = 0

    def begin(self, k: int, episode: Episode, group: EnvGroup) -> None:
        """The first observation."""
        self._step, self._return = 0, 0.0
        self._keep_time()
        self._show("")

    def step(self, k: int, group: EnvGroup, action: Array, result: StepResult) -> None:
        """What followed an action."""
        self._step += 1
        self._return += float(result.reward[k])
        end = "terminated" if result.terminated[k] else "truncated" if result.truncated[k] else ""
        self._keep_time()
        self._show(end)

    def end(self, k: int, played: Played) -> None:
        """The last frame stays for a moment."""
        self.finished += 1
        self._returns.append(played.total)
        if self._pause:
            time.sleep(END_SECONDS)

    def _keep_time(self) -> None:
        """Wait until it is time for the next step, and while there is no viewer."""
        while not self._screen.is_watched:
            time.sleep(WAIT_SECONDS)
        now = time.monotonic()
        if now < self._next_step:
            time.sleep(self._next_step - now)
        # who is late doesn't hurry afterwards
        self._next_step = max(self._next_step, now) + self._pause

    def _show(self, end: str) -> None:
        now = time.monotonic()
        if now < self._next_frame and not end and self._step:
            return
        # rather too often by a third than every other step only, because one came a moment early
        self._next_frame = now + 0.75 * self._frame_seconds
        self._screen.show(
            WatchFrame(
                self._camera.take(),
                self._title,
                self._run,
                self.trained_steps,
                self.finished + 1,
                self._step,
                self._return,
                end,
                tuple(self._returns),
            )
        )


def _wait_for_weights(subject: Subject, screen: Screen) -> None:
    """Wait for the first checkpoint of a run that has just begun; refused if it has ended without one."""
    has_said = False
    while True:
        try:
            subject.read_weights()
            return
        except Refused:
            # asked in this order: a run that ends meanwhile has written its last checkpoint before
            facts = read_record(subject.run / MARK)
            if not facts or is_gone(facts, subject.run / MARK):
                with suppress(Refused):
                    subject.read_weights()
                    return
                raise
        if not has_said:
            screen.say(f"waiting for the first checkpoint of {subject.path}")
            has_said = True
        time.sleep(WAIT_SECONDS)
