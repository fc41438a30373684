import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.doctor.model_check import refuse_unread
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network
from rollmill.models.normaliser import ObservationNormaliser, RunningStatistics

VECTOR = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)


def test_two_updates_by_hand():
    statistics = RunningStatistics((1,))
    statistics.update(torch.tensor([[[1.0]], [[3.0]]]))  # mean 2, variance ((-1)² + 1²) / 2 = 1
    assert (statistics.mean.item(), statistics.var.item(), statistics.count.item()) == (2.0, 1.0, 2.0)
    statistics.update(torch.tensor([[[5.0], [7.0]]]))  # 1, 3, 5, 7: mean 4, variance (9 + 1 + 1 + 9) / 4 = 5
    assert (statistics.mean.item(), statistics.var.item(), statistics.count.item()) == (4.0, 5.0, 4.0)
    # (9 - 4) / sqrt 5 = sqrt 5
    assert statistics(torch.tensor([[[9.0]]])).item() == pytest.approx(5**0.5)


@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=6).filter(lambda sizes: sum(sizes) > 0))
@settings(max_examples=50, deadline=None)
def test_pieces_of_any_size_give_the_moments_of_the_whole(sizes):
    samples = torch.from_numpy(np.random.default_rng(0).normal(1e4, 3.0, (sum(sizes), 1, 2)).astype(np.float32))
    statistics = RunningStatistics((2,))
    for piece in samples.split(sizes):
        statistics.update(piece)
    whole = samples.double().flatten(0, 1)
    torch.testing.assert_close(statistics.mean, whole.mean(0))
    torch.testing.assert_close(statistics.var, whole.var(0, correction=0), atol=1e-6, rtol=1e-6)


def test_before_any_update_observations_pass_but_for_the_bound():
    normaliser = ObservationNormaliser(VECTOR)
    torch.testing.assert_close(normaliser(torch.tensor([[[0.5, 99.0]]])), torch.tensor([[[0.5, 10.0]]]))


def test_a_constant_entry_becomes_zero():
    normaliser = ObservationNormaliser(VECTOR)
    obs = torch.tensor([[[3.0, 1.0], [3.0, 2.0]]])
    normaliser.update(obs)
    assert torch.equal(normaliser(obs)[..., 0], torch.zeros(1, 2))


def test_only_float_leaves_are_touched_and_results_are_float32():
    space = gym.spaces.Dict(
        {
            "image": gym.spaces.Box(0, 255, (8, 8), np.uint8),
            "kind": gym.spaces.Discrete(3),
            "deep": gym.spaces.Dict({"speed": gym.spaces.Box(-9, 9, (2,), np.float64)}),
        }
    )
    normaliser = ObservationNormaliser(space)
    obs = {
        "image": torch.randint(0, 256, (2, 4, 8, 8), dtype=torch.uint8),
        "kind": torch.randint(0, 3, (2, 4)),
        "deep": {"speed": torch.arange(16.0).reshape(2, 4, 2)},
    }
    normaliser.update(obs)
    seen = normaliser(obs)
    assert seen["image"] is obs["image"]
    assert seen["kind"] is obs["kind"]
    assert seen["deep"]["speed"].dtype == torch.float32
    torch.testing.assert_close(seen["deep"]["speed"].mean((0, 1)), torch.zeros(2))
    assert len(normaliser.state_dict()) == 3  # one leaf's mean, variance and count


def test_statistics_are_updated_in_place():
    statistics = RunningStatistics((2,))
    views = {name: tensor.numpy() for name, tensor in statistics.state_dict().items()}
    statistics.update(torch.ones(3, 1, 2))
    assert views["count"] == 3
    assert views["mean"].tolist() == [1.0, 1.0]
    assert views["var"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("shape", [(40, 48), (3, 40, 48), (40, 48, 3)])
@pytest.mark.parametrize("settings", [{}, {"memory": "gru"}, {"shared": False}])
def test_normalised_images_are_as_if_the_pixels_had_been_normalised(shape, settings):
    space = gym.spaces.Box(0, 255, shape, np.uint8)
    rng = np.random.default_rng(0)
    low, high = 5, 40  # dark pictures
    images = torch.from_numpy(rng.integers(low, high, (3, 4, *shape), dtype=np.uint8))
    network, plain = (
        build_network(
            space,
            gym.spaces.Discrete(3),
            ModelConfig(features=16, normalise_images=is_normalised, **settings),
            seed=1,
        )
        for is_normalised in (True, False)
    )
    reset = torch.zeros(3, 4, dtype=torch.bool)

    def said(which, obs):
        return which(obs, which.initial_state(4), reset)

    torch.testing.assert_close(said(network, images).value, said(plain, images).value)  # nothing observed yet
    network.observe(images)
    (statistics, *_) = [part for part in network.modules() if isinstance(part, RunningStatistics)]
    axes = {2: (0, 1, 2, 3), 3: (0, 1, 3, 4) if shape[0] == 3 else (0, 1, 2, 3)}[len(shape)]
    pixels = images.double()
    mean, deviation = pixels.mean(axes), pixels.var(axes, correction=0).sqrt()
    torch.testing.assert_close(statistics.mean, mean.reshape(-1))
    torch.testing.assert_close(statistics.deviation, deviation.reshape(-1))
    # the plain network, given floats, does what it does to bytes but for their scale
    floats = gym.spaces.Box(-np.inf, np.inf, shape, np.float32)
    expected = build_network(floats, gym.spaces.Discrete(3), ModelConfig(features=16, **settings), seed=1)
    column = (-1, 1, 1) if len(shape) == 3 and shape[0] == 3 else (-1,)
    normalised = ((pixels - mean.reshape(column)) / deviation.reshape(column)).float()
    torch.testing.assert_close(said(network, images).value, said(expected, normalised).value, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(said(network, images).value, said(plain, images).value, atol=1e-3)


def test_of_many_images_some_are_observed():
    space = gym.spaces.Box(0, 255, (16, 16), np.uint8)
    network = build_network(space, gym.spaces.Discrete(2), ModelConfig(features=4, normalise_images=True), seed=1)
    network.observe(torch.zeros(10, 100, 16, 16, dtype=torch.uint8))
    (statistics,) = [part for part in network.modules() if isinstance(part, RunningStatistics)]
    assert 16 * 256 <= float(statistics.count) <= 32 * 256


def test_without_an_image_it_is_refused():
    model = ModelConfig(normalise_images=True)
    network = build_network(VECTOR, gym.spaces.Discrete(2), model, seed=1)
    with pytest.raises(Refused, match=r"model.normalise_images=true is not read: there is no uint8 image"):
        refuse_unread(model, network, VECTOR, gym.spaces.Discrete(2))
