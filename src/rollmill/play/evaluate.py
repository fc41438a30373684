"""An evaluation, from the user's request to the folder with its results.

1. `request.checked` and `request.prepare`: refuse what can't be played; the job, and a folder for its results.
2. `_Session._play`, `_play_baselines`: a pool (`pool.py`) plays units of episodes (`units.py`), the player's own first.
3. In each process a `UnitPlayer` makes environments and players and runs `play_episodes` (`playing.py`), with a
   `Recorder` as listener where trajectories or videos are wanted.
4. `EvaluationFolder` writes each episode as it ends, and the statistics; `closing_table` shows them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import Any

from rollmill.config.load import Overrides
from rollmill.console.display import Display
from rollmill.console.view import Work
from rollmill.envs.families import examine_of
from rollmill.errors import RollmillError
from rollmill.launch.interruption import Interruption
from rollmill.launch.pulse import watchdog
from rollmill.observe.phrases import amount
from rollmill.play.evaluation_folder import EvaluationFolder, closing_table
from rollmill.play.playing import Episode, Played
from rollmill.play.pool import ProcessPool, SerialPool
from rollmill.play.request import Request, checked, prepare
from rollmill.play.units import Job, Unit, UnitPlayer
from rollmill.play.video import write_grid
from rollmill.seeding import integer_seed

BASELINE_EPISODES = 20  # of each baseline, at most
BASELINE_SECONDS = 10.0  # for all baselines together; twice what the player itself took, if that is more
MOST_FAILURES_IN_A_ROW = 20  # episodes that fail one after the other before it is given up


@dataclass(frozen=True)
class Evaluation:
    """How an evaluation went: the content of `evaluation.json`, and its folder."""

    path: Path
    status: str  # "done" | "interrupted"
    signal: int  # that interrupted it, 0 otherwise
    record: Mapping[str, Any]

    @property
    def mean(self) -> float | None:
        """Mean return of the player; None if it finished no episode."""
        mean: float | None = self.record["mean"]
        return mean


def evaluate(
    run: str | Path | None = None, overrides: Overrides = (), *, show: bool = False, **options: Any
) -> Evaluation:
    """Play episodes of a run, a checkpoint or (`policy=`, `env=`) any player; `options` are the fields of `Request`."""
    return evaluate_request(
        Request(run=None if run is None else Path(run), overrides=overrides, **options),
        Display(sys.stdout, "auto" if show else "none"),
    )


def evaluate_request(request: Request, display: Display) -> Evaluation:
    """What `rollmill evaluate` does."""
    interruption = Interruption()
    request = checked(request)
    job, facts = prepare(request)
    try:
        with interruption.by_signals():
            return _Session(request, job, facts, display, interruption).run()
    except OSError as error:
        where = error.filename or job.recording.folder
        raise RollmillError(
            f"{where} can't be written: {error.strerror}; make room, or choose a folder with --out"
        ) from None  # where it was noticed means nothing to the user


class _Session:
    """One evaluation: the player first, then what it is compared with, then the environment's own examination."""

    def __init__(
        self, request: Request, job: Job, facts: Mapping[str, Any], display: Display, interruption: Interruption
    ) -> None:
        self._request, self._job, self._display, self._interruption = request, job, display, interruption
        self._names = [str(player) for player in job.players]
        self._output = EvaluationFolder(job.recording, facts, self._names, job.seed)
        self._failed_in_a_row = 0

    def run(self) -> Evaluation:
        """Run the evaluation. If it fails or is interrupted, the episodes played so far are saved."""
        status, workers = "failed", self._request.workers
        try:
            with watchdog(self._job.env_seconds, self._job.recording.folder / "stacks.txt"):
                with closing(SerialPool(self._job) if workers == 1 else ProcessPool(self._job, workers)) as pool:
                    self._play(pool)
                    self._play_baselines(pool)
                if not self._interruption.is_wanted:
                    self._film_grid()
                    self._examine()
            status = "interrupted" if self._interruption.is_wanted else "done"
        except (KeyboardInterrupt, SystemExit):  # a second signal
            status = "interrupted"
            raise
        finally:
            self._display.finish()
            record = self._output.finish(status)
        self._display.say(*closing_table(record, self._output.folder))
        return Evaluation(self._output.folder, status, self._interruption.signal, record)

    def _play(self, pool: SerialPool | ProcessPool) -> None:
        """The player's own episodes."""
        steps, title = self._request.steps, f"{self._names[0]} on {self._job.env.id}"
        work = Work(title, "steps" if steps else "episodes", steps or self._request.episodes or 0)
        self._display.show(work.after())
        tally = _Tally(steps)
        may_continue = self._may_continue if steps is None else lambda: self._may_continue() and tally.enough is None
        for _, played in pool.play(self._units(0, self._request.episodes), lambda: True, may_continue):
            self._take(0, played)
            tally.add(played)
            if self._display.is_due:
                done = tally.steps if steps else tally.episodes
                self._display.show(work.after(done, f"return {amount(tally.mean)}"))
        if tally.enough is not None:
            self._output.keep(self._names[0], tally.enough)
        if not tally.episodes and self._output.failures:
            raise RollmillError(f"no episode could be played: {self._output.failures[0]}")

    def _play_baselines(self, pool: SerialPool | ProcessPool) -> None:
        """The others, on the same episodes; within a time that the player's own episodes set."""
        others = range(1, len(self._names))
        if not others or not self._may_continue():
            return
        episodes = min(BASELINE_EPISODES, len(self._output.played[self._names[0]]))
        deadline = perf_counter() + max(BASELINE_SECONDS, 2 * self._output.seconds)
        work = Work("baselines", "episodes", episodes * len(others))
        self._display.show(work.after())
        units = (unit for player in others for unit in self._units(player, episodes))
        playing = pool.play(units, lambda: perf_counter() < deadline, self._may_continue)
        for done, (player, played) in enumerate(playing, 1):
            self._take(player, played)
            if self._display.is_due:
                self._display.show(work.after(done))
        if left_out := [self._names[player] for player in others if not self._output.played[self._names[player]]]:
            self._output.note(left_out=left_out)

    def _take(self, player: int, played: Played) -> None:
        self._output.add(self._names[player], played)
        self._failed_in_a_row = self._failed_in_a_row + 1 if played.failure else 0
        if player == 0 and self._failed_in_a_row >= MOST_FAILURES_IN_A_ROW:  # a baseline that can't play spoils nothing
            raise RollmillError(f"{MOST_FAILURES_IN_A_ROW} episodes failed in a row, the last one: {played.failure}")

    def _units(self, player: int, episodes: int | None) -> Iterator[Unit]:
        """The episodes in groups of `size`; endless where their number isn't known beforehand."""
        size = self._job.size
        for first in count(0, size):
            numbers = [n for n in range(first, first + size) if episodes is None or n < episodes]
            if not numbers:
                return
            yield Unit(player, tuple(Episode(n, integer_seed(self._job.seed, "evaluate", n)) for n in numbers))

    def _film_grid(self) -> None:
        recording = self._job.recording
        videos = [recording.video_path(number) for number in range(recording.video)]
        if self._request.grid and (videos := [video for video in videos if video.exists()]):
            write_grid(videos, recording.folder / "video" / "grid.mp4")

    def _examine(self) -> None:
        """The environment's own protocol, where it has one."""
        examine = examine_of(self._job.env) if self._request.examine else None
        if examine is None:
            return
        self._display.show(Work("examination", "runs", 1).after())
        with closing(UnitPlayer(self._job)) as player:
            seed = integer_seed(self._job.seed, "examine")
            result = examine(self._job.env, seed, player.maker(0), self._output.folder)
        self._output.note(examination=result)

    def _may_continue(self) -> bool:
        return not self._interruption.is_wanted


class _Tally:
    """Counts along; with a number of `wanted` steps it knows when the first so many episodes have made them.

    The episodes are counted in the order of their numbers: taking those that end first would favour the short ones,
    and depend on the speed of the processes.
    """

    def __init__(self, wanted: int | None) -> None:
        self._wanted = wanted
        self._waiting: dict[int, int] = {}  # lengths of episodes after one that is still missing
        self._next, self._in_order = 0, 0
        self._total = 0.0
        self.episodes, self.steps = 0, 0
        self.enough: int | None = None  # how many episodes it takes

    @property
    def mean(self) -> float | None:
        """Of the returns so far."""
        return self._total / self.episodes if self.episodes else None

    def add(self, played: Played) -> None:
        """An episode is over; one that failed has made no step that counts."""
        if not played.failure:
            self.episodes, self.steps = self.episodes + 1, self.steps + played.length
            self._total += played.total
        self._waiting[played.episode.number] = 0 if played.failure else played.length
        while self._wanted is not None and self.enough is None and self._next in self._waiting:
            self._in_order += self._waiting.pop(self._next)
            self._next += 1
            if self._in_order >= self._wanted:
                self.enough = self._next
