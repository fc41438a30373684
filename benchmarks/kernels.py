"""Training pass and decision of three networks, each as a ratio to the machine's own product of matrices.

    python -m benchmarks.kernels [--threads 1] [--only pong]

The bound is what the multiplications of a network would take at the rate of a large float32 product, measured in the
same run. Best of several repetitions. With one thread the time is the processor's, so other work on the machine hardly
shows; with more it is the clock's, which wants a quiet machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch

from rollmill.algorithms.policy import PolicyContext, StochasticPolicy
from rollmill.algorithms.recipe import OptimizerSettings
from rollmill.launch.process import tune_allocator
from rollmill.learners.optimizer import FlatOptimizer
from rollmill.models.config import ModelConfig
from rollmill.models.inputs import image_layout
from rollmill.models.network import Network, build_network

_DOOM_CONV = ((32, 8, 4), (64, 4, 2), (128, 3, 2))


class Case(NamedTuple):
    """A network, the columns that it learns from, and the groups that it decides for."""

    observation: gym.spaces.Box
    actions: int
    model: ModelConfig
    steps: int
    columns: int
    groups: tuple[int, ...]
    reset_share: float  # of the steps begin an episode


CASES = {
    "pong": Case(gym.spaces.Box(0, 255, (4, 84, 84), np.uint8), 6, ModelConfig(), 128, 2, (4, 8, 16), 0.0),
    "doom": Case(
        gym.spaces.Box(0, 255, (72, 128, 3), np.uint8),
        4,
        ModelConfig(torso="cnn", conv=_DOOM_CONV, activation="elu", memory="gru", memory_size=512),
        32,
        32,
        (4, 8, 16, 32),
        1 / 60,
    ),
    "cartpole": Case(gym.spaces.Box(-1, 1, (4,), np.float32), 2, ModelConfig(), 1, 256, (8, 16, 64), 0.0),
}


def best_seconds(run: Callable[[], object], repetitions: int, clock: Callable[[], float]) -> float:
    """The shortest of several runs, after two that don't count."""
    run(), run()
    times = []
    for _ in range(repetitions):
        begin = clock()
        run()
        times.append(clock() - begin)
    return min(times)


def flop_rate(clock: Callable[[], float]) -> float:
    """Floating-point operations a second in a product of two large matrices."""
    size = 1536
    left, right = torch.rand(size, size), torch.rand(size, size)
    return 2 * size**3 / best_seconds(lambda: left @ right, 7, clock)


def forward_flops(network: Network, case: Case) -> tuple[float, float]:
    """Operations of one sample's forward pass, and those of them that lead from the observation to the first layer."""
    from torch.utils.flop_counter import FlopCounterMode

    obs, reset, _ = _batch(case, 1, 4)
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        network(obs, network.initial_state(4), reset)
    first = next(p for p in network.encoder.parameters() if p.ndim > 1)
    places = 1.0
    layout = image_layout(case.observation)
    if layout is not None:  # a kernel of 8 with a stride of 4, in both networks, at every place of its output
        places = ((layout.height - 8) // 4 + 1) * ((layout.width - 8) // 4 + 1)
    return counter.get_total_flops() / 4, 2.0 * first.numel() * places


def _batch(case: Case, steps: int, columns: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    shape = (steps, columns, *case.observation.shape)
    is_bytes = case.observation.dtype == np.uint8
    obs = rng.integers(0, 255, shape, np.uint8) if is_bytes else rng.random(shape, np.float32)
    reset = rng.random((steps, columns)) < case.reset_share
    return torch.from_numpy(obs), torch.from_numpy(reset), torch.from_numpy(rng.integers(0, case.actions, reset.shape))


def training_pass(network: Network, case: Case) -> Callable[[], object]:
    """One gradient step on all columns."""
    obs, reset, action = _batch(case, case.steps, case.columns)
    settings = OptimizerSettings(kind="adam", learning_rate=1e-4, epsilon=1e-5, max_grad_norm=1.0)
    optimizer, state = FlatOptimizer(list(network.parameters()), settings), network.initial_state(case.columns)

    def step() -> object:
        output = network(obs, state, reset)
        log_prob, entropy = network.distribution.log_prob_and_entropy(output.params, action)
        assert output.value is not None
        optimizer.accumulate((output.value.square() - log_prob - entropy).mean())
        return optimizer.apply()

    return step


def decision(network: Network, case: Case, size: int) -> Callable[[], object]:
    """One decision for a group."""
    obs, reset, _ = _batch(case, 1, size)
    policy = StochasticPolicy(network, PolicyContext(None, size))
    noise = policy.noise(np.random.default_rng(1), 1)[0]
    state: Any = policy.initial_state()
    scene, begins = obs[0].numpy(), reset[0].numpy()
    return lambda: policy.act(scene, state, begins, noise)


def main() -> None:
    """Print a line for every case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=CASES)
    given = parser.parse_args()
    tune_allocator()
    torch.set_num_threads(given.threads)
    clock = time.process_time if given.threads == 1 else time.perf_counter
    for name, case in CASES.items():
        if given.only not in (None, name):
            continue
        network = build_network(case.observation, gym.spaces.Discrete(case.actions), case.model, seed=1)
        forward, first = forward_flops(network, case)
        rate = flop_rate(clock)
        samples = case.steps * case.columns
        seconds = best_seconds(training_pass(network, case), 8 if samples * forward > 1e9 else 100, clock) / samples
        bound = (3 * forward - first) / rate  # nothing flows back into the observation
        print(f"{name:9} train {samples:5}: {seconds * 1e6:7.1f} µs per sample, {bound / seconds:.2f} of the bound")
        for size in case.groups:
            seconds = best_seconds(decision(network, case, size), 100, clock) / size
            bound = forward / rate
            print(f"{name:9} act   {size:5}: {seconds * 1e6:7.1f} µs per row,    {bound / seconds:.2f} of the bound")


if __name__ == "__main__":
    main()
