import gymnasium as gym
import numpy as np
import pytest
import torch
from torch.nn import functional as F

from rollmill import nested
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.convolutions import build_cnn
from rollmill.models.custom import sample_observations
from rollmill.models.inputs import OneHot, image_layout, row_input
from rollmill.models.torsos import build_torso, choose_torso


def image(*shape, dtype=np.uint8):
    return gym.spaces.Box(0, 255 if dtype == np.uint8 else 1, shape, dtype)


VECTOR = gym.spaces.Box(-1, 1, (4,))


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (VECTOR, "mlp"),
        (gym.spaces.Discrete(4), "mlp"),
        (image(128), "mlp"),
        (image(5, 7), "mlp"),
        (image(4, 84, 84), "nature_cnn"),
        (image(36, 36), "nature_cnn"),
        (image(35, 99), "small_cnn"),
        (image(10, 10, 4), "small_cnn"),
        (image(19, 33, dtype=np.float32), "small_cnn"),
        (gym.spaces.Dict({"a": VECTOR}), "merged"),
        (gym.spaces.Tuple((VECTOR, VECTOR)), "merged"),
    ],
    ids=str,
)
def test_auto_chooses_by_the_space(space, expected):
    assert choose_torso(space, "auto") == expected


@pytest.mark.parametrize(
    ("space", "wanted", "remedy"),
    [
        (image(20, 20), "nature_cnn", "use small_cnn"),
        (VECTOR, "small_cnn", "use mlp"),
        (VECTOR, "merged", "use mlp"),
    ],
    ids=str,
)
def test_a_torso_that_cannot_read_the_space_is_refused_with_one_that_can(space, wanted, remedy):
    with pytest.raises(Refused, match=f"model.torso={wanted}.*{remedy}"):
        choose_torso(space, wanted)


def test_images_are_read_in_three_layouts():
    assert image_layout(image(19, 33))[:4] == (1, 19, 33, False)
    assert image_layout(image(4, 84, 84))[:4] == (4, 84, 84, False)
    assert image_layout(image(60, 80, 3))[:4] == (3, 60, 80, True)
    assert image_layout(image(3, 60, 80))[:4] == (3, 60, 80, False)


@pytest.mark.parametrize(
    ("kind", "size"), [("nature_cnn", 36), ("nature_cnn", 84), ("small_cnn", 8), ("small_cnn", 19)]
)
def test_channel_order_and_scale_do_not_change_what_a_cnn_sees(kind, size):
    pixels = sample_observations(image(3, size, size + 5), 1, 4, seed=0)[0]
    torch.manual_seed(0)
    spaces = image(3, size, size + 5), image(size, size + 5, 3), image(3, size, size + 5, dtype=np.float32)
    first, last, floats = (build_cnn(kind, image_layout(space), ModelConfig(features=16)) for space in spaces)
    last.load_state_dict(first.state_dict())
    floats.load_state_dict(first.state_dict())
    expected = first(pixels)
    assert expected.shape == (4, 16)
    assert expected.std(0).max() > 0
    torch.testing.assert_close(last(pixels.permute(0, 2, 3, 1)), expected)
    torch.testing.assert_close(floats(pixels.float() / 255), expected)


def test_the_nature_cnn_is_the_published_one():
    torso = build_cnn("nature_cnn", image_layout(image(4, 84, 84)), ModelConfig())
    # 4·8·8·32 + 32, 32·4·4·64 + 64, 64·3·3·64 + 64, 7·7·64·512 + 512
    sizes = [8_192 + 32, 32_768 + 64, 36_864 + 64, 1_605_632 + 512]
    assert sum(p.numel() for p in torso.parameters()) == sum(sizes)
    pixels = torch.randint(0, 256, (4, 4, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    x = pixels.float() / 255
    for convolution in torso.convolutions:
        x = F.relu(convolution(x))
    torch.testing.assert_close(torso(pixels), F.relu(torso.linear(x.flatten(1))))


def test_discrete_leaves_become_one_hot_counted_from_their_start():
    one = row_input(gym.spaces.Discrete(3, start=5), "observation")
    assert one(torch.tensor([5, 7])).tolist() == [[1, 0, 0], [0, 0, 1]]
    many = OneHot((2, 3), (0, 1))
    assert many(torch.tensor([[1, 1], [0, 3]])).tolist() == [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]]


def test_numbers_are_flattened_and_bytes_scaled():
    assert row_input(image(2, 2), "observation")(torch.tensor([[[0, 255], [51, 0]]], dtype=torch.uint8)).tolist() == [
        [0, 1, pytest.approx(0.2), 0]
    ]
    assert row_input(gym.spaces.MultiBinary(3), "o")(torch.tensor([[1, 0, 1]], dtype=torch.int8)).tolist() == [
        [1, 0, 1]
    ]
    assert row_input(gym.spaces.Box(-9, 9, (2,), np.int64), "o")(torch.tensor([[3, -4]])).tolist() == [[3, -4]]


def test_a_merged_torso_uses_every_leaf():
    space = gym.spaces.Dict(
        {
            "camera": image(12, 12, 3),
            "inner": gym.spaces.Dict({"with.dot": VECTOR, "kind": gym.spaces.Discrete(3)}),
            "pair": gym.spaces.Tuple((gym.spaces.MultiDiscrete([2, 3]), gym.spaces.MultiBinary(2))),
        }
    )
    torch.manual_seed(0)
    torso = build_torso(space, ModelConfig(features=8, hidden=(16,)))
    # 8 of the camera, 3 of the kind, 4 of the vector, 2 + 3 of the choices, 2 of the bits
    assert torso.mlp.layers[0].in_features == 8 + 3 + 4 + 5 + 2
    one = nested.index(sample_observations(space, 1, 4, seed=1), 0)
    base = torso(one)
    assert base.shape == (4, 16)
    changed = {
        "camera": {**one, "camera": 255 - one["camera"]},
        "vector": {**one, "inner": {**one["inner"], "with.dot": one["inner"]["with.dot"] + 1}},
        "kind": {**one, "inner": {**one["inner"], "kind": (one["inner"]["kind"] + 1) % 3}},
        "bits": {**one, "pair": {**one["pair"], "1": 1 - one["pair"]["1"]}},
        "choices": {**one, "pair": {**one["pair"], "0": 1 - one["pair"]["0"].clamp(max=1)}},
    }
    for name, other in changed.items():
        assert not torch.equal(torso(other), base), name
