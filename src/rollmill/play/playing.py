"""The loop that plays episodes for their own sake: a group, a player, and which episodes each row is to play.

for played in play_episodes(group, player, [[Episode(0, seed)], [Episode(1, seed)], …]):
    print(played.episode.number, played.total)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from time import perf_counter
from typing import NamedTuple, Protocol

import numpy as np

from rollmill.envs.group import EnvGroup, StepResult
from rollmill.envs.player import Player
from rollmill.play.players import SeededPlayer
from rollmill.types import Array


class Episode(NamedTuple):
    """An episode to play: what it is called, and what it depends on besides the actions."""

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


class Witness(Protocol):
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
    witness: Witness | None = None,
    may_begin: Callable[[], bool] = lambda: True,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Iterator[Played]:
    """Play the episodes of each row in turn, yielding each as it ends.

    When `may_begin` says no, those that run are finished (every row has then begun its first); when `may_go_on` says
    no, they are left where they are and not yielded. A row whose environment fails for good yields the failure and
    plays none of its further episodes. An episode without a finite return is a failure too.
    """
    queues = [deque(row) for row in rows]
    running: dict[int, tuple[Episode, float]] = {}
    seeds, total = np.zeros(group.size, np.int64), np.zeros(group.size)
    length = np.zeros(group.size, np.int64)
    reset = np.zeros(group.size, np.bool_)
    is_first = True
    over: list[int] = list(range(group.size))
    while True:
        fresh = [k for k in over if queues[k]] if is_first or (over and may_begin()) else []
        is_first = False
        reset[:] = False
        for k in fresh:
            episode = queues[k].popleft()
            running[k] = episode, perf_counter()
            seeds[k], total[k], length[k], reset[k] = episode.seed, 0.0, 0, True
        if fresh:
            group.reset(reset, seeds)
            yield from _failures(group, running, total, length, None)  # nothing was shown yet
        if not running or not may_go_on():
            return
        active = np.zeros(group.size, np.bool_)
        active[list(running)] = True
        reset &= active
        for k in np.flatnonzero(reset).tolist():
            if isinstance(player, SeededPlayer):
                player.begin(k, int(seeds[k]))
            if witness is not None:
                witness.begin(k, running[k][0], group)
        action = player(group, reset)
        result = group.step(action, active)
        yield from _failures(group, running, total, length, witness)
        total += result.reward
        length += active
        if witness is not None:
            for k in running:
                witness.step(k, group, action, result)
        over = [k for k in np.flatnonzero(result.terminated | result.truncated).tolist() if k in running]
        for k in over:
            episode, begun = running.pop(k)
            flags = bool(result.terminated[k]), bool(result.truncated[k])
            why = "" if np.isfinite(total[k]) else f"its rewards add up to {total[k]}"  # would spoil every mean
            played = Played(episode, float(total[k]), int(length[k]), *flags, perf_counter() - begun, why)
            if witness is not None:
                witness.end(k, played)
            yield played


def _failures(
    group: EnvGroup,
    running: dict[int, tuple[Episode, float]],
    total: Array,
    length: Array,
    witness: Witness | None,
) -> Iterator[Played]:
    """Take the rows that have just failed for good out of play."""
    if not group.troubles:
        return
    reasons = {trouble.index: trouble.message for trouble in group.troubles}
    group.troubles.clear()
    for k in np.flatnonzero(group.broken).tolist():
        if k not in running:
            continue
        episode, begun = running.pop(k)
        why = reasons.get(k, "its environment failed")
        played = Played(episode, float(total[k]), int(length[k]), False, False, perf_counter() - begun, why)
        if witness is not None:
            witness.end(k, played)
        yield played
