"""Every term of PPO's loss by hand arithmetic; its update against an independent implementation."""

from __future__ import annotations

import math

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.algorithms import ppo
from rollmill.algorithms.minibatches import Samples, minibatches, pick_rows
from rollmill.algorithms.ppo import Evaluated, PPOConfig, PPOUpdate, Steps, ppo_loss, summarise
from rollmill.algorithms.recipe import UpdateContext
from rollmill.errors import Refused
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network


def plain(**changes):
    return PPOConfig(**{"entropy_coefficient": 0.0, "value_coefficient": 0.0} | changes)


def loss_of(
    config, ratios=(1.0,), advantages=(1.0,), values=(0.0,), returns=(0.0,), old_values=None, entropy=(0.0,), clip=0.2
):
    ratios, advantages, values, returns, entropy = (
        torch.tensor(x, dtype=torch.float64) for x in (ratios, advantages, values, returns, entropy)
    )
    old_values = torch.zeros_like(values) if old_values is None else torch.tensor(old_values, dtype=torch.float64)
    old = Samples(torch.zeros_like(ratios), old_values, advantages, returns)
    samples = torch.broadcast_tensors(ratios, values, entropy)[0].numel()
    loss, terms = ppo_loss(Evaluated(ratios.log(), entropy, values, old), config, clip, samples)
    return float(loss), summarise(Steps([terms], [torch.zeros(())]), clip)


def test_the_surrogate_is_clipped_on_the_side_that_would_gain():
    # ratio 1.5, A = +1: min(1.5, 1.2) = 1.2;  ratio 1.5, A = -1: min(-1.5, -1.2) = -1.5: not clipped
    # ratio 0.5, A = +1: min(0.5, 0.8) = 0.5;  ratio 0.5, A = -1: min(-0.5, -0.8) = -0.8
    # mean = (1.2 - 1.5 + 0.5 - 0.8) / 4 = -0.15, and the loss is its negative
    loss, seen = loss_of(plain(), ratios=(1.5, 1.5, 0.5, 0.5), advantages=(1, -1, 1, -1))
    assert loss == pytest.approx(0.15)
    assert seen["loss/policy"] == pytest.approx(0.15)
    assert seen["clip_fraction"] == 1.0


def test_without_clip_the_loss_is_that_of_a2c():
    # ratio 1 and A = 2, -1: -(2 - 1) / 2
    loss, seen = loss_of(plain(), ratios=(1.0, 1.0), advantages=(2, -1), clip=None)
    assert loss == pytest.approx(-0.5)
    assert seen["clip_fraction"] == 0.0


def test_advantages_are_normalised_within_a_minibatch_with_the_sample_deviation(monkeypatch):
    network = make_network()
    config = PPOConfig(unroll=6, minibatch=12, epochs=1)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    batch = make_batch(network)
    samples, _ = update.prepare(batch)
    parts, evaluate = [], ppo.evaluate
    monkeypatch.setattr(ppo, "evaluate", lambda network, shard: parts.append(shard) or evaluate(network, shard))
    update(batch, UpdateContext(np.random.default_rng(3), 0.0))
    order = np.random.default_rng(3).permutation(24)
    assert len(parts) == 2
    for number, part in enumerate(parts):
        rows = order[12 * number : 12 * number + 12]
        chosen = samples.advantage.flatten()[rows]
        wanted = (chosen - chosen.mean()) / (chosen.std() + 1e-8)  # torch's std is the sample deviation
        torch.testing.assert_close(part.old.advantage[0], wanted)
        torch.testing.assert_close(part.old.log_prob[0], samples.log_prob.flatten()[rows])


def test_the_value_loss_is_half_the_squared_error():
    # errors 2 and 4: 0.5 · (4 + 16) / 2 = 5, weighted with 0.5
    loss, seen = loss_of(plain(value_coefficient=0.5), ratios=(1, 1), advantages=(0, 0), values=(2, 4), returns=(0, 0))
    assert seen["loss/value"] == pytest.approx(5)
    assert loss == pytest.approx(2.5)


def test_the_value_clip_takes_the_larger_error():
    # old 0, new 3, target 4, clip 1: bounded 1, errors (3-4)² = 1 and (1-4)² = 9 → 9
    # old 0, new 3, target 1, clip 1: bounded 1, errors 4 and 0 → 4;   0.5 · (9 + 4) / 2 = 3.25
    _, seen = loss_of(
        plain(value_coefficient=1.0, value_clip=1.0), ratios=(1, 1), advantages=(0, 0), values=(3, 3), returns=(4, 1)
    )
    assert seen["loss/value"] == pytest.approx(3.25)


def test_entropy_is_a_bonus():
    loss, seen = loss_of(plain(entropy_coefficient=0.1), advantages=(0,), entropy=(0.6,))
    assert loss == pytest.approx(-0.06)
    assert seen["entropy"] == pytest.approx(0.6)


def test_kl_is_the_k3_estimate():
    # ratio 2: 2 - 1 - ln 2
    _, seen = loss_of(plain(), ratios=(2.0,))
    assert seen["kl"] == pytest.approx(1 - math.log(2))


OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(2)


def make_network(**model):
    return build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,), **model), seed=5)


def make_batch(network, steps=6, columns=4, seed=0):
    """A batch as the store gives it, with behaviour values and log-probs of this very network."""
    rng = np.random.default_rng(seed)
    obs = torch.from_numpy(rng.normal(size=(steps + 1, columns, 3)).astype(np.float32))
    reset = torch.from_numpy(rng.random((steps + 1, columns)) < 0.3)
    terminated = torch.from_numpy(rng.random((steps, columns)) < 0.2)
    truncated = torch.from_numpy(rng.random((steps, columns)) < 0.2) & ~terminated
    reset[1:] = terminated | truncated
    state = network.initial_state(columns)
    ended = int((terminated | truncated).sum())
    action = torch.from_numpy(rng.integers(2, size=(steps, columns)))
    with torch.no_grad():
        output = network(obs[:-1], state, reset[:-1])
        log_prob = network.distribution.log_prob(output.params, action)
    return {
        "obs": obs,
        "reset": reset,
        "action": action,
        "reward": torch.from_numpy(rng.normal(size=(steps, columns)).astype(np.float32)),
        "terminated": terminated,
        "truncated": truncated,
        "final_obs": torch.from_numpy(rng.normal(size=(ended, 3)).astype(np.float32)),
        "final_state": {key: torch.zeros(ended, *leaf.shape[1:]) for key, leaf in state.items()},
        "log_prob": log_prob,
        "value": output.value,
        "valid": torch.ones(steps, columns, dtype=torch.bool),
        "state": state,
        "last_state": output.state,
    }


def test_the_true_successor_is_valued_where_an_episode_was_cut():
    network = make_network()
    config = PPOConfig(unroll=6, minibatch=24)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    batch = make_batch(network)
    assert batch["truncated"].any()
    last, final = update._bootstrap_values(batch)
    ended = (batch["terminated"] | batch["truncated"]).nonzero().tolist()
    cut = [row for row, (t, b) in enumerate(ended) if batch["truncated"][t, b]]
    with torch.no_grad():
        wanted = [network(batch["final_obs"][row][None, None], {}, None).value.item() for row in cut]
        wanted_last = network(batch["obs"][-1:], {}, None).value[0]
    np.testing.assert_allclose(final, wanted, rtol=1e-5)
    np.testing.assert_allclose(last, wanted_last, rtol=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_one_update_equals_an_independent_implementation(memory):
    """One epoch, one minibatch: the same loss written again with torch.distributions, torch's own clip and Adam."""
    sizes = {} if memory == "none" else {"memory_size": 8}
    network, twin = make_network(memory=memory, **sizes), make_network(memory=memory, **sizes)
    config = PPOConfig(unroll=6, minibatch=24, epochs=1, learning_rate=1e-2, value_coefficient=0.7, max_grad_norm=0.3)
    batch = make_batch(network)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    samples, _ = update.prepare(batch)
    update(batch, UpdateContext(np.random.default_rng(0), 0.0))

    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2, eps=1e-5)
    output = twin(batch["obs"][:-1], batch["state"], batch["reset"][:-1])
    policy = torch.distributions.Categorical(logits=output.params)
    ratio = (policy.log_prob(batch["action"]) - batch["log_prob"]).exp()
    advantage = (samples.advantage - samples.advantage.mean()) / (samples.advantage.std() + 1e-8)
    surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).mean()
    loss = -surrogate + 0.7 * 0.5 * (output.value - samples.returns).pow(2).mean() - 0.01 * policy.entropy().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.3)
    optimizer.step()
    for (name, ours), theirs in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


def test_the_first_ratio_is_one():
    network = make_network(normalise_observations=True)
    config = PPOConfig(unroll=6, minibatch=24, epochs=1)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    for _ in range(2):  # also after the statistics have moved
        metrics = update(make_batch(network), UpdateContext(np.random.default_rng(0), 0.0)).metrics
        assert metrics["kl"] == pytest.approx(0, abs=1e-6)
        assert metrics["clip_fraction"] == 0


def test_target_kl_ends_the_update_early():
    def steps(target):
        network = make_network()
        config = PPOConfig(unroll=6, minibatch=24, epochs=10, learning_rate=0.05, target_kl=target)
        update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
        return update(make_batch(network), UpdateContext(np.random.default_rng(0), 0.0)).metrics["gradient_steps"]

    assert steps(None) == 10
    assert 1 < steps(0.01) < 10


def test_annealing_is_linear_in_progress():
    network = make_network()
    config = PPOConfig(unroll=6, minibatch=24, learning_rate=0.4, anneal_learning_rate=True)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    metrics = update(make_batch(network), UpdateContext(np.random.default_rng(0), 0.75)).metrics
    assert metrics["learning_rate"] == pytest.approx(0.1)


def test_a_minibatch_that_does_not_divide_is_refused_with_the_remedy():
    with pytest.raises(
        Refused, match=r"algorithm.minibatch=100 doesn't divide the batch of 1024; choose a divisor of 1024 = 8"
    ):
        PPOConfig(minibatch=100).check_batch(8, is_recurrent=False)
    with pytest.raises(Refused, match="cuts through sequences of 128 steps"):
        PPOConfig(minibatch=64).check_batch(8, is_recurrent=True)
    PPOConfig(minibatch=256).check_batch(8, is_recurrent=True)


def test_sequence_minibatches_hold_whole_columns():
    network = make_network(memory="gru", memory_size=8)
    config = PPOConfig(unroll=6, minibatch=12)
    update = PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)
    batch = make_batch(network)
    samples, _ = update.prepare(batch)
    parts = list(minibatches(update.whole(batch, samples), 12, np.random.default_rng(3)))
    order = np.random.default_rng(3).permutation(4)
    assert len(parts) == 2
    obs, state, reset, action, old = parts[0]
    torch.testing.assert_close(obs, batch["obs"][:-1][:, order[:2]])
    torch.testing.assert_close(reset, batch["reset"][:-1][:, order[:2]])
    torch.testing.assert_close(action, batch["action"][:, order[:2]])
    torch.testing.assert_close(old.log_prob, batch["log_prob"][:, order[:2]])
    assert next(iter(state.values())).shape[0] == 2


def make_update(network, **changes):
    config = PPOConfig(**{"unroll": 6, "minibatch": 24, "epochs": 1} | changes)
    return PPOUpdate(network, build_optimizers(network, config.optimizer_of), config)


@pytest.mark.parametrize("memory", ["none", "gru"])
def test_the_gradient_of_four_shards_is_that_of_one(memory):
    gradients, metrics = [], []
    for shards in (1, 4):
        network = make_network(memory=memory, **({} if memory == "none" else {"memory_size": 8}))
        seen = make_update(network, shards=shards, value_clip=0.1)(
            make_batch(network), UpdateContext(np.random.default_rng(0), 0.0)
        )
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
        metrics.append(seen.metrics)
    assert gradients[0].abs().max() > 0.01
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-5, atol=1e-7)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-4, abs=1e-6)


def test_shards_hold_all_columns_in_order():
    network = make_network(memory="gru", memory_size=8)
    update, batch = make_update(network), make_batch(network)
    whole = update.whole(batch, update.prepare(batch)[0])
    shards = whole.shards(2)
    for field in ("obs", "reset", "action"):
        assert torch.equal(torch.cat([getattr(shard, field) for shard in shards], 1), getattr(whole, field))
    assert torch.equal(torch.cat([shard.old.returns for shard in shards], 1), whole.old.returns)
    for name, leaf in whole.state.items():
        assert torch.equal(torch.cat([shard.state[name] for shard in shards]), leaf)
    assert len(whole.shards(8)) == 4, "a shard without a column is left out"


def test_shards_that_do_not_divide_a_minibatch_are_refused():
    with pytest.raises(Refused, match=r"algorithm.shards=3 doesn't divide the 256 .* choose a divisor of 256"):
        PPOConfig(shards=3).check_batch(8, is_recurrent=False)
    with pytest.raises(Refused, match=r"algorithm.shards=4 doesn't divide the 2 "):
        PPOConfig(shards=4).check_batch(8, is_recurrent=True)
    PPOConfig(shards=2).check_batch(8, is_recurrent=True)


def test_normalised_returns_are_learned_in_their_own_units():
    # Every step terminates, so the returns are the rewards: mean 100, deviation 20. Values of 0 then mean 100.
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=5, with_return_statistics=True)
    update = make_update(network, normalise_returns=True, learning_rate=1e-6, value_coefficient=1.0)
    batch = make_batch(network)
    batch["terminated"][:], batch["truncated"][:] = True, False
    batch["reward"][:] = torch.tensor([80.0, 120.0, 80.0, 120.0])
    update(batch, UpdateContext(np.random.default_rng(0), 0.0))
    statistics = network.return_statistics
    assert (float(statistics.mean), float(statistics.var)) == pytest.approx((100, 400))
    network.value.weight.data.zero_()
    network.value.bias.data.zero_()
    batch["value"] = torch.zeros(6, 4)
    samples, _ = update.prepare(batch)
    torch.testing.assert_close(samples.advantage, batch["reward"] - 100)
    # all targets are one deviation away: 0.5 · 1² = 0.5
    seen = update(batch, UpdateContext(np.random.default_rng(0), 0.0)).metrics
    assert seen["loss/value"] == pytest.approx(0.5, rel=1e-4)


def test_a_bootstrap_of_normalised_returns_is_in_units_of_the_rewards():
    # Nothing ends; values of 0 mean 10: with gamma 0.5 and rewards of 5 the returns are 10 everywhere, all errors 0.
    network = build_network(OBSERVATIONS, ACTIONS, ModelConfig(hidden=(8,)), seed=5, with_return_statistics=True)
    network.value.weight.data.zero_()
    network.value.bias.data.zero_()
    network.return_statistics.mean.fill_(10)
    network.return_statistics.var.fill_(4)
    batch = make_batch(network)
    batch["terminated"][:], batch["truncated"][:], batch["reward"][:] = False, False, 5.0
    batch["value"] = torch.zeros(6, 4)
    samples, _ = make_update(network, normalise_returns=True, gamma=0.5).prepare(batch)
    torch.testing.assert_close(samples.returns, torch.full((6, 4), 10.0))
    torch.testing.assert_close(samples.advantage, torch.zeros(6, 4))


def test_images_are_picked_row_by_row_whatever_their_layout() -> None:
    rows = torch.arange(6 * 3 * 4 * 5, dtype=torch.uint8).view(6, 3, 4, 5)
    order = torch.tensor([4, 0, 5])
    for laid_out in (rows, rows.contiguous(memory_format=torch.channels_last)):
        picked = pick_rows(laid_out, order)
        assert torch.equal(picked, rows[order])
        assert picked.stride() == laid_out[:3].stride()
