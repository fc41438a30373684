"""Stores of unrolls that are consumed once: they wait here until there are enough for an update."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from rollmill import nested
from rollmill.errors import NoExperience
from rollmill.fields import SPARSE, Fields
from rollmill.nested import Nested
from rollmill.stores.store import LeasedUnroll, Owner, Sample, Store, StoreState
from rollmill.types import Array, Flow


class _Store(Store):
    """Collects unrolls in the order in which they are inserted until there are enough for an update."""

    def __init__(self, fields: Fields, flow: Flow, config: Any, device: str) -> None:
        self._batched = fields.batched
        self._wanted = flow.unrolls
        self._device = device
        self._held: list[LeasedUnroll] = []

    def may_insert(self) -> bool:
        """Always: the flow of tickets limits how many there are."""
        return True

    def insert(self, unroll: LeasedUnroll) -> Sequence[LeasedUnroll]:
        """Keep an unroll until its update; nothing is committed before that."""
        self._held.append(unroll)
        return ()

    def may_sample(self) -> bool:
        """There are enough for an update."""
        return len(self._held) >= self._wanted

    def waiting(self) -> Sequence[LeasedUnroll]:
        """The unrolls that wait for their update."""
        return self._held

    def sample(self, rng: Callable[[], np.random.Generator], version: int) -> Sample:
        """The batch, copied out of the slots, without the columns of broken environments."""
        chosen = self._choose()
        unrolls = [unroll.arrays for unroll in chosen]
        owners = [
            [
                Owner(unroll.ticket, int(k), unroll.ticket.actor * len(arrays["broken"]) + int(k))
                for k in np.flatnonzero(~arrays["broken"])
            ]
            for unroll, arrays in zip(chosen, unrolls, strict=True)
        ]
        if not any(owners):
            raise NoExperience("every environment failed; nothing to learn from")
        sample = self._assemble([self._without_broken(unroll) for unroll in unrolls], owners, version)
        return sample._replace(unrolls=chosen)

    def used(self, sample: Sample, priorities: Array | None) -> Sequence[LeasedUnroll]:
        """Drop the unrolls of the update: they are committed now."""
        del self._held[: len(sample.unrolls)]
        return sample.unrolls

    def owes_updates(self) -> bool:
        """Never: steps count with the update that consumes them."""
        return False

    def capture(self) -> StoreState:
        """Nothing: what is committed is not kept."""
        return StoreState({}, {})

    def _choose(self) -> list[LeasedUnroll]:
        """The unrolls of the next update, the first that came in."""
        return self._held[: self._wanted]

    def _without_broken(self, unroll: dict[str, Nested]) -> dict[str, Nested]:
        """The unroll without the environments that failed in it: their data is not experience."""
        if not unroll["broken"].any():
            return unroll
        good = ~unroll["broken"]
        kept = {"length": unroll["length"]}
        for name, field in self._batched.items():
            pick = partial(np.compress, good, axis=field.batch_axis)
            kept[name] = nested.map_leaves(pick, unroll[name])
        # by column and not compressed, which would touch all their untouched memory
        for name in SPARSE:
            kept[name] = unroll[name]
        return kept

    @abstractmethod
    def _assemble(self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int) -> Sample:
        """Copy the unrolls into a sample."""


class RolloutStore(_Store):
    """Joins the unrolls along the batch axis to tensors [T, B, …].

    `lag` [B] says how many updates old each column is, `environment` [B] which environment made it.
    """

    def _assemble(self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int) -> Sample:
        batch, columns = self._join(unrolls, owners), [owner for unroll in owners for owner in unroll]
        batch["lag"] = torch.tensor([version - owner.ticket.version for owner in columns], device=self._device)
        batch["environment"] = torch.tensor([owner.number for owner in columns])
        return Sample(batch, [batch], [columns])

    def _join(self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]]) -> dict[str, Nested]:
        joined: dict[str, Nested] = {}
        for field, first in unrolls[0].items():
            if field in self._batched:
                axis = self._batched[field].batch_axis
                parts = [unroll[field] for unroll in unrolls]
                joined[field] = nested.map_leaves(
                    lambda *leaves, axis=axis: self._tensor(leaves, axis), first, *parts[1:]
                )
        # Only the rows in which an episode ended were ever written: copying the rest would touch untouched memory.
        ended = joined["terminated"] | joined["truncated"]
        for field in SPARSE:
            parts = [unroll[field] for unroll in unrolls]
            joined[field] = nested.map_leaves(lambda *leaves: self._sparse(leaves, owners, ended), parts[0], *parts[1:])
        return joined

    def _tensor(self, parts: tuple[Any, ...], axis: int) -> torch.Tensor:
        return torch.cat([torch.from_numpy(part) for part in parts], axis).to(self._device)

    def _sparse(self, parts: tuple[Any, ...], owners: list[list[Owner]], ended: torch.Tensor) -> torch.Tensor:
        """The rows at which an episode ended, in row-major order of [T, B]."""
        columns = [part[:, owner.environment] for part, whose in zip(parts, owners, strict=True) for owner in whose]
        rows = [columns[b][t] for t, b in ended.nonzero().tolist()]
        joined = np.stack(rows) if rows else columns[0][:0]
        return torch.from_numpy(joined).to(self._device)


class ArrivalStore(RolloutStore):
    """A `RolloutStore` for asynchronous training.

    Unrolls in which every environment was broken are consumed with the others and don't count: a group whose
    environments all failed for good keeps making them.
    """

    def may_sample(self) -> bool:
        """There are enough with experience in them."""
        return sum(map(_has_experience, self._held)) >= self._wanted

    def _choose(self) -> list[LeasedUnroll]:
        chosen: list[LeasedUnroll] = []
        missing = self._wanted
        for unroll in self._held:
            chosen.append(unroll)
            missing -= _has_experience(unroll)
            if not missing:
                break
        return chosen


class EpisodeStore(_Store):
    """Gives a list of unrolls of whole episodes, each cut to the steps really made, because their lengths differ."""

    def _assemble(self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int) -> Sample:
        batch = [self._cut(unroll) for unroll, whose in zip(unrolls, owners, strict=True) if whose]
        return Sample(batch, batch, [whose for whose in owners if whose])

    def _cut(self, unroll: dict[str, Nested]) -> dict[str, Nested]:
        length = int(unroll["length"])
        stops = {"rows": length + 1, "steps": length}
        cut: dict[str, Nested] = {}
        for field, described in self._batched.items():
            stop = stops.get(described.axis)
            cut[field] = nested.map_leaves(
                lambda leaf, stop=stop: torch.from_numpy(leaf[:stop].copy()).to(self._device), unroll[field]
            )
        return cut


def _has_experience(unroll: LeasedUnroll) -> bool:
    return not unroll.arrays["broken"].all()
