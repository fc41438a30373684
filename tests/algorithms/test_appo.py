"""APPO without lag is PPO; with lag its update is checked against one environment at a time, and what it leaves out."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rollmill import nested
from rollmill.algorithms import appo, ppo
from rollmill.algorithms.appo import APPOConfig, APPOUpdate, adapted_rate
from rollmill.algorithms.recipe import UpdateContext
from rollmill.algorithms.returns import gae, vtrace
from rollmill.errors import Refused
from rollmill.learners.optimizer import build_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.weights import in_units_of_rewards, load_weights, weights_of

OBSERVATIONS, ACTIONS = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Discrete(3)
IMAGES = gym.spaces.Box(0, 255, (2, 12, 12), np.uint8)
T, B = 6, 4
MEMORIES = pytest.mark.parametrize("memory", ["none", "gru", "lstm"])

# Column 0 never ends; 1 is cut inside and then terminates; 2 terminates and is cut at the last row; 3 is cut beside 1
# and terminates at the last row.
TRUNCATED, TERMINATED = [(2, 1), (2, 3), (5, 2)], [(2, 2), (4, 1), (5, 3)]


@pytest.fixture(autouse=True)
def one_thread():
    """Networks this small only wait for a second one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def flags(places):
    mask = torch.zeros(T, B, dtype=torch.bool)
    for place in places:
        mask[place] = True
    return mask


def make_network(recipe=appo.RECIPE, space=OBSERVATIONS, memory="none", **model):
    sizes = {} if memory == "none" else {"memory_size": 5}
    config = ModelConfig(hidden=(8,), memory=memory, **sizes, **model)
    network = recipe.network(space, ACTIONS, config, seed=5, **recipe.config().network_options)
    network.policy.weight.data *= 100  # it starts near zero, where no decision depends on anything
    return network


def make_batch(network, space=OBSERVATIONS, lag=(0, 0, 0, 0), staleness=0.0, seed=0):
    """A batch as the store gives it; `staleness` is by how much the behaviour's log-probabilities are off."""
    rng = np.random.default_rng(seed)

    def observations(*leading):
        if space is IMAGES:
            return torch.from_numpy(rng.integers(256, size=(*leading, *IMAGES.shape), dtype=np.uint8))
        return torch.from_numpy(rng.normal(size=(*leading, 3)).astype(np.float32))

    terminated, truncated = flags(TERMINATED), flags(TRUNCATED)
    ended = terminated | truncated
    obs, action = observations(T + 1, B), torch.from_numpy(rng.integers(3, size=(T, B)))
    reset = torch.cat([torch.tensor([[False, True, False, False]]), ended])

    def states(rows):
        return {
            name: torch.from_numpy(rng.normal(size=(rows, *leaf.shape[1:])).astype(np.float32))
            for name, leaf in network.initial_state(rows).items()
        }

    state = states(B)
    with torch.no_grad():
        output = network(obs[:-1], state, reset[:-1])
        log_prob = network.distribution.log_prob(output.params, action)
    noise = torch.from_numpy(rng.normal(size=(T, B)).astype(np.float32))
    return {
        "obs": obs,
        "reset": reset,
        "action": action,
        "reward": torch.from_numpy(rng.normal(size=(T, B)).astype(np.float32)),
        "terminated": terminated,
        "truncated": truncated,
        "final_obs": observations(int(ended.sum())),
        "final_state": states(int(ended.sum())),
        "log_prob": log_prob + staleness * noise,
        "value": output.value + staleness * noise.flip(0),
        "valid": torch.ones(T, B, dtype=torch.bool),
        "state": state,
        "last_state": output.state,
        "lag": torch.tensor(lag),
    }


def make_update(network, recipe=appo.RECIPE, **changes):
    config = recipe.config(**{"unroll": T, "minibatch": T * B, "epochs": 1} | changes)
    return recipe.update(network, build_optimizers(network, config.optimizer_of), config)


def context(progress=0.0):
    return UpdateContext(np.random.default_rng(5), progress)


def bytes_of(network):
    return {name: array.tobytes() for name, array in weights_of(network).items()}


def without_columns(batch, kept):
    """The batch that the store would have given without the other columns."""
    ended = batch["terminated"] | batch["truncated"]
    rows = torch.tensor([b in kept for _, b in ended.nonzero().tolist()])
    chosen = {}
    for field, tree in batch.items():
        if field in ("final_obs", "final_state"):
            chosen[field] = nested.index(tree, rows)
        elif field in ("state", "last_state", "lag"):
            chosen[field] = nested.index(tree, kept)
        else:
            chosen[field] = tree[:, kept]
    return chosen


@MEMORIES
def test_without_lag_the_gradient_is_ppos(memory):
    gradients, metrics = [], []
    for recipe in (ppo.RECIPE, appo.RECIPE):
        network = make_network(recipe, memory=memory)
        batch = make_batch(network)
        with torch.no_grad():  # PPO continues from the state that the actor had behind the unroll
            batch["last_state"] = network(batch["obs"][:-1], batch["state"], batch["reset"][:-1]).state
        update = make_update(network, recipe, value_clip=0.1)
        metrics.append(update(batch, context()).metrics)
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert gradients[0].abs().max() > 0.01
    torch.testing.assert_close(gradients[1], gradients[0], rtol=0, atol=1e-6)
    for name in ("loss/value", "entropy", "explained_variance", "grad_norm"):
        assert metrics[1][name] == pytest.approx(metrics[0][name], abs=1e-5)
    assert metrics[1]["rho_mean"] == pytest.approx(1)
    assert metrics[1]["masked_fraction"] == 0


@torch.no_grad()
def played_alone(network, batch):
    """Log-probabilities, values of the T+1 rows and of the true successors, one environment and step at a time."""
    log_prob, value, following = torch.zeros(T, B), torch.zeros(T + 1, B), torch.zeros(T, B)
    step_over = torch.zeros(1, 1, dtype=torch.bool)
    for b in range(B):
        state = {name: leaf[b : b + 1] for name, leaf in batch["state"].items()}
        for t in range(T + 1):
            if batch["reset"][t, b]:
                state = {name: torch.zeros_like(leaf) for name, leaf in state.items()}
            output = network(batch["obs"][t : t + 1, b : b + 1], state, step_over)
            state, value[t, b] = output.state, output.value[0, 0]
            if t < T:
                log_prob[t, b] = network.distribution.log_prob(output.params[0, 0], batch["action"][t, b])
    following[:] = value[1:]
    for row, (t, b) in enumerate((batch["terminated"] | batch["truncated"]).nonzero().tolist()):
        state = {name: leaf[row : row + 1] for name, leaf in batch["final_state"].items()}
        following[t, b] = network(batch["final_obs"][row][None, None], state, step_over).value[0, 0]
    return log_prob, value[:-1], following


@MEMORIES
@pytest.mark.parametrize("has_vtrace", [True, False])
def test_targets_and_advantages_are_those_of_every_environment_played_alone(memory, has_vtrace):
    network = make_network(memory=memory)
    batch = make_batch(network, staleness=0.5)
    update = make_update(network, vtrace=has_vtrace, normalise_advantage=False, gamma=0.9, gae_lambda=0.8)
    found, targets = update.evaluate(update._fresh(batch), batch)

    log_prob, value, following = played_alone(network, batch)
    torch.testing.assert_close(found.log_prob, log_prob)
    torch.testing.assert_close(targets.predicted, value)
    numbers = [x.numpy() for x in (batch["reward"], value, following, batch["terminated"], batch["truncated"])]
    if has_vtrace:
        returns, advantage = vtrace(*numbers, (log_prob - batch["log_prob"]).numpy(), 0.9, 0.8)
    else:
        advantage = gae(*numbers, 0.9, 0.8)
        returns = advantage + value.numpy()
    np.testing.assert_allclose(found.old.returns, returns, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.old.advantage, advantage, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.old.log_prob, batch["log_prob"])


@pytest.mark.parametrize("case", ["rows", "gru", "images", "images with memory"])
def test_a_minibatch_of_some_columns_says_the_same_of_them_as_the_whole(case):
    space = IMAGES if case.startswith("images") else OBSERVATIONS
    network = make_network(space=space, memory="gru" if case in ("gru", "images with memory") else "none")
    batch = make_batch(network, space, staleness=0.5)
    update = make_update(network, minibatch=2 * T, normalise_advantage=False)
    whole = update._fresh(batch)
    at_once, all_targets = update.evaluate(whole, batch)
    order = np.random.default_rng(5).permutation(B)
    parts = list(update._unrolls(whole, torch.from_numpy(order)))
    assert len(parts) == 2
    for number, part in enumerate(parts):
        columns = order[2 * number : 2 * number + 2]
        found, targets = update.evaluate(part, batch)
        for name in ("log_prob", "value"):
            torch.testing.assert_close(getattr(found, name), getattr(at_once, name)[:, columns])
        for name in ("returns", "predicted"):
            torch.testing.assert_close(getattr(targets, name), getattr(all_targets, name)[:, columns])
        torch.testing.assert_close(found.old.advantage, at_once.old.advantage[:, columns])


def test_one_minibatch_is_the_batch_itself_and_not_a_copy():
    network = make_network()
    batch = make_batch(network)
    update = make_update(network)
    (part,) = update._unrolls(update._fresh(batch), torch.randperm(B))
    assert part.obs.data_ptr() == batch["obs"].data_ptr()


@MEMORIES
@pytest.mark.parametrize("minibatch", [T, 2 * T])
def test_unrolls_that_are_too_old_leave_no_trace(memory, minibatch):
    settings = {"max_lag": 3, "minibatch": minibatch, "epochs": 2, "normalise_returns": True, "adaptive_kl": 0.01}
    lag, kept = (3, 4, 0, 20), [0, 2]
    networks, metrics = [], []
    for is_cut in (False, True):
        network = make_network(memory=memory, normalise_observations=True)
        batch = make_batch(network, lag=lag, staleness=0.1)
        if is_cut:
            batch = without_columns(batch, kept)
        else:
            batch["reward"][:, [1, 3]] = 1e6
            batch["obs"][:, [1, 3]] = 1e6
        metrics.append(make_update(network, **settings)(batch, context()).metrics)
        networks.append(network)
    assert bytes_of(networks[0]) == bytes_of(networks[1])
    assert metrics[0]["masked_fraction"] == 0.5
    assert metrics[1]["masked_fraction"] == 0
    assert {**metrics[0], "masked_fraction": 0} == metrics[1]


def test_a_batch_that_is_too_old_altogether_changes_nothing_and_says_so():
    network = make_network(normalise_observations=True)
    before = bytes_of(network)
    update = make_update(network, max_lag=3, adaptive_kl=0.01, normalise_returns=True)
    seen = update(make_batch(network, lag=(4, 5, 6, 7)), context()).metrics
    assert bytes_of(network) == before
    assert (seen["gradient_steps"], seen["masked_fraction"]) == (0, 1)
    assert update.capture()[1]["learning_rate"] == APPOConfig().learning_rate
    assert np.isfinite(list(seen.values())).all()


def test_an_adaptive_rate_rises_below_half_of_the_target_falls_beyond_twice_it_and_stays_within_bounds():
    assert adapted_rate(1e-3, 0.0049, target=0.01) == pytest.approx(1.5e-3)
    assert adapted_rate(1e-3, 0.0051, target=0.01) == 1e-3
    assert adapted_rate(1e-3, 0.0199, target=0.01) == 1e-3
    assert adapted_rate(1e-3, 0.0201, target=0.01) == pytest.approx(1e-3 / 1.5)
    assert adapted_rate(9e-3, 0.0, target=0.01) == 1e-2
    assert adapted_rate(1.2e-6, 1.0, target=0.01) == 1e-6


def test_the_rate_follows_how_far_the_update_moved_the_policy():
    # without lag the ratio is 1 before the only step, so what is measured can't be that
    for first, wanted in ((1e-6, 1.5e-6), (9e-3, 6e-3)):
        network = make_network()
        batch = make_batch(network)
        before = deepcopy(network)
        update = make_update(network, learning_rate=first, adaptive_kl=1e-6)
        seen = update(batch, context()).metrics
        assert seen["learning_rate"] == first
        assert update.capture()[1]["learning_rate"] == pytest.approx(wanted)
        with torch.no_grad():
            old, new = (
                n.distribution.log_prob(n(batch["obs"][:-1], {}, None).params, batch["action"])
                for n in (before, network)
            )
        assert seen["kl_after"] == pytest.approx(float(((new - old).expm1() - (new - old)).mean()), rel=0.05)


def test_an_adaptive_rate_is_restored():
    config = APPOConfig(unroll=T, minibatch=T * B, learning_rate=1e-4, adaptive_kl=0.01)
    runs = []
    for is_restored in (False, True):
        network = make_network()
        optimizer = build_optimizers(network, config.optimizer_of)
        update = APPOUpdate(network, optimizer, config)
        update(make_batch(network), context())
        if is_restored:
            kept = update.capture()
            update = APPOUpdate(network, optimizer, config)
            update.restore(*kept)
        seen = update(make_batch(network, seed=1), context()).metrics
        assert seen["learning_rate"] == pytest.approx(1.5e-4)
        runs.append(bytes_of(network))
    assert runs[0] == runs[1]


def test_values_are_learnt_in_units_of_the_returns():
    # Every step terminates, so with ratios of 1 the targets are the rewards themselves: mean 100, deviation 20.
    network = make_network()
    update = make_update(network, normalise_returns=True, learning_rate=1e-6, value_coefficient=1.0, epochs=2)
    batch = make_batch(network)
    batch["terminated"][:], batch["truncated"][:] = True, False
    batch["reward"][:] = torch.tensor([80.0, 120.0, 80.0, 120.0])
    update(batch, context())
    statistics = network.return_statistics
    assert float(statistics.mean) == pytest.approx(100)
    assert float(statistics.var) == pytest.approx(400)
    assert float(statistics.count) == T * B
    # A value head that says 0 now means 100; all targets are one deviation away: 0.5 · 1² = 0.5.
    network.value.weight.data.zero_()
    network.value.bias.data.zero_()
    seen = update(batch, context()).metrics
    assert seen["loss/value"] == pytest.approx(0.5, rel=1e-4)
    _, targets = update.evaluate(update._fresh(batch), batch)
    torch.testing.assert_close(targets.predicted, torch.full((T, B), 100.0), rtol=1e-4, atol=0)


def test_a_bootstrap_is_in_units_of_the_rewards():
    # Nothing ends and the value head says 0, which statistics of mean 10 make 10: with gamma 0.5 and rewards of 5 the
    # returns are 10 everywhere, all errors 0.
    network = make_network()
    network.value.weight.data.zero_()
    network.value.bias.data.zero_()
    network.return_statistics.mean.fill_(10)
    network.return_statistics.var.fill_(4)
    batch = make_batch(network)
    batch["terminated"][:], batch["reward"][:] = False, 5.0
    update = make_update(network, normalise_returns=True, normalise_advantage=False, gamma=0.5)
    found, targets = update.evaluate(update._fresh(batch), batch)
    torch.testing.assert_close(targets.returns, torch.full((T, B), 10.0))
    torch.testing.assert_close(found.old.returns, torch.zeros(T, B))
    torch.testing.assert_close(found.old.advantage, torch.zeros(T, B))


def test_observation_statistics_move_by_the_rows_that_were_decided_on():
    network = make_network(normalise_observations=True)
    batch = make_batch(network)
    make_update(network)(batch, context())
    decided = batch["obs"][:-1].flatten(0, 1).double()  # the last row is the first of the next unroll
    torch.testing.assert_close(network.normaliser.statistics.mean, decided.mean(0))
    torch.testing.assert_close(network.normaliser.statistics.var, decided.var(0, correction=0))


def test_an_annealed_rate_is_the_rate_of_the_steps():
    annealed, fixed = {"anneal_learning_rate": True, "learning_rate": 1e-3}, {"learning_rate": 2.5e-4}
    changed = []
    for settings, progress in ((annealed, 0.75), (fixed, 0.0)):
        network = make_network()
        seen = make_update(network, **settings)(make_batch(network), context(progress)).metrics
        assert seen["learning_rate"] == 2.5e-4
        changed.append(bytes_of(network))
    assert changed[0] == changed[1]


def test_only_the_networks_of_appo_keep_statistics_of_returns():
    assert "return_statistics.mean" in weights_of(make_network())
    assert not any("return" in name for name in weights_of(make_network(ppo.RECIPE)))


def test_stale_ratios_show_in_the_metrics():
    # log-ratios: half of the steps +1, half -1, so rho = min(1, e) = 1 and 1/e
    network = make_network()
    batch = make_batch(network)
    batch["log_prob"][:3] -= 1
    batch["log_prob"][3:] += 1
    seen = make_update(network)(batch, context()).metrics
    assert seen["rho_mean"] == pytest.approx((1 + np.exp(-1)) / 2, rel=1e-4)
    assert seen["rho_clipped_fraction"] == pytest.approx(0.5)


@pytest.mark.parametrize("minibatch", [48, 16, 32 * 3])
def test_a_minibatch_that_cuts_through_unrolls_is_refused(minibatch):
    config = APPOConfig(unroll=32, minibatch=minibatch)
    with pytest.raises(Refused, match=rf"algorithm.minibatch={minibatch} .* choose 32 times a divisor of 8"):
        config.check_batch(8, is_recurrent=False)
    APPOConfig(unroll=32, minibatch=64).check_batch(8, is_recurrent=False)
    APPOConfig(unroll=32, minibatch=16, epochs=2).check_batch(8, is_recurrent=False)
    with pytest.raises(Refused, match=r"algorithm\.minibatch=16 cuts through sequences of 32 steps"):
        APPOConfig(unroll=32, minibatch=16, epochs=2).check_batch(8, is_recurrent=True)


def test_settings_that_contradict_each_other_are_refused():
    with pytest.raises(ValidationError, match="both move the learning rate"):
        APPOConfig(adaptive_kl=0.01, anneal_learning_rate=True)
    with pytest.raises(ValidationError, match=r"not read while algorithm\.vtrace=false"):
        APPOConfig(vtrace=False, rho_bar=2.0)


def seen_by(steps, loss, now, *rest):
    """The loss, which leaves what it was given in `steps`."""
    steps.append((*now.old, now.log_prob.detach(), now.value.detach()))
    return loss(now, *rest)


@MEMORIES
def test_the_gradient_of_two_shards_is_that_of_one(memory):
    gradients, metrics = [], []
    for shards in (1, 2):
        network = make_network(memory=memory, normalise_observations=True)
        update = make_update(network, shards=shards, normalise_returns=True, epochs=2, learning_rate=1e-6)
        metrics.append(update(make_batch(network, staleness=0.3), context()).metrics)
        gradients.append(torch.cat([p.grad.flatten() for p in network.parameters()]))
    assert gradients[0].abs().max() > 0.01
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-6)
    assert metrics[1] == pytest.approx(metrics[0], rel=1e-3, abs=1e-5)


@pytest.mark.parametrize("memory", ["none", "gru"])
@pytest.mark.parametrize("is_normalised", [False, True])
def test_all_passes_learn_from_the_targets_before_the_first_step(memory, is_normalised, monkeypatch):
    """As in PPO: returns don't run away from the values that chase them within one update."""
    network = make_network(memory=memory)
    if is_normalised:
        network.return_statistics.mean.fill_(3)
        network.return_statistics.var.fill_(4)
    batch = make_batch(network, staleness=0.5)
    batch["log_prob"] += torch.arange(T * B).view(T, B) * 1e-3  # by which a step is known
    settings = {"minibatch": 2 * T, "epochs": 3, "normalise_advantage": False, "normalise_returns": is_normalised}
    update = make_update(network, learning_rate=0.1, **settings)  # after a step the network has other values
    before, _ = update.evaluate(update._fresh(batch), batch)
    steps = []
    monkeypatch.setattr(ppo, "ppo_loss", partial(seen_by, steps, ppo.ppo_loss))
    update(batch, UpdateContext(np.random.default_rng(4), 0.0))
    assert len(steps) == 6
    passes = [
        [torch.cat([field.flatten() for field in fields]) for fields in zip(*steps[first : first + 2], strict=True)]
        for first in (0, 2, 4)
    ]
    assert len({tuple(one[0].tolist()) for one in passes}) == 3, "each pass has an order of its own"
    order = batch["log_prob"].flatten().argsort()
    for one in passes:
        for known, seen in zip(before.old, one, strict=False):  # what the loss compares with; the outputs do move
            torch.testing.assert_close(seen[one[0].argsort()], known.flatten()[order], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(passes[2][-1].sort().values, before.value.flatten().sort().values, atol=0.01)


def test_what_the_values_mean_does_not_change_with_the_statistics():
    """Otherwise targets, which contain values, and their deviation drive each other up without bound."""
    network = make_network()
    network.observe_returns(torch.tensor([3.0, -1.0, 2.5]))
    obs = torch.randn(1, 5, *OBSERVATIONS.shape)
    before = network.return_statistics.undo(network(obs, {}, None).value)
    network.observe_returns(torch.tensor([300.0, -100.0, 250.0, 7.0]))
    assert network.return_statistics.deviation > 50
    torch.testing.assert_close(
        network.return_statistics.undo(network(obs, {}, None).value), before, rtol=1e-4, atol=1e-3
    )


def test_weights_from_appo_mean_the_same_in_ppo_and_in_another_appo():
    """`--from` between the two: the units of the value head go into its own weights."""
    network, obs = make_network(), torch.randn(1, 5, *OBSERVATIONS.shape)
    network.observe_returns(torch.tensor([300.0, -100.0, 250.0, 7.0]))
    expected = network.return_statistics.undo(network(obs, {}, None).value)
    for recipe in (ppo.RECIPE, appo.RECIPE):
        other = make_network(recipe)
        load_weights(other, in_units_of_rewards(weights_of(network), weights_of(other)))
        torch.testing.assert_close(other(obs, {}, None).value, expected, rtol=1e-4, atol=1e-3)
    assert float(other.return_statistics.count) == 0, "its own statistics begin anew"
    plain = make_network(ppo.RECIPE)
    back = make_network()
    load_weights(back, in_units_of_rewards(weights_of(plain), weights_of(back)))
    torch.testing.assert_close(back(obs, {}, None).value, plain(obs, {}, None).value, rtol=0, atol=0)
