"""VPG's loss and gradient accumulation by hand and against one big gradient."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.algorithms.recipe import UpdateContext
from rollmill.algorithms.vpg import RECIPE, VPGConfig, VPGUpdate, vpg_loss
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(3)


def test_the_loss_of_an_episode_is_its_share_of_all_steps():
    # log-probs -1, -2 with advantages 3, -1, of 4 steps in all: -(-3 + 2) / 4 = 0.25; entropy (1 + 0.6) / 4 = 0.4
    loss, parts = vpg_loss(
        torch.tensor([-1.0, -2.0]),
        torch.tensor([1.0, 0.6]),
        torch.tensor([3.0, -1.0]),
        4,
        VPGConfig(entropy_coefficient=0.5),
    )
    assert parts.tolist() == pytest.approx([0.25, 0.4])
    assert float(loss) == pytest.approx(0.25 - 0.5 * 0.4)


def make_network():
    return RECIPE.network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=2)


def make_unroll(lengths, seed):
    """An unroll of whole episodes; after its end an environment sits out."""
    rng = np.random.default_rng(seed)
    steps, size = max(lengths), len(lengths)
    valid = np.array([[t < length for length in lengths] for t in range(steps)])
    return {
        "obs": torch.from_numpy(rng.normal(size=(steps + 1, size, 3)).astype(np.float32)),
        "reset": torch.from_numpy(np.arange(steps + 1)[:, None] * np.ones((1, size)) == 0),
        "action": torch.from_numpy(rng.integers(3, size=(steps, size))),
        "reward": torch.from_numpy(rng.normal(size=(steps, size)).astype(np.float32)),
        "truncated": torch.zeros(steps, size, dtype=torch.bool),
        "valid": torch.from_numpy(valid),
        "state": {},
    }


def test_accumulated_gradients_equal_one_big_gradient():
    network, twin = make_network(), make_network()
    config = VPGConfig(learning_rate=0.1, gamma=0.9, normalise=False)
    batch = [make_unroll([3, 5], 0), make_unroll([4, 2], 1)]
    VPGUpdate(network, build_optimizers(network, config.optimizer_of), config)(
        batch, UpdateContext(np.random.default_rng(0), 0.0)
    )

    optimizer = torch.optim.Adam(twin.parameters(), lr=0.1, eps=1e-8)
    log_probs, returns = [], []
    for unroll, lengths in zip(batch, ([3, 5], [4, 2]), strict=True):
        for k, length in enumerate(lengths):
            logits = twin(unroll["obs"][:length, k : k + 1], {}, None).params[:, 0]
            log_probs.append(torch.distributions.Categorical(logits=logits).log_prob(unroll["action"][:length, k]))
            rewards = unroll["reward"][:length, k].tolist()
            returns += [sum(0.9 ** (s - t) * rewards[s] for s in range(t, length)) for t in range(length)]
    returns = torch.tensor(returns)
    (-(torch.cat(log_probs) * (returns - returns.mean())).mean()).backward()
    optimizer.step()
    for ours, theirs in zip(network.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_entropy_starts_at_its_maximum():
    network = make_network()
    params = network(torch.randn(1, 16, 3), {}, None).params
    _, entropy = network.distribution.log_prob_and_entropy(params, torch.zeros(1, 16).long())
    assert entropy.mean().item() == pytest.approx(np.log(3))
