"""Every preset that takes minutes reaches what it claims for every seed, also with other roundings."""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

import numpy as np
import pytest

CONFIGS = Path(__file__).parents[2] / "configs"

pytestmark = pytest.mark.prove


@pytest.mark.parametrize("perturbed", [False, True], ids=["as built", "perturbed"])
@pytest.mark.parametrize(
    ("name", "seeds", "measure", "claim"),
    [
        ("ppo/cartpole", 50, "mean_100", 475),
        ("a2c/cartpole", 10, "mean_100", 475),
        ("vpg/cartpole", 10, "mean_100", 400),
        ("appo/cartpole", 10, "mean_100", 475),
        ("ppo/memory_cue", 10, "greedy", 0.95),
        ("appo/memory_cue", 10, "greedy", 0.95),
        ("ppo/pendulum", 10, "greedy", -250),
        ("appo/pendulum", 10, "greedy", -250),
        ("doom/basic", 10, "mean_100", 75),
        ("appo/doom_basic_small", 10, "mean_100", 75),
    ],
)
def test_every_seed_reaches_what_the_preset_claims(trained, name, seeds, measure, claim, perturbed):
    reached, minutes = [], []
    for seed in range(1, seeds + 1):
        start = perf_counter()
        summary = trained(CONFIGS / f"{name}.yaml", perturbed=perturbed, seed=seed).summary
        reached.append(summary["returns"][measure])
        minutes.append((perf_counter() - start) / 60)
    enough = sum(value >= claim for value in reached)
    print(
        f"\n{name}{', perturbed' if perturbed else ''}: {measure} ≥ {claim} for {enough} of {seeds} seeds; "
        f"worst {min(reached):.2f}, median {np.median(reached):.2f}; {np.median(minutes):.2f} minutes each"
    )
    assert enough == seeds, {seed: value for seed, value in enumerate(reached, 1) if value < claim}
