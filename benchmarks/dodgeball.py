"""Steps per second of drone dodgeball on one core: python benchmarks/dodgeball.py

Beside it, in the same run, our native CartPole with as many rows: the ratio says what flight, balls and 627 rays cost.
"""

from __future__ import annotations

import os
import statistics
import time

import numpy as np

from rollmill.doctor.env_check import random_actions
from rollmill.envs.config import EnvConfig
from rollmill.envs.group import EnvGroup
from rollmill.envs.make import make_group

SIZE = 64  # rows
STEPS = 200  # of all rows, per repetition
REPETITIONS = 15
WANTED = 20_000  # environment steps per second with rays

CASES = {
    "dodgeball, rays": EnvConfig(id="dodgeball/box"),
    "dodgeball, rays, 4 launchers": EnvConfig(id="dodgeball/box", args={"launchers": 4}),
    "dodgeball, rays, forest of 8": EnvConfig(id="dodgeball/forest"),
    "dodgeball, vector only": EnvConfig(id="dodgeball/box", args={"rays": False}),
    "CartPole": EnvConfig(id="CartPole-v1"),
}


def play(group: EnvGroup, seed: int) -> float:
    """Environment steps per second under random actions, resets included."""
    generator = np.random.default_rng(seed)
    actions = [random_actions(group.action_space, SIZE, generator) for _ in range(STEPS)]
    everyone = np.ones(SIZE, bool)
    seeds = np.arange(SIZE) + seed * 1_000_000
    group.reset(everyone, seeds)
    start = time.perf_counter()
    for action in actions:
        result = group.step(action, everyone)
        over = result.terminated | result.truncated
        if over.any():
            seeds += SIZE
            group.reset(over, seeds)
    return SIZE * STEPS / (time.perf_counter() - start)


def main() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    groups = {name: make_group(config, SIZE) for name, config in CASES.items()}
    for group in groups.values():
        play(group, 0)  # compiles
    # in turn, so that a busy machine slows all of them alike
    speeds = {name: [] for name in CASES}
    for repetition in range(1, REPETITIONS + 1):
        for name, group in groups.items():
            speeds[name].append(play(group, repetition))
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    print(f"{SIZE} rows, one core, {REPETITIONS} repetitions of {STEPS} steps; environment steps per second")
    for name, values in speeds.items():
        ratio = medians[name] / medians["CartPole"]
        print(f"{name:30s} median {medians[name]:>10,.0f}  best {max(values):>10,.0f}  CartPole × {ratio:.3f}")
    print(f"with rays: {medians['dodgeball, rays'] / WANTED:.1f} × the {WANTED:,} that were asked for")


if __name__ == "__main__":
    main()
