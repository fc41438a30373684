"""The optimiser over one flat buffer does what torch's own do over many tensors."""

from __future__ import annotations

from itertools import pairwise

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rollmill.algorithms.recipe import OptimizerSettings
from rollmill.learners.optimizer import FlatOptimizer, build_optimizers, optimizer_arrays, restore_optimizers
from rollmill.models.config import ModelConfig
from rollmill.models.network import Model, build_network

RATE, EPSILON, STEPS = 1e-2, 1e-5, 6
SPACES = {
    "mlp": gym.spaces.Box(-1, 1, (3,), np.float32),
    "cnn": gym.spaces.Box(0, 255, (12, 12, 3), np.uint8),  # its convolutions lie in memory channels-last
}


def make_network(kind):
    model = ModelConfig(hidden=(8,)) if kind == "mlp" else ModelConfig(torso="small_cnn", features=8)
    return build_network(SPACES[kind], gym.spaces.Discrete(2), model, seed=5)


def loss_of(network, kind, number):
    """A different loss for each number; its scale swings, so that the gradient's norm passes 1 in both directions."""
    generator = torch.Generator().manual_seed(number)
    shape = (1, 16, *SPACES[kind].shape)
    obs = (
        torch.randn(shape, generator=generator)
        if kind == "mlp"
        else torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    )
    output = network(obs, {}, None)
    target = torch.randn(1, 16, generator=generator)
    fit = (output.value - target).square().mean() + (output.params[..., 0] - target).square().mean()
    return fit * (10 if number % 2 else 0.05)


def theirs(optimizer, network, max_norm, loss):
    """Zero, back-propagate, clip and step with torch's own means; the norm before clipping."""
    optimizer.zero_grad()
    loss.backward()
    norm = nn.utils.clip_grad_norm_(network.parameters(), float("inf") if max_norm is None else max_norm)
    optimizer.step()
    return norm


def torch_optimizer(kind, network):
    if kind == "adam":
        return torch.optim.Adam(network.parameters(), lr=RATE, betas=(0.9, 0.999), eps=EPSILON)
    return torch.optim.RMSprop(network.parameters(), lr=RATE, alpha=0.99, eps=EPSILON)


def step(optimizer, loss):
    optimizer.accumulate(loss)
    return optimizer.apply()


def assert_equal(network, twin):
    """A step is about 0.01 in each weight: a ten-thousandth of that is rounding."""
    for (name, p), q in zip(network.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6, msg=lambda m, n=name: f"{n}: {m}")


both_rules = pytest.mark.parametrize("rule", ["adam", "rmsprop"])
both_networks = pytest.mark.parametrize("kind", ["mlp", "cnn"])


@both_rules
@both_networks
@pytest.mark.parametrize(("max_norm", "clips"), [(None, "never"), (1e6, "never"), (1.0, "at times"), (0.01, "always")])
def test_several_steps_equal_torchs_with_its_clipping(rule, kind, max_norm, clips):
    network, twin = make_network(kind), make_network(kind)
    ours = FlatOptimizer(list(network.parameters()), OptimizerSettings(rule, RATE, EPSILON, max_norm))
    reference = torch_optimizer(rule, twin)
    norms = []
    for number in range(STEPS):
        norm = step(ours, loss_of(network, kind, number))
        norms.append(norm.item())
        torch.testing.assert_close(
            norm, theirs(reference, twin, max_norm, loss_of(twin, kind, number)), rtol=1e-4, atol=0
        )
        assert_equal(network, twin)
    clipped = {max_norm is not None and norm > max_norm for norm in norms}
    assert clipped == {"never": {False}, "at times": {False, True}, "always": {True}}[clips]


@both_rules
def test_clipping_changes_the_step(rule):
    """The control of the test above: with bounds of 0.01 and of none the networks part."""
    moved = []
    for max_norm in (None, 0.01):
        network = make_network("mlp")
        optimizer = FlatOptimizer(list(network.parameters()), OptimizerSettings(rule, RATE, EPSILON, max_norm))
        for number in range(2):
            step(optimizer, loss_of(network, "mlp", number))
        moved.append(nn.utils.parameters_to_vector(network.parameters()))
    assert (moved[0] - moved[1]).abs().max() > 1e-3


@both_rules
def test_a_new_rate_holds_for_the_steps_that_follow(rule):
    network, twin = make_network("mlp"), make_network("mlp")
    ours = FlatOptimizer(list(network.parameters()), OptimizerSettings(rule, RATE, EPSILON, 1.0))
    reference = torch_optimizer(rule, twin)
    for number, rate in enumerate((RATE, RATE / 2, RATE / 4, 0.0)):
        before = nn.utils.parameters_to_vector(network.parameters()).clone()
        ours.set_rate(rate)
        reference.param_groups[0]["lr"] = rate
        step(ours, loss_of(network, "mlp", number))
        theirs(reference, twin, 1.0, loss_of(twin, "mlp", number))
        assert_equal(network, twin)
        assert torch.equal(before, nn.utils.parameters_to_vector(network.parameters())) == (rate == 0)


@both_rules
@both_networks
@pytest.mark.parametrize("max_norm", [None, 1.0])
def test_accumulated_losses_make_the_step_of_their_sum(rule, kind, max_norm):
    settings = OptimizerSettings(rule, RATE, EPSILON, max_norm)
    network, twin = make_network(kind), make_network(kind)
    ours, whole = FlatOptimizer(list(network.parameters()), settings), FlatOptimizer(list(twin.parameters()), settings)
    for update in range(3):  # the second finds no gradient of the first
        numbers = range(3 * update, 3 * update + 3)
        for number in numbers:
            ours.accumulate(loss_of(network, kind, number))
        norm = ours.apply()
        total = step(whole, sum(loss_of(twin, kind, number) for number in numbers))
        torch.testing.assert_close(norm, total, rtol=1e-4, atol=0)
        assert_equal(network, twin)


@pytest.mark.parametrize("shards", [2, 3, 4, 7])
def test_shards_are_summed_in_a_fixed_tree(shards):
    # subtrees of equal size are joined first: ((0 + 1) + (2 + 3)) + ((4 + 5) + 6)
    network = make_network("mlp")
    alone = []
    for number in range(shards):
        optimizer = FlatOptimizer(list(network.parameters()), OptimizerSettings("adam", 0.0, EPSILON, None))
        step(optimizer, loss_of(network, "mlp", number))
        alone.append(optimizer._gradient.clone())
    tree = [(1, gradient) for gradient in alone]
    while len(tree) > 1:
        pairs = [tree[i : i + 2] for i in range(0, len(tree), 2)]
        tree = [(sum(n for n, _ in pair), pair[0][1] + pair[1][1]) if len(pair) == 2 else pair[0] for pair in pairs]
    for _ in range(2):  # the second finds no gradient of the first
        for number in range(shards):
            optimizer.accumulate(loss_of(network, "mlp", number) / 2, number)
            optimizer.accumulate(loss_of(network, "mlp", number) / 2, number)
        optimizer.apply()
        assert torch.equal(optimizer._gradient, tree[0][1])


@both_networks
def test_laying_the_parameters_out_changes_no_number(kind):
    network, twin = make_network(kind), make_network(kind)
    FlatOptimizer(list(network.parameters()), OptimizerSettings("adam", RATE, EPSILON, None))
    for p, q in zip(network.parameters(), twin.parameters(), strict=True):
        assert torch.equal(p, q)
        assert p.stride() == q.stride()  # channels-last weights stay so
        assert p.grad.stride() == p.stride()
    if kind == "cnn":
        convolution = network.encoder.torso.convolutions[0].weight
        assert convolution.is_contiguous(memory_format=torch.channels_last)
        assert not convolution.is_contiguous()


@both_rules
@both_networks
def test_parameters_stay_views_of_one_buffer_when_weights_are_loaded(rule, kind):
    network, twin = make_network(kind), make_network(kind)
    ours = FlatOptimizer(list(network.parameters()), OptimizerSettings(rule, RATE, EPSILON, 1.0))
    reference = torch_optimizer(rule, twin)
    places = places_of(network)
    step(ours, loss_of(network, kind, 0))
    theirs(reference, twin, 1.0, loss_of(twin, kind, 0))

    other = make_network(kind)
    for parameter in other.parameters():
        parameter.data += 0.1
    for each in (network, twin):
        each.load_state_dict(other.state_dict())
    assert places_of(network) == places
    assert_equal(network, other)
    assert not any(p.data_ptr() == q.data_ptr() for p, q in zip(network.parameters(), other.parameters(), strict=True))

    for number in (1, 2):  # and the next steps move the loaded weights
        step(ours, loss_of(network, kind, number))
        theirs(reference, twin, 1.0, loss_of(twin, kind, number))
    assert_equal(network, twin)


def places_of(network):
    """Where the parameters lie; they fill one buffer side by side."""
    parameters = list(network.parameters())
    storage = parameters[0].untyped_storage()
    assert all(p.untyped_storage().data_ptr() == storage.data_ptr() for p in parameters)
    places = sorted((p.storage_offset(), p.numel()) for p in parameters)
    assert all(offset + count == following for (offset, count), (following, _) in pairwise(places))
    assert sum(count for _, count in places) * parameters[0].element_size() == storage.nbytes()
    return [p.data_ptr() for p in parameters]


@both_rules
def test_a_frozen_parameter_is_left_where_it_is(rule):
    network = ActorAndCritic()
    network.actor.weight.requires_grad_(False)
    before, place = network.actor.weight.clone(), network.actor.weight.data_ptr()
    optimizers = build_optimizers(network, lambda group: OptimizerSettings(rule, RATE, EPSILON, None))
    moving = network.actor.bias.detach().clone()
    step(optimizers["actor"], network.actor(torch.ones(2, 3)).mean())
    assert torch.equal(network.actor.weight, before)
    assert network.actor.weight.data_ptr() == place
    assert not torch.equal(network.actor.bias, moving)


class ActorAndCritic(Model):
    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.actor, self.critic = nn.Linear(3, 2), nn.Linear(5, 1)

    def parameter_groups(self):
        parts = {"actor": self.actor, "critic": self.critic}
        return {name: [p for p in part.parameters() if p.requires_grad] for name, part in parts.items()}

    def losses(self, number):
        """The critic's fit, and the actor's loss, which runs through the critic."""
        obs = torch.randn(6, 3, generator=torch.Generator().manual_seed(number))
        action = self.actor(obs)
        value, reached = (self.critic(torch.cat((obs, a), -1)) for a in (action.detach(), action))
        return {"critic": (value - obs.sum(-1, keepdim=True)).square().mean(), "actor": -reached.mean()}


def settings_of(group):
    return OptimizerSettings(*{"actor": ("adam", 1e-2, 1e-8, None), "critic": ("rmsprop", 3e-2, 1e-5, 0.5)}[group])


def test_each_parameter_group_has_an_optimiser_that_moves_nothing_else():
    network, twin = ActorAndCritic(), ActorAndCritic()
    ours = build_optimizers(network, settings_of)
    reference = {
        "actor": torch.optim.Adam(twin.actor.parameters(), lr=1e-2, eps=1e-8),
        "critic": torch.optim.RMSprop(twin.critic.parameters(), lr=3e-2, alpha=0.99, eps=1e-5),
    }
    for number in range(4):
        for group in ("actor", "critic"):  # the actor first: its loss must leave no gradient for the critic's step
            ours[group].accumulate(network.losses(number)[group])
        for group in ("actor", "critic"):
            ours[group].apply()
        gradients = {
            group: torch.autograd.grad(twin.losses(number)[group], list(getattr(twin, group).parameters()))
            for group in reference
        }
        for group, optimizer in reference.items():
            for parameter, gradient in zip(getattr(twin, group).parameters(), gradients[group], strict=True):
                parameter.grad = gradient
            if group == "critic":
                nn.utils.clip_grad_norm_(twin.critic.parameters(), 0.5)
            optimizer.step()
        assert_equal(network, twin)


def test_the_optimisers_of_several_groups_are_restored():
    runs = []
    for is_restored in (False, True):
        network = ActorAndCritic()
        optimizers = build_optimizers(network, settings_of)
        for number in range(4):
            if number == 2 and is_restored:
                arrays = {name: array.copy() for name, array in optimizer_arrays(optimizers).items()}
                assert set(arrays) == {"actor.mean", "actor.square", "actor.count", "critic.square"}
                other = ActorAndCritic()
                optimizers = build_optimizers(other, settings_of)
                other.load_state_dict(network.state_dict())
                restore_optimizers(optimizers, arrays)
                network = other
            for group, loss in network.losses(number).items():
                step(optimizers[group], loss)
        runs.append(nn.utils.parameters_to_vector(network.parameters()))
    assert torch.equal(*runs)


@pytest.mark.parametrize("groups", [("actor",), ("actor", "critic", "again")])
def test_a_parameter_in_no_group_or_in_two_is_refused(groups):
    network = ActorAndCritic()
    listed = {**network.parameter_groups(), "again": [network.critic.bias]}
    network.parameter_groups = lambda: {name: listed[name] for name in groups}
    with pytest.raises(ValueError, match="must list each parameter once: see critic"):
        build_optimizers(network, lambda group: settings_of("actor"))


def test_a_parameter_that_is_not_dense_gets_room_of_its_own():
    module = torch.nn.Module()
    module.sparse = torch.nn.Parameter(torch.arange(24.0).view(4, 6)[:, ::2])
    module.next = torch.nn.Parameter(torch.full((5,), -1.0))
    before = module.sparse.detach().clone()
    FlatOptimizer(list(module.parameters()), OptimizerSettings("adam", 0.1, 1e-8, None))
    torch.testing.assert_close(module.sparse.detach(), before)
    assert module.next.tolist() == [-1.0] * 5
