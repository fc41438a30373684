"""Where every actor stands, as the learner knows it from the unrolls it has consumed.

An actor's state between two unrolls follows from its unrolls: what it saw last, what it remembered, which episodes
run and which actions they consist of. So nothing is asked of the actors: a new actor set up at a border goes on
exactly as the old one would have.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from rollmill import nested
from rollmill.nested import Nested
from rollmill.types import LONGEST_REPLAY, QUARANTINE_AFTER, Array, Border, Problem

# The actions of each running episode in pieces, one per unroll: joining them is left to the day they are needed.
# None for an episode that is too long to keep.
Trail = list[list[Array] | None]

_ROWS = ("reset", "episode", "episode_return", "episode_length", "failures", "snapshot")


class Journal:
    """The borders of all actors."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[int, tuple[Border, Trail]] = {}

    def advance(self, actor: int, unroll: Mapping[str, Nested]) -> None:
        """Take note of an unroll that has been consumed."""
        self._known[actor] = _behind(unroll), _extended(self._trail(actor), unroll)

    def borders(self, ahead: Mapping[int, Mapping[str, Nested]]) -> dict[int, Border]:
        """Where each actor stands, behind the unrolls `ahead` where there is one that is not consumed yet."""
        known = dict(self._known)
        for actor, unroll in ahead.items():
            known[actor] = _behind(unroll), _extended(self._trail(actor), unroll)
        nothing = self._problem.action.lead(0).zeros()
        return {
            actor: replace(border, actions=tuple(p if p is None else np.concatenate([nothing, *p]) for p in trail))
            for actor, (border, trail) in sorted(known.items())
        }

    @property
    def quarantined(self) -> int:
        """Environments whose last unrolls were all spoilt."""
        return sum(int((border.failures >= QUARANTINE_AFTER).sum()) for border, _ in self._known.values())

    def arrays(self) -> dict[str, Array]:
        """Everything as named arrays, for a checkpoint; leaves are numbered, for their keys may hold anything."""
        named: dict[str, Array] = {}
        for actor, border in self.borders({}).items():
            for field in ("obs", "state"):
                for number, (_, leaf) in enumerate(nested.leaves(getattr(border, field))):
                    named[f"{actor}.{field}.{number}"] = leaf
            for field in _ROWS:
                named[f"{actor}.{field}"] = getattr(border, field)
            for k, actions in enumerate(border.actions):
                if actions is not None:
                    named[f"{actor}.actions.{k}"] = actions
        return named

    def restore(self, named: Mapping[str, Array]) -> None:
        """Take back what `arrays` gave."""
        self._known = {
            actor: (border, [None if actions is None else [actions] for actions in border.actions])
            for actor, border in borders_from(named, self._problem).items()
        }

    def _trail(self, actor: int) -> Trail | None:
        return self._known[actor][1] if actor in self._known else None


def borders_from(named: Mapping[str, Array], problem: Problem) -> dict[int, Border]:
    """The borders in the arrays of a checkpoint."""
    borders = {}
    for actor in sorted({int(name.partition(".")[0]) for name in named}):
        rows: dict[str, Any] = {field: named[f"{actor}.{field}"] for field in _ROWS}
        obs = _numbered(named, f"{actor}.obs", problem.observation)
        state = _numbered(named, f"{actor}.state", problem.state)
        actions = tuple(named.get(f"{actor}.actions.{k}") for k in range(len(rows["reset"])))
        borders[actor] = Border(obs=obs, state=state, actions=actions, **rows)
    return borders


def _numbered(named: Mapping[str, Array], prefix: str, spec: Nested) -> Nested:
    """The leaves in the order in which `nested.leaves` counts them."""
    numbers = itertools.count()

    def find(part: Nested) -> Nested:
        if isinstance(part, dict):
            return {key: find(part[key]) for key in sorted(part)}
        return named[f"{prefix}.{next(numbers)}"]

    return find(spec)


def _behind(unroll: Mapping[str, Nested]) -> Border:
    """Where the actor stands behind an unroll; the actions are kept elsewhere."""
    length = int(unroll["length"])
    reset = unroll["reset"][length].copy()
    return Border(
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


def _extended(trail: Trail | None, unroll: Mapping[str, Nested]) -> Trail:
    """The actions of every running episode behind an unroll; None for one that is too long to keep."""
    length = int(unroll["length"])
    actions, begins = unroll["action"][:length], unroll["reset"][1 : length + 1]
    begun = begins.any(0)
    extended: Trail = []
    for k in range(actions.shape[1]):
        before = None if trail is None else trail[k]
        if begun[k] or unroll["broken"][k]:
            first = length - int(begins[::-1, k].argmax())  # behind the last row after which an episode began
            extended.append([actions[first:, k].copy()])
        elif trail is not None and before is None:
            extended.append(None)
        else:
            pieces = [*(before or []), actions[:, k].copy()]
            is_short = sum(map(len, pieces)) <= LONGEST_REPLAY
            extended.append(pieces if is_short else None)
    return extended
