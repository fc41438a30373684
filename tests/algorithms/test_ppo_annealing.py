"""`anneal_clip`: the clip shrinks linearly to zero during training."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.algorithms.ppo import PPOConfig, PPOUpdate
from rollmill.algorithms.recipe import UpdateContext
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network

STEPS, COLUMNS = 6, 4


def make_batch(network, ratios=(1.0,)):
    """Fresh data without episode ends; the first ratio of the samples runs through `ratios` in turn."""
    rng = np.random.default_rng(0)
    obs = torch.from_numpy(rng.normal(size=(STEPS + 1, COLUMNS, 3)).astype(np.float32))
    action = torch.from_numpy(rng.integers(2, size=(STEPS, COLUMNS)))
    never = torch.zeros(STEPS, COLUMNS, dtype=torch.bool)
    with torch.no_grad():
        output = network(obs[:-1], {}, None)
        log_prob = network.distribution.log_prob(output.params, action)
    wanted = torch.tensor(ratios).repeat(STEPS * COLUMNS // len(ratios)).view(STEPS, COLUMNS)
    return {
        "obs": obs,
        "reset": torch.zeros(STEPS + 1, COLUMNS, dtype=torch.bool),
        "action": action,
        "reward": torch.from_numpy(rng.normal(size=(STEPS, COLUMNS)).astype(np.float32)),
        "terminated": never,
        "truncated": never,
        "final_obs": torch.zeros(0, 3),
        "final_state": {},
        "log_prob": log_prob - wanted.log(),  # new / old = ratio, so log old = log new - log ratio
        "value": output.value,
        "state": {},
        "last_state": {},
    }


def train(progress, *, ratios=(1.0,), epochs=1, **settings):
    """Metrics of one update, and the weights it leads to."""
    network = build_network(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2), ModelConfig(hidden=(8,)), seed=5)
    config = PPOConfig(unroll=STEPS, minibatch=STEPS * COLUMNS, epochs=epochs, learning_rate=0.05, **settings)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    metrics = update(make_batch(network, ratios), UpdateContext(np.random.default_rng(0), progress)).metrics
    return metrics, torch.nn.utils.parameters_to_vector(network.parameters()).detach()


@pytest.mark.parametrize(
    ("progress", "fraction"),
    [
        # how many of |ratio - 1| = 0.02, 0.07, 0.15, 0.3 exceed 0.2 (1 - progress)
        (0.0, 0.25),  # 0.2: only 0.3
        (0.5, 0.5),  # 0.1: 0.15 and 0.3
        (0.75, 0.75),  # 0.05: all but 0.02
        (1.0, 1.0),  # 0: all
    ],
)
def test_the_share_of_clipped_samples_grows_as_the_clip_shrinks(progress, fraction):
    ratios = (1.02, 0.93, 1.15, 0.7)
    assert train(progress, ratios=ratios, clip=0.2, anneal_clip=True)[0]["clip_fraction"] == fraction
    assert train(progress, ratios=ratios, clip=0.2)[0]["clip_fraction"] == 0.25  # without annealing it stays


@pytest.mark.parametrize(("progress", "clip"), [(0.0, 0.2), (0.5, 0.1), (0.75, 0.05)])
def test_an_annealed_clip_trains_like_a_fixed_one_of_its_size(progress, clip):
    # 0.2 · (1 - 0.5) = 0.1 and 0.2 · (1 - 0.75) = 0.05 exactly: both are powers of two times 0.2
    annealed, weights = train(progress, epochs=8, clip=0.2, anneal_clip=True)
    fixed, fixed_weights = train(0.0, epochs=8, clip=clip)
    assert annealed == fixed
    assert torch.equal(weights, fixed_weights)


def test_the_size_of_the_clip_matters_to_training():
    """The control of the test above."""
    (wide, wide_weights), (narrow, narrow_weights) = (train(0.0, epochs=8, clip=clip) for clip in (0.2, 0.1))
    assert wide["clip_fraction"] < narrow["clip_fraction"]
    assert wide["loss/policy"] != narrow["loss/policy"]
    assert not torch.allclose(wide_weights, narrow_weights, atol=1e-3)


def test_clip_and_learning_rate_are_annealed_apart():
    # at progress 0.5 the rate of 0.05 becomes 0.025, and the ratio of 1.15 is beyond a clip of 0.1 but not of 0.2
    def seen(**settings):
        metrics, _ = train(0.5, ratios=(1.0, 1.15), clip=0.2, **settings)
        return metrics["learning_rate"], metrics["clip_fraction"]

    assert seen() == (0.05, 0.0)
    assert seen(anneal_clip=True) == (0.05, 0.5)
    assert seen(anneal_learning_rate=True) == (0.025, 0.0)
    assert seen(anneal_clip=True, anneal_learning_rate=True) == (0.025, 0.5)


def test_the_value_clip_is_not_annealed():
    """It bounds another quantity, in units of returns."""
    settings = {"epochs": 8, "clip": 0.2, "value_clip": 0.01}
    (annealed, _), (fixed, _) = train(0.5, anneal_clip=True, **settings), train(0.0, **settings | {"clip": 0.1})
    assert annealed["loss/value"] == fixed["loss/value"]
    halved, _ = train(0.5, anneal_clip=True, **settings | {"value_clip": 0.005})
    assert halved["loss/value"] != fixed["loss/value"]
