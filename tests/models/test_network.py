import copy
import math
import subprocess
import sys
from functools import partial
from hashlib import sha256
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from torch import nn

from rollmill import nested
from rollmill.doctor.model_check import check_network
from rollmill.models.config import ModelConfig
from rollmill.models.custom import sample_observations
from rollmill.models.encoders import SeparateEncoder, SharedEncoder, TwinEncoder
from rollmill.models.network import build_network

VECTOR = gym.spaces.Box(-5, 5, (4,), np.float32)
IMAGE = gym.spaces.Box(0, 255, (4, 36, 36), np.uint8)
MERGED = gym.spaces.Dict({"camera": gym.spaces.Box(0, 255, (12, 12, 3), np.uint8), "speed": VECTOR})
TWO = gym.spaces.Discrete(2)

SETUPS = {
    "vector": (VECTOR, ModelConfig()),
    "float64": (gym.spaces.Box(-5, 5, (4,), np.float64), ModelConfig()),
    "table": (gym.spaces.Box(-5, 5, (3, 2), np.float32), ModelConfig(activation="silu")),
    "bytes": (gym.spaces.Box(0, 255, (16,), np.uint8), ModelConfig(activation="relu")),
    "discrete": (gym.spaces.Discrete(6), ModelConfig()),
    "multidiscrete": (gym.spaces.MultiDiscrete([3, 2]), ModelConfig(activation="elu")),
    "linear": (VECTOR, ModelConfig(hidden=())),
    "shared": (VECTOR, ModelConfig(shared=True)),
    "image": (IMAGE, ModelConfig(features=32)),
    "two cnns": (IMAGE, ModelConfig(features=32, shared=False)),
    "small image": (gym.spaces.Box(0, 1, (19, 33), np.float32), ModelConfig(features=32)),
    "merged": (MERGED, ModelConfig(features=16)),
    "gru": (VECTOR, ModelConfig(memory="gru", memory_size=16)),
    "lstm": (MERGED, ModelConfig(memory="lstm", memory_size=16, features=16)),
    "normalised": (MERGED, ModelConfig(normalise_observations=True, features=16)),
    "default": (VECTOR, ModelConfig(initialisation="default")),
}
ACTIONS = [TWO, gym.spaces.MultiDiscrete([3, 4]), gym.spaces.Box(-1, 1, (2, 3), np.float32)]


def build(name, actions=TWO, seed=1, **options):
    space, config = SETUPS[name]
    return space, build_network(space, actions, config, seed=seed, **options)


def run(network, space, steps=3, batch=4):
    obs = sample_observations(space, steps, batch, seed=3)
    reset = torch.zeros(steps, batch, dtype=torch.bool)
    reset[1, 2] = True
    return network(obs, network.initial_state(batch), reset)


@pytest.mark.parametrize("actions", ACTIONS, ids=str)
@pytest.mark.parametrize("name", SETUPS)
def test_every_observation_meets_every_action_space(name, actions):
    space, network = build(name, actions)
    check_network(network, space, actions)
    output = run(network, space)
    assert output.params.shape == (3, 4, network.distribution.parameter_count)
    assert output.value.shape == (3, 4)
    assert output.params.dtype == output.value.dtype == torch.float32
    shapes = nested.map_leaves(lambda spec: (4, *spec.shape), network.state_spec)
    assert nested.map_leaves(lambda leaf: tuple(leaf.shape), output.state) == shapes
    assert network.is_recurrent == (name in ("gru", "lstm"))


def test_policy_and_value_are_separate_only_for_plain_mlps_unless_said():
    kinds = {name: type(build(name)[1].encoder) for name in ("vector", "shared", "image", "two cnns", "merged")}
    assert kinds == {
        "vector": TwinEncoder,
        "shared": SharedEncoder,
        "image": SharedEncoder,
        "two cnns": SeparateEncoder,
        "merged": SharedEncoder,
    }
    # without a value there is nothing to separate
    assert type(build("vector", with_value=False)[1].encoder) is SharedEncoder


def test_without_value_head_there_is_no_value():
    space, network = build("vector", with_value=False)
    assert run(network, space).value is None
    check_network(network, space, TWO)


def test_twin_mlps_equal_two_mlps_with_the_same_weights():
    space, network = build("vector")
    twin = network.encoder.twin.layers
    obs = sample_observations(space, 2, 8, seed=0)
    for half, head, result in ((0, network.policy, "params"), (1, network.value, "value")):
        x = obs
        for layer in twin:
            linear = nn.Linear(*layer.weight.shape[1:])
            linear.load_state_dict({"weight": layer.weight[half].T, "bias": layer.bias[half, 0]})
            x = torch.tanh(linear(x))
        expected = head(x).squeeze(-1)
        torch.testing.assert_close(getattr(network(obs, {}, None), result), expected)


def test_the_halves_of_a_twin_do_not_touch_each_other():
    space, network = build("vector")
    run(network, space).value.sum().backward()
    for layer in network.encoder.twin.layers:
        assert layer.weight.grad[0].abs().max() == 0
        assert layer.weight.grad[1].abs().max() > 0


@pytest.mark.parametrize("name", SETUPS)
def test_equal_seeds_give_equal_networks_whatever_the_global_generator_and_threads(name, request):
    networks = []
    for threads, seed in ((1, 1), (2, 1), (1, 2)):
        torch.manual_seed(100 + threads)
        request.addfinalizer(partial(torch.set_num_threads, torch.get_num_threads()))
        torch.set_num_threads(threads)
        before = torch.get_rng_state()
        networks.append(build(name, seed=seed)[1].state_dict())
        assert torch.equal(torch.get_rng_state(), before)
        assert torch.get_num_threads() == threads
    first, same, other = networks
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


def test_orthogonal_weights_have_their_gains_and_zero_biases():
    network = build("vector")[1]
    first, second = network.encoder.twin.layers
    for half in (0, 1):
        # orthogonal columns of length sqrt 2: W Wᵀ = 2 I, for the first layer over its 4 inputs
        torch.testing.assert_close(first.weight[half] @ first.weight[half].T, 2 * torch.eye(4), atol=1e-5, rtol=0)
        torch.testing.assert_close(second.weight[half] @ second.weight[half].T, 2 * torch.eye(64), atol=1e-5, rtol=0)
    assert not torch.equal(second.weight[0], second.weight[1])
    torch.testing.assert_close(network.policy.weight @ network.policy.weight.T, 1e-4 * torch.eye(2), atol=1e-9, rtol=0)
    assert network.value.weight.norm().item() == pytest.approx(1.0)
    assert all(not p.any() for name, p in network.named_parameters() if name.endswith("bias"))


def test_default_weights_are_bounded_by_the_root_of_the_inputs():
    network = build("default")[1]
    weight = network.encoder.twin.layers[1].weight
    assert 0.12 < weight.abs().max().item() <= 1 / math.sqrt(64)
    assert network.encoder.twin.layers[1].bias.any()


@pytest.mark.parametrize(
    ("wish", "setting", "is_zero"),
    [(False, None, False), (True, None, True), (True, False, False), (False, True, True)],
)
def test_the_config_overrules_the_algorithms_wish_for_a_zero_last_layer(wish, setting, is_zero):
    network = build_network(VECTOR, TWO, ModelConfig(zero_last_layer=setting), seed=1, zero_last_layer=wish)
    _, entropy = network.distribution.log_prob_and_entropy(run(network, VECTOR).params, torch.zeros(3, 4).long())
    assert torch.equal(entropy, torch.full((3, 4), math.log(2.0))) == is_zero
    check_network(network, VECTOR, TWO)


def test_the_deviation_of_continuous_actions_starts_as_said_and_is_learned():
    actions = gym.spaces.Box(-1, 1, (2,), np.float32)
    network = build_network(VECTOR, actions, ModelConfig(initial_log_std=-0.5), seed=1)
    params = run(network, VECTOR).params
    assert (params[..., 2:] == -0.5).all()
    params.sum().backward()
    assert network.policy.log_std.grad.tolist() == [12.0, 12.0]  # 3 × 4 steps


@pytest.mark.parametrize("name", SETUPS)
def test_a_rows_result_does_not_depend_on_what_the_other_rows_hold(name):
    """Rows that sit out may hold anything; the number of rows is always the same, and a row keeps its place."""
    space, network = build(name)
    obs, others = (sample_observations(space, 1, 6, seed=seed) for seed in (5, 6))
    reset = torch.zeros(1, 6, dtype=torch.bool)
    with torch.inference_mode():
        expected = network(obs, network.initial_state(6), reset)
        nested.assign(others, (slice(None), slice(2, 4)), nested.index(obs, (slice(None), slice(2, 4))))
        found = network(others, network.initial_state(6), reset)
    assert torch.equal(found.params[:, 2:4], expected.params[:, 2:4])
    assert torch.equal(found.value[:, 2:4], expected.value[:, 2:4])
    assert not torch.equal(found.value, expected.value)


def pass_and_gradients(name):
    space, network = build(name)
    output = run(network, space)
    (output.params.square().mean() + output.value.square().mean()).backward()
    return [output.params.detach(), output.value.detach(), *(p.grad for p in network.parameters())]


def print_digests():
    """For the process of the test below."""
    torch.set_num_threads(1)
    for name in SETUPS:
        print(sha256(b"".join(part.numpy().tobytes() for part in pass_and_gradients(name))).hexdigest())


@pytest.mark.parametrize("name", SETUPS)
def test_two_passes_and_their_gradients_are_equal_bit_by_bit(name):
    results = [pass_and_gradients(name) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_the_same_calls_are_equal_bit_by_bit_in_two_processes():
    """With the same shapes and threads: the one thing that equality across runtimes and resumes relies on."""
    command = [sys.executable, "-c", "import test_network; test_network.print_digests()"]
    first, second = (subprocess.run(command, cwd=Path(__file__).parent, capture_output=True) for _ in range(2))
    assert len(first.stdout.split()) == len(SETUPS), first.stderr.decode()
    assert first.stdout == second.stdout


def test_without_memory_steps_may_come_without_their_resets():
    space, network = build("vector")
    obs = sample_observations(space, 3, 4, seed=3)
    assert torch.equal(network(obs, {}, None).params, run(network, space).params)


@pytest.mark.parametrize("name", ["gru", "lstm"])
def test_a_network_with_memory_forgets_at_a_reset(name):
    space, network = build(name)
    obs = sample_observations(space, 1, 4, seed=3)
    reset = torch.tensor([[True, False, True, False]])
    fresh = network(obs, network.initial_state(4), reset).params[0]
    used = nested.map_leaves(lambda leaf: leaf + 0.5, network.initial_state(4))
    later = network(obs, used, reset).params[0]
    assert [torch.equal(a, b) for a, b in zip(fresh, later, strict=True)] == [True, False, True, False]


def test_statistics_are_part_of_the_weights_and_change_the_output():
    space, network = build("normalised")
    names = [name for name in network.state_dict() if name.startswith("normaliser.")]
    assert [name.rpartition(".")[2] for name in names] == ["mean", "var", "count"]
    before = run(network, space).value
    network.observe(sample_observations(space, 5, 4, seed=9))
    assert network.state_dict()[names[2]].item() == 20
    assert not torch.equal(run(network, space).value, before)

    other = build("normalised", seed=2)[1]
    other.load_state_dict(network.state_dict())
    assert torch.equal(run(other, space).value, run(network, space).value)


def test_observing_without_normaliser_changes_nothing():
    space, network = build("vector")
    before = copy.deepcopy(network.state_dict())
    network.observe(sample_observations(space, 5, 4, seed=9))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


@pytest.mark.parametrize("name", ["vector", "image", "gru"])
def test_plain_attributes_stay_the_registered_tensors_through_copies_and_conversions(name):
    space, network = build(name)
    twin = copy.deepcopy(network).double().float()
    twin.load_state_dict(build(name, seed=2)[1].state_dict())
    for part in twin.modules():
        for key, tensor in part._parameters.items():
            assert getattr(part, key) is tensor
        for key, child in part._modules.items():
            assert getattr(part, key) is child
    assert not torch.equal(run(twin, space).value, run(network, space).value)


@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max])
def test_a_space_without_real_bounds_passes_the_check(bound):
    space = gym.spaces.Box(-bound, bound, (8,), np.float32)
    network = build_network(space, TWO, ModelConfig(activation="relu"), seed=1)
    check_network(network, space, TWO)


def test_a_functional_call_uses_the_weights_that_it_is_given():
    space = gym.spaces.Box(-1, 1, (3,), np.float32)
    networks = [build_network(space, gym.spaces.Discrete(2), ModelConfig(hidden=(4,)), seed=seed) for seed in (1, 2)]
    obs = torch.ones(1, 5, 3)
    called = torch.func.functional_call(networks[0], networks[1].state_dict(), (obs, {}, None))
    torch.testing.assert_close(called.value, networks[1](obs, {}, None).value, rtol=0, atol=0)
    assert not torch.equal(called.value, networks[0](obs, {}, None).value)
