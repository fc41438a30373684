"""Whether the learner's threads are in the workers' way."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rollmill.launch.process import usable_cores
from rollmill.runtime.blueprint import Blueprint

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # who sets one of them has chosen how threads wait


def oversubscribed_threads(blueprint: Blueprint, variables: Mapping[str, str] = os.environ) -> str | None:
    """A warning where asynchronous training would be many times slower than with one learner thread.

    The threads of an operation wait for each other by burning their cores, for milliseconds, and an actor that has to
    share one of these cores is idle. It can't be changed from here: OpenMP reads them when torch is loaded.
    """
    threads, workers, cores = blueprint.runtime.threads.learner, blueprint.runtime.workers, len(usable_cores())
    if not blueprint.overlaps or threads == 1 or threads + workers <= cores:
        return None
    if any(name in variables for name in WAITING):
        return None
    return (
        f"runtime.threads.learner={threads} beside {workers} worker{'s' if workers > 1 else ''} on {cores} cores: "
        "threads that wait for each other burn the workers' cores; "
        "set it to 1, or OMP_WAIT_POLICY=passive in the environment"
    )
