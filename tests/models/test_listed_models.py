"""The models that a team brings from RLlib: convolutions by list, an MLP on the vector, flattened dicts."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill import nested
from rollmill.algorithms.policy import PolicyContext, StochasticPolicy
from rollmill.doctor.model_check import check_network, refuse_unread
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import CNN, same_margins
from rollmill.models.custom import sample_observations
from rollmill.models.encoders import TwinEncoder
from rollmill.models.layers import ACTIVATIONS
from rollmill.models.network import build_network
from rollmill.models.plain import plain_network
from rollmill.models.torsos import build_torso, choose_torso

RAYS = gym.spaces.Box(0, 255, (19, 33), np.uint8)
VECTOR = gym.spaces.Box(-1, 1, (10,), np.float32)
DRONE = gym.spaces.Dict({"rays": RAYS, "vector": VECTOR})
CHOICES = gym.spaces.MultiDiscrete([3, 3, 3, 3])
REMEMBERED = gym.spaces.Dict(
    {**DRONE.spaces, "previous_action": gym.spaces.Box(0, 1, (12,)), "previous_reward": gym.spaces.Box(-9, 9, (1,))}
)
CONV = ((16, 8, 4), (32, 4, 2))
MODELS = {  # the drone team's
    "fcnet": (DRONE, ModelConfig(torso="mlp", hidden=(512, 256, 64, 16))),
    "conv_lstm": (
        DRONE,
        ModelConfig(
            conv=CONV,
            padding="same",
            features=None,
            vector_hidden=(32, 32),
            hidden=(256, 256),
            activation="relu",
            memory="lstm",
            memory_size=32,
        ),
    ),
    "lstm": (REMEMBERED, ModelConfig(torso="mlp", hidden=(256, 256), memory="lstm", memory_size=32)),
    "cnn": (RAYS, ModelConfig(torso="cnn", conv=CONV, padding="same", features=64, shared=False)),
}


def build(name, seed=1):
    space, config = MODELS[name]
    return space, build_network(space, CHOICES, config, seed=seed)


def size_of(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize(
    ("length", "kernel", "stride", "margins"),
    [
        (19, 8, 4, (2, 3)),  # ⌈19/4⌉ = 5 steps need (5 - 1)·4 + 8 = 24, which is 5 more
        (33, 8, 4, (3, 4)),  # ⌈33/4⌉ = 9 steps need 40, 7 more
        (5, 4, 2, (1, 2)),  # 3 steps need 8, 3 more
        (9, 4, 2, (1, 2)),  # 5 steps need 12, 3 more
        (4, 3, 2, (0, 1)),  # 2 steps need 5, 1 more
        (7, 3, 1, (1, 1)),
        (10, 2, 5, (0, 0)),  # a kernel shorter than its stride leaves pixels out
    ],
)
def test_same_padding_leaves_the_smaller_half_before(length, kernel, stride, margins):
    assert same_margins(length, kernel, stride) == margins


def test_the_listed_convolutions_of_the_drone_have_these_sizes():
    # same: 19 × 33 → 5 × 9 → 3 × 5, with 32 filters 480 numbers
    torso = build_torso(RAYS, ModelConfig(conv=CONV, padding="same", features=None))
    assert isinstance(torso, CNN)
    assert torso.out_features == 480
    assert torso(torch.zeros(2, 19, 33, dtype=torch.uint8)).shape == (2, 480)
    assert size_of(torso) == (1 * 8 * 8 * 16 + 16) + (16 * 4 * 4 * 32 + 32)
    wide = build_torso(RAYS, ModelConfig(conv=CONV, padding="same", features=100))
    assert wide(torch.zeros(2, 19, 33, dtype=torch.uint8)).shape == (2, 100)
    assert size_of(wide) - size_of(torso) == 480 * 100 + 100
    # valid: 19 × 33 → (19 - 4)//2 + 1 = 8 × 15 → 3 × 7, with 5 filters 105 numbers
    valid = build_torso(RAYS, ModelConfig(conv=((7, 4, 2), (5, 3, 2)), features=None))
    assert valid(torch.zeros(2, 19, 33, dtype=torch.uint8)).shape == (2, 105)


def slow_same(x, convolution):
    """SAME by its definition, number by number: output (i, j) sees the input from (i, j)·stride - margin on."""
    weight, bias = convolution.weight.detach().numpy(), convolution.bias.detach().numpy()
    kernel, stride = weight.shape[-1], convolution.stride[0]
    height, width = x.shape[1:]
    out = np.zeros((len(weight), -(-height // stride), -(-width // stride)))
    needed = [(steps - 1) * stride + kernel for steps in out.shape[1:]]
    above, left = max(needed[0] - height, 0) // 2, max(needed[1] - width, 0) // 2
    for i, j in np.ndindex(*out.shape[1:]):
        for a, b in np.ndindex(kernel, kernel):
            row, column = i * stride + a - above, j * stride + b - left
            if 0 <= row < height and 0 <= column < width:
                out[:, i, j] += weight[:, :, a, b] @ x[:, row, column]
    return out + bias[:, None, None]


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
def test_same_convolutions_agree_with_their_definition(activation):
    torso = build_torso(RAYS, ModelConfig(conv=CONV, padding="same", features=None, activation=activation))
    rays = sample_observations(RAYS, 1, 2, seed=1)[0]
    for row, result in zip(rays, torso(rays), strict=True):
        x = row.numpy()[None] / 255
        for convolution in torso.convolutions:
            x = ACTIVATIONS[activation](torch.from_numpy(slow_same(x, convolution))).numpy()
        np.testing.assert_allclose(result.detach().numpy(), x.ravel(), atol=1e-5)


def test_listed_as_published_they_are_the_nature_cnn():
    space = gym.spaces.Box(0, 255, (4, 84, 84), np.uint8)
    listed = ModelConfig(conv=((32, 8, 4), (64, 4, 2), (64, 3, 1)), activation="relu")
    nature, ours = build_torso(space, ModelConfig(torso="nature_cnn")), build_torso(space, listed)
    ours.load_state_dict(nature.state_dict())
    pixels = sample_observations(space, 1, 4, seed=0)[0]
    assert torch.equal(ours(pixels), nature(pixels))


def test_a_kernel_that_finds_no_room_is_refused():
    with pytest.raises(
        Refused, match=r"model.conv=\[\[16, 8, 4\], \[32, 4, 2\]\]: the kernel of 4 in layer 2 .* 3 × 7 .*padding=same"
    ):
        build_torso(RAYS, ModelConfig(conv=CONV))


def test_conv_chooses_the_torso_of_images_and_the_reader_of_those_in_a_dict():
    assert choose_torso(RAYS, "auto", has_conv=True) == "cnn"
    assert choose_torso(VECTOR, "auto", has_conv=True) == "mlp"
    assert choose_torso(DRONE, "auto", has_conv=True) == "merged"
    merged = build_torso(DRONE, ModelConfig(conv=CONV, padding="same"))
    small = build_torso(DRONE, ModelConfig())
    kernels = [[c.kernel_size[0] for c in torso.readers[0].convolutions] for torso in (merged, small)]
    assert kernels == [[8, 4], [3, 3]]  # as listed; those of the small CNN
    for space, remedy in ((VECTOR, "use mlp"), (DRONE, "use merged")):
        with pytest.raises(Refused, match=f"model.torso=cnn can't read .*{remedy}"):
            build_torso(space, ModelConfig(torso="cnn", conv=CONV))


def test_the_parts_that_are_not_images_go_through_their_own_mlp():
    torso = build_torso(REMEMBERED, MODELS["conv_lstm"][1])
    # 10 of the vector, 12 of the action, 1 of the reward
    assert [tuple(layer.weight.shape) for layer in torso.vector.layers] == [(32, 10 + 12 + 1), (32, 32)]
    assert [tuple(layer.weight.shape) for layer in torso.mlp.layers] == [(256, 480 + 32), (256, 256)]
    obs = nested.index(sample_observations(REMEMBERED, 1, 3, seed=2), 0)
    rays = torso.readers[2](obs["rays"])  # in path order: action, reward, rays, vector
    x = torch.cat((obs["previous_action"], obs["previous_reward"], obs["vector"]), -1)
    for layer in torso.vector.layers:
        x = torch.relu(layer(x))
    x = torch.cat((rays, x), -1)
    for layer in torso.mlp.layers:
        x = torch.relu(layer(x))
    torch.testing.assert_close(torso(obs), x)


def test_an_mlp_for_a_vector_that_is_not_there_is_refused():
    images = gym.spaces.Dict({"left": RAYS, "right": RAYS})
    with pytest.raises(Refused, match=r"model.vector_hidden=\[8\] is not read: every part .* is an image; remove"):
        build_torso(images, ModelConfig(vector_hidden=(8,)))


def test_an_mlp_reads_a_dict_as_one_row_in_path_order_with_bytes_scaled():
    space = gym.spaces.Dict({"b": gym.spaces.Discrete(3), "c": VECTOR, "a": RAYS})
    torso = build_torso(space, ModelConfig(torso="mlp", hidden=()))
    obs = {"c": torch.arange(10.0)[None], "a": torch.full((1, 19, 33), 51, dtype=torch.uint8), "b": torch.tensor([1])}
    row = torso(obs)[0]
    assert row.shape == (19 * 33 + 3 + 10,)
    torch.testing.assert_close(row[: 19 * 33], torch.full((19 * 33,), 0.2))  # 51 / 255
    assert row[19 * 33 :].tolist() == [0, 1, 0, *range(10)]


def test_the_teams_networks_have_these_parts():
    fcnet = build("fcnet")[1]
    assert isinstance(fcnet.encoder, TwinEncoder)
    widths = [(layer.inputs, layer.outputs) for layer in fcnet.encoder.twin.linears()]
    assert widths == [(19 * 33 + 10, 512), (512, 256), (256, 64), (64, 16)]
    lstm = build("lstm")[1]
    assert lstm.encoder.memory is not None
    assert lstm.encoder.torso.reader.out_features == 19 * 33 + 10 + 12 + 1
    conv_lstm = build("conv_lstm")[1]
    assert (conv_lstm.encoder.memory.rnn.input_size, conv_lstm.encoder.memory.rnn.hidden_size) == (256, 32)


@pytest.mark.parametrize("name", MODELS)
def test_the_loss_reaches_every_parameter_and_nothing_is_unread(name):
    space, network = build(name)
    check_network(network, space, CHOICES)
    refuse_unread(MODELS[name][1], network, space, CHOICES)
    obs = sample_observations(space, 3, 4, seed=3)
    output = network(obs, network.initial_state(4), torch.zeros(3, 4, dtype=torch.bool))
    (output.params.square().mean() + output.value.square().mean()).backward()
    assert all(parameter.grad.any() for parameter in network.parameters())


@pytest.mark.parametrize("name", MODELS)
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


@pytest.mark.parametrize("name", MODELS)
def test_acting_goes_through_torch(name):
    space, network = build(name)
    assert plain_network(network, 4) is None
    obs = nested.map_leaves(lambda leaf: leaf[0].numpy(), sample_observations(space, 1, 3, seed=0))
    policy = StochasticPolicy(network, PolicyContext(None, 3))
    decision = policy.act(obs, policy.initial_state(), np.ones(3, bool), policy.noise(np.random.default_rng(0), 1)[0])
    assert decision.action.shape == (3, 4)


def test_a_dict_of_one_vector_is_not_taken_for_a_plain_vector():
    space = gym.spaces.Dict({"only": VECTOR})
    network = build_network(space, gym.spaces.Discrete(3), ModelConfig(torso="mlp"), seed=1)
    assert plain_network(network, 4) is None
    flat = build_network(VECTOR, gym.spaces.Discrete(3), ModelConfig(), seed=1)
    obs = sample_observations(space, 2, 4, seed=0)
    torch.testing.assert_close(network(obs, {}, None), flat(obs["only"], {}, None))


def test_the_names_of_what_was_there_before_are_the_same():
    """Checkpoints are loaded by them."""
    merged = build_network(DRONE, CHOICES, ModelConfig(), seed=1)
    torso = "encoder.torso"
    layers = [
        *(f"{torso}.readers.0.{part}" for part in ("convolutions.0", "convolutions.1", "linear")),
        *(f"{torso}.mlp.layers.{number}" for number in (0, 1)),
        "policy",
        "value",
    ]
    assert list(merged.state_dict()) == [f"{layer}.{part}" for layer in layers for part in ("weight", "bias")]


@pytest.mark.parametrize(
    ("space", "model", "message"),
    [
        (
            VECTOR,
            {"conv": CONV},
            r"model.conv=.* is not read: the observation is not an image; set model.hidden instead",
        ),
        (gym.spaces.Dict({"v": VECTOR}), {"conv": CONV}, "model.conv=.* is not read: the observation is not an image"),
        (
            gym.spaces.Dict({"v": VECTOR}),
            {"features": 8},
            "model.features=8 is not read: the observation is not an image",
        ),
        (RAYS, {"conv": CONV, "padding": "same", "hidden": (8,)}, r"model.hidden=\[8\] is not read: .* is an image"),
        (RAYS, {"vector_hidden": (8,)}, r"model.vector_hidden=\[8\] is not read: the observation is not a dict"),
        (RAYS, {"activation": "relu"}, "model.activation='relu' is not read: .* has ReLUs"),
    ],
)
def test_a_key_that_nothing_reads_with_this_space_is_refused(space, model, message):
    config = ModelConfig(**model)
    network = build_network(space, CHOICES, config, seed=1)
    with pytest.raises(Refused, match=message):
        refuse_unread(config, network, space, CHOICES)


def test_the_activation_of_listed_convolutions_is_read():
    config = ModelConfig(conv=CONV, padding="same", activation="silu")
    network = build_network(RAYS, CHOICES, config, seed=1)
    refuse_unread(config, network, RAYS, CHOICES)  # doesn't
    listed = [module for module in network.modules() if isinstance(module, CNN)]
    assert [module._activation for module in listed] == [ACTIVATIONS["silu"]] * len(listed) != []
