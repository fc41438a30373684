"""Records that components exchange, and array specs.

Shape legend, here and everywhere: T time, K environments of one group, B batch (groups × K).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rollmill import nested
from rollmill.nested import Nested

Array = NDArray[Any]

LONGEST_REPLAY = 200_000  # actions kept of a running episode; a longer one can only be restored by a snapshot
QUARANTINE_AFTER = 3  # consecutive unrolls in which an environment may fail before it sits out for good


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one array; what two ends of a port must agree on."""

    shape: tuple[int, ...]
    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(n) for n in self.shape))
        object.__setattr__(self, "dtype", np.dtype(self.dtype).name)

    def lead(self, *axes: int) -> ArraySpec:
        """The same array with further leading axes, e.g. `.lead(T, K)`."""
        return ArraySpec((*axes, *self.shape), self.dtype)

    def zeros(self) -> Array:
        """Fresh zeros; large blocks are mapped lazily, so a field that is rarely written costs little."""
        return np.zeros(self.shape, self.dtype)

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes."""
        return int(np.prod(self.shape, dtype=np.int64)) * np.dtype(self.dtype).itemsize


def lead(tree: Nested, *axes: int) -> Nested:
    """Leading axes for every spec of a nested spec."""
    return nested.map_leaves(lambda spec: spec.lead(*axes), tree)


class Ticket(NamedTuple):
    """The learner's permission to make one unroll, with exactly this weight version."""

    actor: int
    sequence: int
    version: int


TICKET = {"ticket": ArraySpec((3,), "int64")}  # what a ticket port carries


class Decision(NamedTuple):
    """What a policy decided for one group: numpy arrays with leading axis K."""

    action: Array
    records: Mapping[str, Array]  # what the policy stores with the action (`Policy.records`)
    state: Nested  # recurrent state after this step; {} without memory


class Outcome(NamedTuple):
    """What one step of a group led to: the step's result, then the scene that follows it.

    `final_obs` holds the true successor in the rows where an episode ended and is undefined in the others;
    `obs` already shows the next episode's first observation there.
    """

    reward: Array  # float32 [K], after scale and clip
    raw_reward: Array  # float64 [K], as the environment gave it
    terminated: Array  # bool [K]
    truncated: Array  # bool [K]
    final_obs: Nested  # [K, ...]
    episode_return: Array  # float64 [K], raw return of the episode so far
    episode_length: Array  # int64 [K], agent decisions
    valid: Array  # bool [K], False for an environment that sat this step out
    over: bool  # the unroll ends with this step
    obs: Nested  # [K, ...]
    reset: Array  # bool [K], True where obs is the first of an episode


@dataclass(frozen=True)
class FrameStack:
    """A leaf of the observation is the last `count` frames along `axis`, oldest first.

    An episode starts with its first frame repeated, so a store can keep each frame once and join them again.
    """

    count: int
    axis: int  # of one environment's observation

    def newest(self, leaf: Array, leading: int = 0) -> Array:
        """The last frame of a stack, a view; `leading` axes come before those of the observation."""
        axis = self.axis + leading
        width = leaf.shape[axis] // self.count
        return leaf[(slice(None),) * axis + (slice(-width, None),)]

    def join(self, frames: Sequence[Array], leading: int = 0) -> Array:
        """The stack of `count` frames, oldest first, as the actor saw it."""
        return np.concatenate(frames, self.axis + leading)


@dataclass(frozen=True)
class Problem:
    """Specs of observations, actions and policy records, from which the slot layout follows."""

    observation: Nested  # of ArraySpec, one environment
    action: ArraySpec
    state: Nested  # of ArraySpec, recurrent state of one environment; {} without memory
    records: Mapping[str, ArraySpec] = field(default_factory=dict)  # what the policy stores with each action
    last_records: Mapping[str, ArraySpec] = field(default_factory=dict)  # and at the end of an unroll
    snapshot_row: int = 0  # bytes of a row that holds one environment's snapshot; 0: the group has none
    stacks: Mapping[str, FrameStack] = field(default_factory=dict)  # leaves of the observation that stack frames


@dataclass(frozen=True)
class ResumePoint:
    """State of one actor between two unrolls: all that another process needs to continue from there."""

    obs: Nested  # [K, ...], what it sees next
    reset: Array  # bool [K], where that begins an episode
    state: Nested  # [K, ...], recurrent state; {} without memory
    episode: Array  # int64 [K], episodes begun so far, the running one included
    episode_return: Array  # float64 [K], raw, of the running episode
    episode_length: Array  # int64 [K], agent decisions of the running episode
    failures: Array  # int64 [K], consecutive unrolls in which the environment failed
    snapshot: Array  # uint8 [K, S], see `actors.snapshots`; S = 0 where the group has none
    actions: tuple[Array | None, ...]  # K arrays [n, ...]: the running episode so far; None if it is too long to keep


@dataclass(frozen=True)
class AssemblerSpec:
    """How steps become unrolls: `unroll` (fixed length) or `episodes` (one whole episode per environment)."""

    kind: Literal["unroll", "episodes"]
    steps: int  # length, or the cap of an episode, in agent decisions


@dataclass(frozen=True)
class TopologySpec:
    """Whether acting alternates with learning (`sync`), overlaps with it (`async`), or there are no actors (`offline`).

    Order and limits of unrolls are in `Flow`. Offline, the store has its data from elsewhere.
    """

    kind: Literal["sync", "async", "offline"] = "sync"


@dataclass(frozen=True)
class Flow:
    """How unrolls flow from the actors to the learner."""

    unrolls: int  # that an update consumes
    in_flight: int  # tickets that an actor may have whose unrolls are not consumed
    target_lag: float | None = None  # updates, on average; None: not controlled
    is_ordered: bool = True  # unrolls are taken by ticket, the actors in turn; False: as they arrive


class GroupStatus(NamedTuple):
    """Status of a group after an unroll, and failures of its environments."""

    episode: Array  # int64 [K], episodes begun, the running one included
    failures: Array  # int64 [K], consecutive unrolls in which the environment failed, this one included
    troubles: Array  # int64 [K], calls of this unroll in which the environment failed, whether it was rebuilt or not
    broken: Array  # bool [K], the environment dropped out of this unroll: its column is not experience
    snapshot: Array  # uint8 [K, S]


Metrics = Mapping[str, float]
