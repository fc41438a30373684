"""Stores of unrolls that are consumed once: they wait here until there are enough for an update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch

from rollmill import nested
from rollmill.errors import NoExperience, Stalled
from rollmill.nested import Nested
from rollmill.transport.ports import Lease
from rollmill.types import Ticket


class Owner(NamedTuple):
    """Whose experience a column of a batch is."""

    ticket: Ticket
    environment: int  # k within the group
    number: int  # of the environment among those of all groups


class Held(NamedTuple):
    """An unroll that waits in the store."""

    ticket: Ticket
    lease: Lease


class Sampled(NamedTuple):
    """What an update gets."""

    unrolls: list[Held]  # that it consumes, in order
    batch: Any  # as the update rule wants it
    parts: list[dict[str, Nested]]  # the same as a list of tensors by field: one for the whole batch, or one per unroll
    owners: list[list[Owner]]  # of every column of every part


class _Store(ABC):
    """Collects unrolls until there are enough for an update, and gives them out once."""

    def __init__(self, unrolls: int, device: str) -> None:
        self._wanted = unrolls
        self._device = device
        self._held: dict[tuple[int, int], Held] = {}  # by actor and sequence, in the order in which they came

    def insert(self, lease: Lease) -> Ticket:
        """Keep an unroll until its update."""
        ticket = Ticket(*(int(n) for n in lease.arrays["ticket"]))
        if ticket[:2] in self._held:
            raise Stalled(f"unroll {ticket} came twice")
        self._held[ticket[:2]] = Held(ticket, lease)
        return ticket

    def may_sample(self) -> bool:
        """There is enough for an update."""
        return len(self._held) >= self._wanted

    def held(self) -> dict[int, list[dict[str, Nested]]]:
        """The unrolls that wait here, by actor, in the order of their sequence numbers."""
        found: dict[int, list[dict[str, Nested]]] = {}
        for actor, _ in self._held:  # those of one actor come in order
            found[actor] = [held.lease.arrays for held in self._held.values() if held.ticket.actor == actor]
        return found

    def sample(self, version: int) -> Sampled:
        """The batch, copied out of the slots, without the columns of broken environments; `consume` when it is used.

        `version` is that of the weights which it will change.
        """
        chosen = self._choose()
        unrolls = [held.lease.arrays for held in chosen]
        owners = [
            [
                Owner(held.ticket, int(k), held.ticket.actor * len(unroll["broken"]) + int(k))
                for k in np.flatnonzero(~unroll["broken"])
            ]
            for held, unroll in zip(chosen, unrolls, strict=True)
        ]
        if not any(owners):
            raise NoExperience(f"update {version + 1}: every environment failed; nothing to learn from")
        batch, parts, of_parts = self._assemble([_without_broken(unroll) for unroll in unrolls], owners, version)
        return Sampled(chosen, batch, parts, of_parts)

    def consume(self, sampled: Sampled) -> None:
        """Forget the unrolls of an update; who has their leases gives the slots back."""
        for held in sampled.unrolls:
            del self._held[held.ticket[:2]]

    def _choose(self) -> list[Held]:
        """The unrolls of the next update, in order: by ticket, never by arrival."""
        return sorted(self._held.values(), key=lambda held: held.ticket)[: self._wanted]

    @abstractmethod
    def _assemble(
        self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int
    ) -> tuple[Any, list[dict[str, Nested]], list[list[Owner]]]:
        """Copy the unrolls into a batch: as the rule wants it, in parts, and whose the columns are."""


class RolloutStore(_Store):
    """Joins the unrolls along the batch axis to tensors [T, B, …].

    `lag` [B] says how many updates old each column is, `environment` [B] which environment made it.
    """

    def _assemble(
        self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int
    ) -> tuple[Any, list[dict[str, Nested]], list[list[Owner]]]:
        batch, columns = self._join(unrolls, owners), [owner for unroll in owners for owner in unroll]
        batch["lag"] = torch.tensor([version - owner.ticket.version for owner in columns], device=self._device)
        batch["environment"] = torch.tensor([owner.number for owner in columns])
        return batch, [batch], [columns]

    def _join(self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]]) -> dict[str, Nested]:
        joined: dict[str, Nested] = {}
        for field, first in unrolls[0].items():
            if field in BATCH_AXIS:
                axis = BATCH_AXIS[field]
                parts = [unroll[field] for unroll in unrolls]
                joined[field] = nested.map_leaves(
                    lambda *leaves, axis=axis: self._tensor(leaves, axis), first, *parts[1:]
                )
        # Only the rows in which an episode ended were ever written: copying the rest would touch untouched memory.
        ended = joined["terminated"] | joined["truncated"]
        for field in ("final_obs", "final_state"):
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
    """The same for unrolls in the order in which they came.

    Those in which every environment was broken go along with the others and don't count: a group that is lost for good
    makes them without end.
    """

    def may_sample(self) -> bool:
        """There are enough with experience in them."""
        return sum(map(_has_experience, self._held.values())) >= self._wanted

    def _choose(self) -> list[Held]:
        chosen: list[Held] = []
        missing = self._wanted
        for held in self._held.values():
            chosen.append(held)
            missing -= _has_experience(held)
            if not missing:
                break
        return chosen


class EpisodeStore(_Store):
    """Gives a list of unrolls of whole episodes, each cut to the steps really made, because their lengths differ."""

    def _assemble(
        self, unrolls: list[dict[str, Nested]], owners: list[list[Owner]], version: int
    ) -> tuple[Any, list[dict[str, Nested]], list[list[Owner]]]:
        batch = [self._cut(unroll) for unroll, whose in zip(unrolls, owners, strict=True) if whose]
        return batch, batch, [whose for whose in owners if whose]

    def _cut(self, unroll: dict[str, Nested]) -> dict[str, Nested]:
        length = int(unroll["length"])
        rows = {"obs": length + 1, "reset": length + 1}
        cut: dict[str, Nested] = {}
        for field in BATCH_AXIS:
            stop = rows.get(field, length) if BATCH_AXIS[field] == 1 else None
            cut[field] = nested.map_leaves(
                lambda leaf, stop=stop: torch.from_numpy(leaf[:stop].copy()).to(self._device), unroll[field]
            )
        return cut


def _has_experience(held: Held) -> bool:
    return not held.lease.arrays["broken"].all()


def _without_broken(unroll: dict[str, Nested]) -> dict[str, Nested]:
    """The unroll without the environments that failed in it: what they showed is no experience."""
    if not unroll["broken"].any():
        return unroll
    good = ~unroll["broken"]
    kept = {"length": unroll["length"]}
    for field, axis in BATCH_AXIS.items():
        kept[field] = nested.map_leaves(lambda leaf, axis=axis: np.compress(good, leaf, axis), unroll[field])
    # by column and not compressed, which would touch all their untouched memory
    for field in ("final_obs", "final_state"):
        kept[field] = unroll[field]
    return kept


# Fields of the unroll that a batch carries, and the axis that counts environments in each.
BATCH_AXIS = {
    **dict.fromkeys(("obs", "reset", "action", "reward", "terminated", "truncated", "log_prob", "value", "valid"), 1),
    **dict.fromkeys(("episode_return", "episode_length"), 1),
    **dict.fromkeys(("state", "last_state"), 0),
}

Store = RolloutStore | EpisodeStore
STORES: dict[str, type[RolloutStore] | type[EpisodeStore]] = {
    "rollout": RolloutStore,
    "arrivals": ArrivalStore,
    "episodes": EpisodeStore,
}
