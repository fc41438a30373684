import math

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rollmill.errors import Refused
from rollmill.models.distributions import Categorical, DiagonalGaussian, MultiCategorical, distribution_for

FAMILIES = [Categorical(5), MultiCategorical((3, 2, 4)), DiagonalGaussian((3,)), DiagonalGaussian((2, 2))]


def some(distribution, lead=(6, 4), seed=0):
    rng = np.random.default_rng(seed)
    params = torch.from_numpy(rng.standard_normal((*lead, distribution.parameter_count), dtype=np.float32))
    noise = torch.from_numpy(distribution.draw_noise(rng, lead))
    return params, distribution.sample(params, noise)


def reference(distribution, params):
    if isinstance(distribution, Categorical):
        return torch.distributions.Categorical(logits=params)
    mean, log_std = params.chunk(2, -1)
    return torch.distributions.Independent(torch.distributions.Normal(mean, log_std.exp()), 1)


def test_each_space_has_its_distribution():
    assert distribution_for(gym.spaces.Discrete(3)) == Categorical(3)
    assert distribution_for(gym.spaces.MultiDiscrete([2, 3])) == MultiCategorical((2, 3))
    assert distribution_for(gym.spaces.Box(-1, 1, (2, 3))) == DiagonalGaussian((2, 3))
    with pytest.raises(Refused, match="must be Discrete, MultiDiscrete or Box"):
        distribution_for(gym.spaces.MultiBinary(3))


def test_categorical_by_hand():
    params = torch.tensor([0.0, math.log(3.0)])  # probabilities 1/4 and 3/4
    one = Categorical(2)
    assert one.log_prob(params, torch.tensor(1)).item() == pytest.approx(math.log(0.75))
    _, entropy = one.log_prob_and_entropy(params, torch.tensor(1))
    assert entropy.item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)))
    assert one.mode(params).item() == 1
    # the noise turns the choice only where it bridges log 3 = 1.0986
    assert one.sample(params, torch.tensor([1.2, 0.0])).item() == 0
    assert one.sample(params, torch.tensor([1.0, 0.0])).item() == 1


def test_parts_of_a_multicategorical_are_independent():
    joint = MultiCategorical((3, 2))
    params, action = some(joint)
    first, second = Categorical(3), Categorical(2)
    a, b = params[..., :3], params[..., 3:]
    expected = first.log_prob(a, action[..., 0]) + second.log_prob(b, action[..., 1])
    torch.testing.assert_close(joint.log_prob(params, action), expected)
    entropies = [
        part.log_prob_and_entropy(*of)[1] for part, *of in ((first, a, action[..., 0]), (second, b, action[..., 1]))
    ]
    torch.testing.assert_close(joint.log_prob_and_entropy(params, action)[1], sum(entropies))
    assert torch.equal(joint.mode(params), torch.stack((first.mode(a), second.mode(b)), -1))


def test_gaussian_by_hand():
    one = DiagonalGaussian((1,))
    params = torch.tensor([1.0, math.log(2.0)])  # mean 1, deviation 2
    # two deviations from the mean: -1/2 · 2² - log 2 - 1/2 log 2 pi
    expected = -2 - math.log(2) - 0.5 * math.log(2 * math.pi)
    assert one.log_prob(params, torch.tensor([5.0])).item() == pytest.approx(expected)
    _, entropy = one.log_prob_and_entropy(params, torch.tensor([5.0]))
    assert entropy.item() == pytest.approx(math.log(2) + 0.5 * math.log(2 * math.pi * math.e))
    assert one.sample(params, torch.tensor([0.5])).item() == 2.0  # 1 + 2 · 0.5
    assert one.mode(params).item() == 1.0


@pytest.mark.parametrize("distribution", [Categorical(5), DiagonalGaussian((3,))], ids=str)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_agrees_with_torch_distributions(distribution, seed):
    params, action = some(distribution, seed=seed)
    expected = reference(distribution, params)
    log_prob, entropy = distribution.log_prob_and_entropy(params, action)
    torch.testing.assert_close(log_prob, expected.log_prob(action), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(entropy, expected.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("distribution", FAMILIES, ids=str)
def test_the_log_probability_is_the_same_with_the_entropy_and_alone(distribution):
    params, action = some(distribution)
    log_prob, entropy = distribution.log_prob_and_entropy(params, action)
    assert torch.equal(log_prob, distribution.log_prob(params, action))
    assert log_prob.shape == entropy.shape == (6, 4)


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (gym.spaces.Discrete(3), (6, 4), torch.int64),
        (gym.spaces.MultiDiscrete([2, 3]), (6, 4, 2), torch.int64),
        (gym.spaces.Box(-1, 1, (2, 3)), (6, 4, 2, 3), torch.float32),
        (gym.spaces.Box(-1, 1, ()), (6, 4), torch.float32),
    ],
    ids=str,
)
def test_actions_have_the_shape_and_type_of_the_space(space, shape, dtype):
    distribution = distribution_for(space)
    params, action = some(distribution)
    for given_action in (action, distribution.mode(params)):
        assert given_action.shape == shape
        assert given_action.dtype == dtype


def test_samples_follow_the_probabilities():
    n = 200_000
    params = torch.tensor([0.1, 0.2, 0.7]).log()
    noise = torch.from_numpy(Categorical(3).draw_noise(np.random.default_rng(1), (n,)))
    frequencies = torch.bincount(Categorical(3).sample(params, noise), minlength=3) / n
    # five standard errors of the rarest choice: 5 · sqrt(0.7 · 0.3 / n) = 0.0051
    assert (frequencies - torch.tensor([0.1, 0.2, 0.7])).abs().max() < 0.0052


@pytest.mark.parametrize("distribution", FAMILIES, ids=str)
def test_noise_is_finite_float32_and_from_the_given_generator_alone(distribution):
    drawn = [distribution.draw_noise(np.random.default_rng(seed), (7, 3)) for seed in (5, 5, 6)]
    assert drawn[0].dtype == np.float32
    assert drawn[0].shape[:2] == (7, 3)
    assert np.isfinite(drawn[0]).all()
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])


def test_noise_stays_finite_where_the_exponential_is_zero():
    class Zeros:
        def standard_exponential(self, shape, dtype):
            return np.zeros(shape, dtype)

    assert np.isfinite(Categorical(2).draw_noise(Zeros(), (3,))).all()
