"""Whole episodes from unrolls, whose borders they cross."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.observe.hooks import Unroll
from rollmill.types import Array


@dataclass(frozen=True)
class WholeEpisode:
    """An episode of T steps from its first observation to its true last one; the arrays are copies."""

    actor: int
    environment: int  # within the actor's group
    raw_return: float  # before scale and clip
    truncated: bool  # it was cut by a time limit; otherwise it terminated
    obs: Nested  # [T + 1, …]
    action: Array  # [T, …]
    reward: Array  # [T], as it was learned from
    version: Array  # int64 [T], of the weights that decided


class Stitcher:
    """Collects the pieces of running episodes and gives them out when they are over.

    Memory is bounded: one running episode per environment, of at most `longest` steps. An episode is left out if its
    beginning was not seen, an unroll in its midst is missing, its environment failed or it is too long.
    """

    def __init__(self, longest: int = 20_000) -> None:
        self._longest = longest
        self._expected: dict[int, int] = {}  # sequence of the next unroll, by actor
        self._running: dict[tuple[int, int], list[dict[str, Nested]]] = {}  # by actor and environment
        self.torn = 0  # episodes of which something is missing

    def add(self, unroll: Unroll) -> list[WholeEpisode]:
        """Take in an unroll; the episodes that end in it."""
        broken = unroll.arrays["broken"]
        if self._expected.get(unroll.actor, unroll.sequence) != unroll.sequence:
            for environment in range(len(broken)):
                self._tear(unroll.actor, environment)
        self._expected[unroll.actor] = unroll.sequence + 1
        found = []
        for environment in range(len(broken)):
            if broken[environment]:
                self._tear(unroll.actor, environment)
            else:
                found += self._follow(unroll, environment)
        return found

    def _follow(self, unroll: Unroll, k: int) -> list[WholeEpisode]:
        """One environment's way through the unroll."""
        arrays, key, found = unroll.arrays, (unroll.actor, k), []
        steps = int(arrays["valid"][:, k].sum())  # where whole episodes are collected, the rest is idle
        over = (arrays["terminated"][:steps, k] | arrays["truncated"][:steps, k]).nonzero()[0] + 1
        begin = 0
        for end in (*over.tolist(), steps):
            if begin == end:
                break
            if arrays["reset"][begin, k]:
                self._running[key] = []
            if key in self._running:
                self._running[key].append(_piece(unroll, k, slice(begin, end)))
                if end in over:
                    found.append(_joined(self._running.pop(key), unroll, k, end - 1))
                elif sum(len(piece["reward"]) for piece in self._running[key]) > self._longest:
                    self._tear(*key)
            begin = end
        return found

    def _tear(self, actor: int, environment: int) -> None:
        self.torn += self._running.pop((actor, environment), None) is not None


def _piece(unroll: Unroll, k: int, rows: slice) -> dict[str, Nested]:
    """Some steps of one environment, as copies."""
    seen = {name: unroll.arrays[name] for name in ("obs", "action", "reward")}
    piece: dict[str, Nested] = nested.map_leaves(lambda leaf: leaf[rows, k].copy(), seen)
    return {**piece, "version": np.full(rows.stop - rows.start, unroll.version)}


def _joined(pieces: list[dict[str, Nested]], unroll: Unroll, k: int, last: int) -> WholeEpisode:
    arrays = unroll.arrays
    final = nested.map_leaves(lambda leaf: leaf[last : last + 1, k].copy(), arrays["final_obs"])
    steps = nested.map_leaves(lambda *leaves: np.concatenate(leaves), *pieces)
    steps["obs"] = nested.map_leaves(lambda *leaves: np.concatenate(leaves), steps["obs"], final)
    raw_return, truncated = float(arrays["episode_return"][last, k]), bool(arrays["truncated"][last, k])
    return WholeEpisode(unroll.actor, k, raw_return, truncated, **steps)
