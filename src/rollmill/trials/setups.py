"""The settings that tuning tries (workers, roles, groups, threads), and what of the result each of them changes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import log2
from typing import Any

from rollmill.config.load import flattened
from rollmill.settings import ExperimentConfig

KEYS = {
    "kind": "runtime.kind",
    "workers": "runtime.workers",
    "roles": "runtime.roles",
    "groups": "env.groups",
    "group_size": "env.group_size",
    "learner_threads": "runtime.threads.learner",
    "unrolls": "algorithm.unrolls",
}


@dataclass(frozen=True)
class Setup:
    """One choice of the settings that may make training faster."""

    kind: str
    workers: int
    roles: str
    groups: int
    group_size: int
    learner_threads: int
    unrolls: int | None = None  # per update; None where the algorithm takes one of every group

    @classmethod
    def of(cls, config: ExperimentConfig) -> Setup:
        """What the config says."""
        values = flattened(config)
        chosen: dict[str, Any] = {name: values.get(key) for name, key in KEYS.items()}
        return cls(**chosen)

    @property
    def environments(self) -> int:
        """How many there are in all."""
        return self.groups * self.group_size

    @property
    def is_asynchronous(self) -> bool:
        """Whether updates take what has arrived, so that no two runs are equal."""
        return self.unrolls is not None

    @property
    def place(self) -> str:
        """Where the groups live, in words."""
        return "serial" if self.kind == "serial" else f"{self.workers} worker{'s' if self.workers > 1 else ''}"

    def __str__(self) -> str:
        roles = "" if self.roles == "fused" else f", {self.roles}"
        return f"{self.place}{roles}, {self.groups} × {self.group_size}, learner threads {self.learner_threads}"

    def changes(self, base: Setup) -> dict[str, Any]:
        """The settings, by dotted key, in which this differs from `base`."""
        return {key: getattr(self, name) for name, key in KEYS.items() if getattr(self, name) != getattr(base, name)}

    def effect(self, base: Setup) -> str:
        """What of the result changes with it: the last bits, the episodes, the batch; "" if no two runs are equal."""
        if self.is_asynchronous:
            return ""
        if self.environments != base.environments:
            return "other batch"
        if (self.groups, self.group_size) != (base.groups, base.group_size):
            return "other episodes"
        return "last bits" if self.learner_threads != base.learner_threads else "same"

    def distance(self, other: Setup) -> float:
        """How unlike two setups are: doublings of their numbers, and a step for each other kind."""
        numbers = ("workers", "groups", "group_size", "learner_threads")
        doublings = sum(abs(log2(getattr(self, name) / getattr(other, name))) for name in numbers)
        return doublings + (self.kind != other.kind) + 1.5 * (self.roles != other.roles)


def every_setup(base: Setup, cores: int, may_change_environments: bool) -> list[Setup]:
    """All setups worth a try next to `base`; the number of environments stays, unless it may change."""
    totals = [base.environments]
    if may_change_environments:
        totals += [total for total in (base.environments // 2, *(base.environments * n for n in (2, 4))) if total]
    setups = [
        replace(place, groups=groups, group_size=total // groups, learner_threads=threads, unrolls=unrolls)
        for total in totals
        for groups in _group_counts(total, base, cores)
        for place in _places(base, groups, cores)
        for threads in sorted({*_doublings(cores), base.learner_threads})
        if (unrolls := _unrolls(base, total // groups)) is not None or base.unrolls is None
    ]
    return [setup for setup in dict.fromkeys(setups) if setup != base]


def anchors(setups: list[Setup], cores: int) -> list[Setup]:
    """A few that are far apart, to be tried first."""
    wishes = [("processes", "fused", cores, cores), ("serial", "fused", 1, 1), ("processes", "fused", cores, 1)]
    wishes.append(("processes", "central", 2 * cores, 1))
    found: list[Setup] = []
    for kind, roles, groups, threads in wishes:
        fitting = [setup for setup in setups if (setup.kind, setup.roles) == (kind, roles) and setup not in found]
        found += sorted(fitting, key=partial(_distance_to, groups, threads))[:1]
    return found


def _distance_to(groups: int, threads: int, setup: Setup) -> float:
    """Doublings from these numbers; of equal ones the setup with more workers is nearer."""
    return abs(log2(setup.groups / groups)) + abs(log2(setup.learner_threads / threads)) - setup.workers / 1024


def _places(base: Setup, groups: int, cores: int) -> Iterator[Setup]:
    yield replace(base, kind="serial", workers=1, roles="fused")
    for workers in sorted({*_doublings(cores), max(1, cores - 1)}):
        if workers <= groups:
            for roles in ("fused", "central"):
                yield replace(base, kind="processes", workers=workers, roles=roles)


def _group_counts(total: int, base: Setup, cores: int) -> list[int]:
    """Divisors of the number of environments, up to a few groups per core."""
    most = max(4 * cores, base.groups)
    return [groups for groups in range(1, min(total, most) + 1) if total % groups == 0]


def _unrolls(base: Setup, group_size: int) -> int | None:
    """So many that an update has as many samples as before; None if that can't be."""
    if base.unrolls is None:
        return None
    unrolls, rest = divmod(base.unrolls * base.group_size, group_size)
    return unrolls if rest == 0 else None


def _doublings(most: int) -> list[int]:
    return [*(2**n for n in range(most.bit_length()) if 2**n < most), most]
