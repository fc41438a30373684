"""The loop that plays episodes without training: a group, a player, and which episodes each row is to play.

for played in play_episodes(group, player, [[Episode(0, seed)], [Episode(1, seed)], …]):
    print(played.episode.number, played.total)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np

from rollmill.algorithms.policy import Policy
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup, StepResult
from rollmill.envs.make import opened_group
from rollmill.envs.player import MakePlayer, Player
from rollmill.intervals import deviation
from rollmill.play.players import PolicyPlayer, RandomPlayer, SeededPlayer
from rollmill.seeding import episode_seed, integer_seed
from rollmill.settings import ExperimentConfig
from rollmill.types import Array

GIVE_UP = 5  # times the seconds that playing for scores was meant to take


class Episode(NamedTuple):
    """An episode to play: its number, and the seed that it depends on together with the actions."""

    number: int
    seed: int


class Played(NamedTuple):
    """How an episode went."""

    episode: Episode
    total: float  # raw return
    length: int  # agent decisions
    terminated: bool
    truncated: bool
    seconds: float  # from its beginning, with all that the other rows did meanwhile
    failure: str = ""  # why it could not be played to its end; its numbers are then those up to there


class EpisodeListener(Protocol):
    """Sees everything that happens in a row; what it wants to keep of the group's arrays it copies."""

    def begin(self, k: int, episode: Episode, group: EnvGroup) -> None:
        """Row k shows the first observation of an episode."""
        ...

    def step(self, k: int, group: EnvGroup, action: Array, result: StepResult) -> None:
        """Row k took `action[k]` and shows what followed, the true final observation too."""
        ...

    def end(self, k: int, played: Played) -> None:
        """The episode of row k is over, or failed."""
        ...


def play_episodes(
    group: EnvGroup,
    player: Player,
    rows: Sequence[Iterable[Episode]],
    listener: EpisodeListener | None = None,
    may_begin: Callable[[], bool] = lambda: True,
    may_continue: Callable[[], bool] = lambda: True,
) -> Iterator[Played]:
    """Play the episodes of each row in turn, yielding each as it ends.

    When `may_begin` says no, those that run are finished (every row has then begun its first); when `may_continue` says
    no, they are left where they are and not yielded. A row whose environment fails for good yields the failure and
    plays none of its further episodes. An episode without a finite return is a failure too.
    """
    queues, state = [deque(row) for row in rows], _Rows(group)
    running = state.running
    reset = np.zeros(group.size, np.bool_)
    is_first = True
    over: list[int] = list(range(group.size))
    while True:
        fresh = [k for k in over if queues[k]] if is_first or (over and may_begin()) else []
        is_first = False
        reset[:] = False
        reset[fresh] = True
        for k in fresh:
            state.begin(k, queues[k].popleft())
        if fresh:
            group.reset(reset, state.seeds)
            yield from state.failed().values()  # without the listener: nothing was shown yet
        if not running or not may_continue():
            return
        active = np.zeros(group.size, np.bool_)
        active[list(running)] = True
        reset &= active
        for k in np.flatnonzero(reset).tolist():
            if isinstance(player, SeededPlayer):
                player.begin(k, int(state.seeds[k]))
            if listener is not None:
                listener.begin(k, running[k][0], group)
        action = player(group, reset)
        result = group.step(action, active)
        done = state.failed()
        state.total += result.reward
        state.length += active
        if listener is not None:
            for k in running:
                listener.step(k, group, action, result)
        over = [k for k in np.flatnonzero(result.terminated | result.truncated).tolist() if k in running]
        done |= {k: state.end(k, bool(result.terminated[k]), bool(result.truncated[k])) for k in over}
        for k, played in done.items():
            if listener is not None:
                listener.end(k, played)
            yield played


class _Rows:
    """The episode that each row of a group plays, and how it went so far."""

    def __init__(self, group: EnvGroup) -> None:
        self._group = group
        self.running: dict[int, tuple[Episode, float]] = {}  # by row, with the time it began
        self.seeds, self.length = np.zeros(group.size, np.int64), np.zeros(group.size, np.int64)
        self.total = np.zeros(group.size)

    def begin(self, k: int, episode: Episode) -> None:
        self.running[k] = episode, perf_counter()
        self.seeds[k], self.total[k], self.length[k] = episode.seed, 0.0, 0

    def end(self, k: int, terminated: bool, truncated: bool, failure: str = "") -> Played:
        episode, begun = self.running.pop(k)
        total, seconds = float(self.total[k]), perf_counter() - begun
        if not failure and not np.isfinite(total):  # would spoil every mean
            failure = f"its rewards add up to {total}"
        return Played(episode, total, int(self.length[k]), terminated, truncated, seconds, failure)

    def failed(self) -> dict[int, Played]:
        """Take the rows that have just failed for good out of play."""
        if not self._group.troubles:
            return {}
        reasons = {trouble.index: trouble.message for trouble in self._group.troubles}
        self._group.troubles.clear()
        broken = [k for k in np.flatnonzero(self._group.broken).tolist() if k in self.running]
        return {k: self.end(k, False, False, reasons.get(k, "its environment failed")) for k in broken}


# Scores alone: the random baseline and the finished policy


class Scored(NamedTuple):
    """Raw returns of whole episodes, and how long playing took."""

    returns: tuple[float, ...] = ()
    seconds: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean return; None if no episode ended in time."""
        return float(np.mean(self.returns)) if self.returns else None

    @property
    def std(self) -> float | None:
        """Standard deviation of the returns; None for fewer than two."""
        return deviation(self.returns)


def play_randomly(config: ExperimentConfig, space: gym.Space[Any]) -> Scored:
    """The random baseline: uniform actions, whatever is seen."""
    observe, seed = config.observe, integer_seed(config.seed, "random baseline")
    player = partial(RandomPlayer, space, seed=seed)
    return _play(player, config.env, seed, observe.baseline_episodes, observe.baseline_seconds)


def play_greedily(config: ExperimentConfig, make: Callable[[int], Policy], is_unwanted: Callable[[], bool]) -> Scored:
    """The policy without exploration, on episodes that training never saw; `make` gives a policy for a group size.

    It ends early when `is_unwanted` says so.
    """
    observe, seed = config.observe, integer_seed(config.seed, "greedy evaluation")
    episodes, seconds = observe.final_episodes, observe.final_seconds
    return _play(lambda size: PolicyPlayer(make(size)), config.env, seed, episodes, seconds, is_unwanted)


def _play(
    make_player: MakePlayer,
    config: EnvConfig,
    seed: int,
    episodes: int,
    seconds: float,
    is_unwanted: Callable[[], bool] = lambda: False,
) -> Scored:
    """Play `episodes` episodes; after `seconds` no new ones are begun, after GIVE_UP times that it is given up.

    Each environment has its quota and finishes what it has begun: counting whichever end first would favour the short
    ones. (Giving up does favour them: better a number with that flaw than none.)
    """
    if not episodes:
        return Scored()
    size = min(config.group_size, episodes)
    rows = [
        [Episode(number, episode_seed(seed, 0, k, number // size)) for number in range(k, episodes, size)]
        for k in range(size)
    ]
    with opened_group(config, size) as group:
        started = perf_counter()

        def may_begin() -> bool:
            return perf_counter() - started <= seconds

        def may_continue() -> bool:
            return not is_unwanted() and perf_counter() - started < GIVE_UP * seconds

        playing = play_episodes(group, make_player(size), rows, None, may_begin, may_continue)
        returns = [played.total for played in playing if not played.failure]
        return Scored(tuple(returns), perf_counter() - started)
