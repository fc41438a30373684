"""The fields of an unroll, in one table: specs, batches and checksums are derived from it.

Shape legend: T time, K environments of one group. `obs` and `reset` have T+1 rows: the last is what follows the unroll.
Sparse fields are written only where an episode ended; being mapped lazily they cost address space, not memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from rollmill.nested import Nested
from rollmill.types import ArraySpec, Problem, lead

Axis = Literal["rows", "steps", "environments", "unroll"]  # [T+1, K, …], [T, K, …], [K, …], […]
Origin = Literal["observation", "decision", "outcome", "status", "unroll"]  # which record of a step it comes from

SPARSE = ("final_obs", "final_state")  # batches hold just their written rows, in row-major order of [T, B]
LAST_WORD = -1  # the `row` of the message that follows an unroll's decisions, where the policy has last records

_FLAG, _COUNT = ArraySpec((), "bool"), ArraySpec((), "int64")
_REAL, _EXACT = ArraySpec((), "float32"), ArraySpec((), "float64")


@dataclass(frozen=True)
class Field:
    """One field of an unroll."""

    name: str
    spec: Nested  # of one environment, or of the unroll
    axis: Axis
    origin: Origin
    is_batched: bool = False  # stores copy it into batches
    checksum: str = ""  # the checksum of the flight log that covers it

    @property
    def batch_axis(self) -> int:
        """The axis that counts environments."""
        return 0 if self.axis == "environments" else 1


@dataclass(frozen=True)
class Fields:
    """The table for one problem."""

    problem: Problem

    def __iter__(self) -> Iterator[Field]:
        return iter(self._table)

    @cached_property
    def _table(self) -> tuple[Field, ...]:
        return tuple(self._listed())

    def _listed(self) -> Iterator[Field]:
        problem = self.problem
        yield Field("ticket", ArraySpec((3,), "int64"), "unroll", "unroll")
        yield Field("obs", problem.observation, "rows", "observation", is_batched=True, checksum="obs")
        yield Field("reset", _FLAG, "rows", "observation", is_batched=True)
        yield Field("action", problem.action, "steps", "decision", is_batched=True, checksum="action")
        for name, spec in problem.records.items():
            yield Field(name, spec, "steps", "decision", is_batched=True, checksum="records")
        yield Field("reward", _REAL, "steps", "outcome", is_batched=True, checksum="reward")
        yield Field("raw_reward", _EXACT, "steps", "outcome")  # before scale and clip
        yield Field("terminated", _FLAG, "steps", "outcome", is_batched=True, checksum="ended")
        yield Field("truncated", _FLAG, "steps", "outcome", is_batched=True, checksum="ended")
        yield Field("final_obs", problem.observation, "steps", "outcome", is_batched=True)
        yield Field("final_state", problem.state, "steps", "unroll", is_batched=True)
        yield Field("valid", _FLAG, "steps", "outcome", is_batched=True)
        yield Field("episode_return", _EXACT, "steps", "outcome", is_batched=True)  # raw, so far
        yield Field("episode_length", _COUNT, "steps", "outcome", is_batched=True)
        yield Field("state", problem.state, "environments", "unroll", is_batched=True)
        yield Field("last_state", problem.state, "environments", "unroll", is_batched=True, checksum="state")
        for name, spec in problem.last_records.items():
            yield Field(name, spec, "environments", "unroll", is_batched=True, checksum="records")
        yield Field("seconds", ArraySpec((3,), "float64"), "unroll", "unroll")  # spent stepping, deciding, waiting
        yield Field("length", _COUNT, "unroll", "unroll")  # steps really made, at most T
        # status of the group after the last row, from which its actor can be rebuilt:
        yield Field("episode", _COUNT, "environments", "status", checksum="status")
        yield Field("failures", _COUNT, "environments", "status", checksum="status")
        yield Field("troubles", _COUNT, "environments", "status")
        yield Field("broken", _FLAG, "environments", "status", checksum="status")
        yield Field("snapshot", ArraySpec((problem.snapshot_row,), "uint8"), "environments", "status")

    @property
    def batched(self) -> dict[str, Field]:
        """What stores copy into batches, sparse fields apart."""
        return {field.name: field for field in self if field.is_batched and field.name not in SPARSE}

    @cached_property
    def checksummed(self) -> tuple[Field, ...]:
        """What the checksums of the flight log cover."""
        return tuple(field for field in self if field.checksum)

    def unroll_spec(self, steps: int, size: int) -> dict[str, Nested]:
        """The layout of one unroll: T = `steps`, K = `size`."""
        leading = {"rows": (steps + 1, size), "steps": (steps, size), "environments": (size,), "unroll": ()}
        return {field.name: lead(field.spec, *leading[field.axis]) for field in self}

    def scene_spec(self, size: int) -> dict[str, Nested]:
        """What an environment component sends: the observation and, but for the first, the step that led to it.

        The status is written with the scene that ends an unroll.
        """
        fields = [field for field in self if field.origin in ("observation", "outcome", "status")]
        extra = {"over": _FLAG, "seconds": _EXACT}  # the unroll ends with this step; how long the step took
        return {field.name: lead(field.spec, size) for field in fields} | extra

    def decision_spec(self, size: int) -> dict[str, Nested]:
        """What inference sends: a decision with the ticket under which it was made."""
        fields = {field.name: lead(field.spec, size) for field in self if field.origin == "decision"}
        fields |= {name: lead(spec, size) for name, spec in self.problem.last_records.items()}  # where row is LAST_WORD
        states = {name: lead(self.problem.state, size) for name in ("state_before", "state")}
        extra = {"ticket": ArraySpec((3,), "int64"), "row": _COUNT, "seconds": _EXACT}  # t; how long deciding took
        return fields | states | extra
