"""Where and how a run is executed; none of it changes the result, except `threads.learner` and `numerics`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rollmill.config.base import Config
from rollmill.numerics import Mode


class ThreadsConfig(Config):
    """Threads of the numeric libraries per role, equal on every runtime."""

    learner: int = Field(
        default=1, ge=1, le=1024, description="threads; changes the last bits of the gradients of convolutions"
    )
    actor: int = Field(default=1, ge=1, le=1024, description="threads of actors, environments and collectors")
    inference: int = Field(default=1, ge=1, le=1024, description="threads of central inference")


class DevicesConfig(Config):
    """Where the tensors of a role live: `cpu`, or `cuda` where there is one."""

    learner: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="device of the learner's network")
    actor: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="device of each actor's policy copy")
    inference: str = Field(default="cpu", pattern=r"^(cpu|cuda(:\d+)?)$", description="device of central inference")


class RuntimeConfig(Config):
    """The runtime section."""

    kind: Literal["serial", "processes"] = Field(default="serial", description="one process, or worker processes")
    workers: int = Field(default=1, ge=1, description="worker processes; groups are dealt out to them in turn")
    roles: Literal["fused", "central", "split"] = Field(
        default="fused",
        description="fused: actors decide for themselves; central: one inference component for all groups; "
        "split: environment, inference, collector and learner each in its own process",
    )
    numerics: Mode = Field(
        default="native",
        description="native: the fastest code for this CPU; portable: the same bits on every x86-64 CPU with AVX2",
    )
    threads: ThreadsConfig = Field(default_factory=ThreadsConfig, description="threads per role")
    devices: DevicesConfig = Field(default_factory=DevicesConfig, description="device per role")
    pin: bool = Field(default=True, description="tie each worker to one core, where there are as many cores as workers")
    niceness: int = Field(
        default=0, ge=0, le=19, description="of the workers; above 0 they get what the learner leaves over"
    )
    stall_seconds: float = Field(
        default=300.0, gt=0, description="seconds without any unroll before the run is given up"
    )
    env_seconds: float = Field(
        default=60.0, gt=0, description="seconds in one step() or reset() before an environment counts as hung"
    )
    restarts: int = Field(
        default=5, ge=0, description="replacements of a worker in a row, without an unroll in between; 0: never replace"
    )
    worker_memory_gb: float | None = Field(
        default=None, gt=0, description="GB of memory above which a worker is replaced; null: no limit"
    )

    def threads_of(self, role: str) -> int:
        """Threads of the numeric libraries for a role, equal on every runtime."""
        return {"learner": self.threads.learner, "inference": self.threads.inference}.get(role, self.threads.actor)
