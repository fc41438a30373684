"""Warns of learner threads that compete with the workers for cores."""

from __future__ import annotations

import os
from collections.abc import Mapping

from rollmill.launch.process import usable_cores
from rollmill.runtime.blueprint import Blueprint

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # a user who sets one of them has chosen how threads wait


def oversubscribed_threads(blueprint: Blueprint, variables: Mapping[str, str] = os.environ) -> str | None:
    """A warning where asynchronous training would be many times slower than with one learner thread.

    The threads of an operation wait for each other in busy loops, for milliseconds, and block an actor that has to
    share a core with them. It can't be changed from here: OpenMP reads the variables when torch is loaded.
    """
    threads, workers, cores = blueprint.runtime.threads.learner, blueprint.runtime.workers, len(usable_cores())
    if not blueprint.overlaps or threads == 1 or threads + workers <= cores:
        return None
    if any(name in variables for name in WAITING):
        return None
    return (
        f"runtime.threads.learner={threads} with {workers} worker{'s' if workers > 1 else ''} on {cores} cores: "
        "threads that wait for each other keep the workers' cores busy; "
        "set it to 1, or OMP_WAIT_POLICY=passive in the environment"
    )
