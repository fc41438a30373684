"""The resume point of every actor, derived from the unrolls that are committed.

An actor's state between two unrolls follows from its unrolls: what it saw last, what it remembered, which episodes
run and which actions they consist of. So the actors are never queried: a new actor built from a resume point continues
exactly as the old one would have.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.types import LONGEST_REPLAY, QUARANTINE_AFTER, Array, Problem, ResumePoint


class Trail:
    """The actions of one running episode in pieces, one per unroll; they are joined only when needed."""

    def __init__(self, actions: Array | None) -> None:
        self._pieces = [] if actions is None else [actions]
        self._length = 0 if actions is None else len(actions)
        self._is_lost = actions is None  # too long to keep

    def copy(self) -> Trail:
        """A copy that can be extended independently."""
        other = Trail(None)
        other._pieces, other._length, other._is_lost = list(self._pieces), self._length, self._is_lost
        return other

    def extend(self, actions: Array) -> None:
        """The episode continues."""
        self._length += len(actions)
        if self._is_lost or self._length > LONGEST_REPLAY:
            self._is_lost = True
            self._pieces.clear()
        else:
            self._pieces.append(actions)

    def joined(self, further: Array) -> Array | None:
        """The whole episode with what follows; None if it is too long."""
        if self._is_lost or self._length + len(further) > LONGEST_REPLAY:
            return None
        return np.concatenate([*self._pieces, further])


_ROWS = ("reset", "episode", "episode_return", "episode_length", "failures", "snapshot")


class Journal:
    """The resume points of all actors."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._points: dict[int, ResumePoint] = {}  # without their actions, which are in the trails
        self._trails: dict[int, dict[int, Trail]] = {}  # by actor and environment

    def advance(self, actor: int, unroll: Mapping[str, Nested]) -> None:
        """Record an unroll that has been consumed."""
        _follow(self._trails.setdefault(actor, {}), unroll)
        self._points[actor] = _behind(unroll)

    def resume_points(self, ahead: Mapping[int, Sequence[Mapping[str, Nested]]]) -> dict[int, ResumePoint]:
        """The resume point of each actor after the unrolls `ahead`, which have come and are not committed yet."""
        found = {}
        for actor in sorted(self._points.keys() | ahead.keys()):
            unrolls = ahead.get(actor, [])
            point = _behind(unrolls[-1]) if unrolls else self._points[actor]
            found[actor] = replace(point, actions=self._running_actions(actor, len(point.reset), unrolls))
        return found

    def _running_actions(
        self, actor: int, size: int, unrolls: Sequence[Mapping[str, Nested]]
    ) -> tuple[Array | None, ...]:
        """The actions of each environment's running episode, through the given unrolls."""
        trails = {k: trail.copy() for k, trail in self._trails.get(actor, {}).items()}
        for unroll in unrolls:
            _follow(trails, unroll)
        nothing = self._problem.action.lead(0).zeros()
        return tuple(trails[k].joined(nothing) if k in trails else nothing for k in range(size))

    def begins(self, actor: int) -> Array | None:
        """Bool [K], where the actor's next observation begins an episode; None before its first unroll."""
        point = self._points.get(actor)
        return None if point is None else point.reset

    @property
    def quarantined(self) -> int:
        """Environments that failed in each of their last unrolls."""
        return sum(int((point.failures >= QUARANTINE_AFTER).sum()) for point in self._points.values())

    def arrays(self) -> dict[str, Array]:
        """Everything as named arrays, for a checkpoint; leaves are numbered, because their keys may hold anything."""
        named: dict[str, Array] = {}
        for actor, point in self.resume_points({}).items():
            for field in ("obs", "state"):
                for number, (_, leaf) in enumerate(nested.leaves(getattr(point, field))):
                    named[f"{actor}.{field}.{number}"] = leaf
            for field in _ROWS:
                named[f"{actor}.{field}"] = getattr(point, field)
            for k, actions in enumerate(point.actions):
                if actions is not None:
                    named[f"{actor}.actions.{k}"] = actions
        return named

    def restore(self, named: Mapping[str, Array]) -> None:
        """Restore what `arrays` returned."""
        self._points = resume_points_from(named, self._problem)
        self._trails = {
            actor: {k: Trail(actions) for k, actions in enumerate(point.actions)}
            for actor, point in self._points.items()
        }


def resume_points_from(named: Mapping[str, Array], problem: Problem) -> dict[int, ResumePoint]:
    """The resume points in the arrays of a checkpoint."""
    points = {}
    for actor in sorted({int(name.partition(".")[0]) for name in named}):
        rows: dict[str, Any] = {field: named[f"{actor}.{field}"] for field in _ROWS}
        obs = _numbered(named, f"{actor}.obs", problem.observation)
        state = _numbered(named, f"{actor}.state", problem.state)
        actions = tuple(named.get(f"{actor}.actions.{k}") for k in range(len(rows["reset"])))
        points[actor] = ResumePoint(obs=obs, state=state, actions=actions, **rows)
    return points


def _numbered(named: Mapping[str, Array], prefix: str, spec: Nested) -> Nested:
    """The leaves in the order in which `nested.leaves` counts them."""
    numbers = itertools.count()

    def find(part: Nested) -> Nested:
        if isinstance(part, dict):
            return {key: find(part[key]) for key in sorted(part)}
        return named[f"{prefix}.{next(numbers)}"]

    return find(spec)


def _behind(unroll: Mapping[str, Nested]) -> ResumePoint:
    """The resume point after an unroll; the actions are kept elsewhere."""
    length = int(unroll["length"])
    reset = unroll["reset"][length].copy()
    return ResumePoint(
        obs=nested.map_leaves(lambda leaf: leaf[length].copy(), unroll["obs"]),
        reset=reset,
        state=nested.map_leaves(np.copy, unroll["last_state"]),
        episode=unroll["episode"].copy(),
        episode_return=np.where(reset, 0.0, unroll["episode_return"][length - 1]),
        episode_length=np.where(reset, 0, unroll["episode_length"][length - 1]),
        failures=unroll["failures"].copy(),
        snapshot=unroll["snapshot"].copy(),
        actions=(),
    )


def _follow(trails: dict[int, Trail], unroll: Mapping[str, Nested]) -> None:
    """Extend the trails of the environments by an unroll, or restart them."""
    for k, (is_new, actions) in enumerate(_last_actions(unroll)):
        # where the first row begins an episode, the episode before it was abandoned
        if is_new or unroll["reset"][0][k] or k not in trails:
            trails[k] = Trail(actions.copy())
        else:
            trails[k].extend(actions.copy())


def _last_actions(unroll: Mapping[str, Nested]) -> list[tuple[bool, Array]]:
    """For each environment, whether its running episode began in the unroll, and the actions of it that are there."""
    length = int(unroll["length"])
    actions, begins = unroll["action"][:length], unroll["reset"][1 : length + 1]
    is_new = begins.any(0) | unroll["broken"]
    # after the last row with which an episode began; after all of them where none did
    first = np.where(is_new, length - begins[::-1].argmax(0), 0) if length else np.zeros(len(is_new), np.int64)
    return [(bool(new), actions[start:, k]) for k, (new, start) in enumerate(zip(is_new, first, strict=True))]
