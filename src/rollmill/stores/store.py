"""What stores have in common: unrolls go in, samples for updates come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from rollmill.nested import Nested
from rollmill.transport.ports import Lease
from rollmill.types import Array, Ticket


class LeasedUnroll(NamedTuple):
    """An unroll in its slot, in the order in which training takes it."""

    ticket: Ticket
    incarnation: int  # of the actor that made it
    lease: Lease

    @property
    def arrays(self) -> dict[str, Nested]:
        """Its fields (`fields.Fields`); valid until the slot is given back."""
        arrays: dict[str, Nested] = self.lease.arrays
        return arrays

    @property
    def steps(self) -> int:
        """Env steps that count as experience."""
        valid, broken = self.arrays["valid"][: int(self.arrays["length"])], self.arrays["broken"]
        return int(valid.sum() if not broken.any() else valid[:, ~broken].sum())


class Owner(NamedTuple):
    """Which environment made a column of a batch."""

    ticket: Ticket
    environment: int  # k within the group
    number: int  # of the environment among those of all groups


class Sample(NamedTuple):
    """What an update learns from."""

    batch: Any  # as the update rule reads it
    parts: list[dict[str, Nested]]  # the same as tensors by field: one for the whole batch, or one per unroll
    owners: list[list[Owner]]  # of every column of every part
    unrolls: Sequence[LeasedUnroll] = ()  # committed when the update is made


class StoreState(NamedTuple):
    """What a store keeps in a checkpoint."""

    arrays: Mapping[str, Array]
    values: Mapping[str, Any]  # plain, for JSON
    chunks: Mapping[str, Mapping[str, Array]] = {}  # by name: arrays that never change, shared by checkpoints


class Store(Protocol):
    """Keeps unrolls until updates learn from them; each store decides when an unroll is committed.

    A rollout store commits an unroll with the update that consumes it, a replay store as soon as it is inserted.
    """

    def may_insert(self) -> bool:
        """Whether actors should make further unrolls."""

    def insert(self, unroll: LeasedUnroll) -> Sequence[LeasedUnroll]:
        """Take an unroll; returns the unrolls that are committed by that: their slots can be given back."""

    def may_sample(self) -> bool:
        """Whether there is enough for an update."""

    def sample(self, rng: Callable[[], np.random.Generator], version: int) -> Sample:
        """What the next update learns from; `rng` makes its generator, `version` is that of the published weights."""

    def used(self, sample: Sample, priorities: Array | None) -> Sequence[LeasedUnroll]:
        """The update is made and gave these priorities; the unrolls that are committed by that."""

    def owes_updates(self) -> bool:
        """Whether updates are due although no further unroll will come."""

    def waiting(self) -> Sequence[LeasedUnroll]:
        """Unrolls that are inserted and not committed, in order."""

    def capture(self) -> StoreState:
        """What is committed and kept, for a checkpoint."""

    def restore(self, state: StoreState) -> None:
        """Restore what `capture` returned; nothing by default."""
        return
