"""The parts of a training, each alone in this process: environments stepped, decisions made, batches learnt from.

python -m benchmarks.parts WORKLOAD --batch FILE --threads N [--core C]

Says `ready`, then answers each line `<part> <seconds>` of its input with the part's steps per second. The batch is that
of the first update: it is taken from FILE, or collected and left there. `efficiency.py` starts this program.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.ours import settings_of
from rollmill import nested
from rollmill.algorithms.recipe import Update, UpdateContext
from rollmill.doctor.preflight import draw_blueprint
from rollmill.envs.make import make_group
from rollmill.launch.process import set_threads, tune_allocator
from rollmill.learners.optimizer import build_optimizers
from rollmill.runtime.blueprint import Blueprint
from rollmill.runtime.serial import SerialRuntime
from rollmill.runtime.topology import draw_graph
from rollmill.types import Array

Part = Callable[[], int]  # does a piece of work and says how many steps it was
Batch = dict[str, Any]


class Collected(Exception):
    """Carries the batch of the first update out of the learner."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch


def collect(blueprint: Blueprint) -> Batch:
    """What the first update of the run would learn from."""

    def give_away(batch: Batch, context: UpdateContext) -> Update:
        raise Collected(batch)

    recipe = dataclasses.replace(blueprint.recipe, update=lambda *_: give_away)
    serial = blueprint.runtime.model_copy(update={"kind": "serial"})
    runtime = SerialRuntime(draw_graph(dataclasses.replace(blueprint, recipe=recipe, runtime=serial)), serial)
    try:
        runtime.start()
        for _ in runtime.run():
            pass
    except Collected as collected:
        return collected.batch
    finally:
        runtime.close()
    raise RuntimeError("the run ended without an update")


def environments(blueprint: Blueprint, batch: Batch) -> Part:
    """Steps a group with the actions of the batch."""
    size = blueprint.env.group_size
    group = make_group(blueprint.env)
    actions: Array = batch["action"][:, :size].numpy()
    everyone, seeds = np.ones(size, np.bool_), np.arange(size)
    group.reset(everyone, seeds)
    turn = 0

    def step() -> int:
        nonlocal turn, seeds
        result = group.step(actions[turn % len(actions)], everyone)
        turn += 1
        over = result.terminated | result.truncated
        if over.any():
            seeds = seeds + size
            group.reset(over, seeds)
        return size

    return step


def decisions(blueprint: Blueprint, batch: Batch) -> Part:
    """One forward per step of a group, on the observations of the batch, with all that a policy does around it."""
    size, steps = blueprint.env.group_size, blueprint.assembler.steps
    policy = blueprint.policy(0, "cpu")
    obs = nested.map_leaves(lambda leaf: leaf[:, :size].contiguous().numpy(), batch["obs"])
    reset: Array = batch["reset"][:, :size].numpy()
    noise = policy.noise(np.random.default_rng(1), steps)
    state, turn = policy.initial_state(), 0

    def decide() -> int:
        nonlocal state, turn
        t = turn % steps
        state = policy.act(nested.index(obs, t), state, reset[t], noise[t]).state
        turn += 1
        return size

    return decide


def updates(blueprint: Blueprint, batch: Batch) -> Part:
    """Whole updates, always from the same batch."""
    network = blueprint.network("cpu")
    optimizers = build_optimizers(network, blueprint.algorithm.optimizer_of)
    update = blueprint.recipe.update(network, optimizers, blueprint.algorithm)
    rng, samples = np.random.default_rng(1), batch["reward"].numel()

    def learn() -> int:
        update(batch, UpdateContext(rng, 0.0))
        return int(samples)

    return learn


PARTS: dict[str, Callable[[Blueprint, Batch], Part]] = {
    "environments": environments,
    "decisions": decisions,
    "updates": updates,
}


def rate(part: Part, seconds: float) -> float:
    """Steps per second over at least `seconds`."""
    start, steps, elapsed = perf_counter(), 0, 0.0
    while elapsed < seconds:
        steps += part()
        elapsed = perf_counter() - start
    return steps / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("--batch", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--core", type=int)
    options = parser.parse_args()
    tune_allocator()
    if options.core is not None:
        os.sched_setaffinity(0, {options.core})
    blueprint = draw_blueprint(settings_of(options.workload, seed=1).config)
    if not options.batch.exists():
        torch.save(collect(blueprint), options.batch)
    batch = torch.load(options.batch, weights_only=True)
    set_threads(options.threads)
    made: dict[str, Part] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        name, seconds = line.split()
        if name not in made:
            made[name] = PARTS[name](blueprint, batch)
            made[name]()  # allocates and warms up
        print(rate(made[name], float(seconds)), flush=True)


if __name__ == "__main__":
    main()
