"""The rollout store: holds the unrolls of one update until all are there, in ticket order, and gives them out once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import numpy as np
import torch

from rollmill import nested
from rollmill.errors import NoExperience, Stalled
from rollmill.nested import Nested
from rollmill.transport.ports import Lease, Receiver
from rollmill.types import Ticket


class Owner(NamedTuple):
    """Whose experience a column of a batch is."""

    ticket: Ticket
    environment: int  # k within the group


class Sampled(NamedTuple):
    """What an update gets."""

    tickets: list[Ticket]  # in order
    batch: Any  # as the update rule wants it
    parts: list[dict[str, Nested]]  # the same as a list of tensors by field: one for the whole batch, or one per unroll
    owners: list[list[Owner]]  # of every column of every part


class _TicketOrderedStore(ABC):
    """Collects one unroll of every actor; the order is by ticket, never by arrival."""

    def __init__(self, port: Receiver, actors: int, device: str) -> None:
        self.actors = actors
        self._port = port
        self._device = device
        self._held: dict[Ticket, Lease] = {}

    def may_insert(self) -> bool:
        """There is room for another unroll of this update."""
        return len(self._held) < self.actors

    def insert(self, lease: Lease) -> None:
        """Keep an unroll until the update."""
        ticket = Ticket(*(int(n) for n in lease.arrays["ticket"]))
        if ticket in self._held:
            raise Stalled(f"unroll {ticket} came twice")
        self._held[ticket] = lease

    def may_sample(self) -> bool:
        """Every actor's unroll is there."""
        return len(self._held) == self.actors

    def missing(self) -> list[int]:
        """The actors whose unroll has not come."""
        return sorted(set(range(self.actors)) - {ticket.actor for ticket in self._held})

    def held(self) -> dict[int, dict[str, Nested]]:
        """The unrolls that wait here, by actor."""
        return {ticket.actor: lease.arrays for ticket, lease in self._held.items()}

    def sample(self) -> Sampled:
        """The batch, copied out of the slots, without the columns of broken environments; `clear` when it is used."""
        tickets = sorted(self._held)
        held = [self._held[ticket].arrays for ticket in tickets]
        owners = [
            [Owner(ticket, int(k)) for k in np.flatnonzero(~unroll["broken"])]
            for ticket, unroll in zip(tickets, held, strict=True)
        ]
        if not any(owners):
            raise NoExperience(f"update {tickets[0].sequence + 1}: every environment failed; nothing to learn from")
        return self._assemble(tickets, [_without_broken(unroll) for unroll in held], owners)

    def clear(self) -> None:
        """Give the slots back: their unrolls are consumed."""
        for ticket in sorted(self._held):
            self._port.release(self._held.pop(ticket))

    @abstractmethod
    def _assemble(self, tickets: list[Ticket], unrolls: list[dict[str, Nested]], owners: list[list[Owner]]) -> Sampled:
        """Copy the unrolls into a batch."""


class RolloutStore(_TicketOrderedStore):
    """Joins the unrolls along the batch axis to tensors [T, B, …]."""

    def _assemble(self, tickets: list[Ticket], unrolls: list[dict[str, Nested]], owners: list[list[Owner]]) -> Sampled:
        batch = self._join(unrolls, owners)
        return Sampled(tickets, batch, [batch], [[owner for unroll in owners for owner in unroll]])

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


class EpisodeStore(_TicketOrderedStore):
    """Gives a list of unrolls of whole episodes, each cut to the steps really made, because their lengths differ."""

    def _assemble(self, tickets: list[Ticket], unrolls: list[dict[str, Nested]], owners: list[list[Owner]]) -> Sampled:
        batch = [self._cut(unroll) for unroll, whose in zip(unrolls, owners, strict=True) if whose]
        return Sampled(tickets, batch, batch, [whose for whose in owners if whose])

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

STORES: dict[str, type[RolloutStore] | type[EpisodeStore]] = {"rollout": RolloutStore, "episodes": EpisodeStore}
