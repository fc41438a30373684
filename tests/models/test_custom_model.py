import textwrap

import gymnasium as gym
import numpy as np
import pytest
import torch

from rollmill.doctor.model_check import check_network
from rollmill.errors import Refused
from rollmill.models.config import ModelConfig
from rollmill.models.network import build_network

VECTOR = gym.spaces.Box(-5, 5, (3,), np.float32)
TWO = gym.spaces.Discrete(2)

GOOD = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, observation_space, action_space, width=8):
            super().__init__()
            self.linear = nn.Linear(observation_space.shape[0], width)

        def forward(self, obs, state, reset):
            assert reset.dtype == torch.bool and reset.shape == obs.shape[:2]
            return torch.tanh(self.linear(obs)), state
"""
RECURRENT = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, observation_space, action_space):
            super().__init__()
            self.linear = nn.Linear(3, 5)

        def initial_state(self, batch):
            return {"sum": torch.ones(batch, 5)}

        def forward(self, obs, state, reset):
            kept, features = state["sum"], []
            for x, begins in zip(self.linear(obs), reset):
                kept = torch.where(begins[:, None], torch.ones_like(kept), kept) + x
                features.append(kept)
            return torch.stack(features), {"sum": kept}
"""


@pytest.fixture(autouse=True)
def in_the_folder_of_the_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(folder, source, *, replace=("", "")):
    text = textwrap.dedent(source)
    assert replace[0] in text
    (folder / "net.py").write_text(text.replace(*replace) if replace[0] else text)
    return ModelConfig.model_validate({"file": "net.py", "class": "Net"})


def build(folder, source=GOOD, *, replace=("", ""), seed=1, **changes):
    config = write(folder, source, replace=replace)
    config = ModelConfig.model_validate({**config.model_dump(by_alias=True, exclude_unset=True), **changes})
    network = build_network(VECTOR, TWO, config, seed=seed)
    check_network(network, VECTOR, TWO)
    return network


def test_a_custom_model_gets_our_heads(tmp_path):
    network = build(tmp_path, args={"width": 6})
    assert network.policy.in_features == network.value.in_features == 6
    obs = torch.ones(2, 4, 3)
    output = network(obs, {}, None)  # steps without their order get a reset mask of zeros
    features = torch.tanh(network.encoder.module.linear(obs))
    torch.testing.assert_close(output.params, network.policy(features))
    torch.testing.assert_close(output.value, network.value(features).squeeze(-1))
    assert not network.is_recurrent


def test_a_custom_model_may_have_memory_with_a_start_of_its_own(tmp_path):
    network = build(tmp_path, RECURRENT)
    assert network.is_recurrent
    assert network.state_spec["sum"].shape == (5,)
    state = network.initial_state(4)
    assert torch.equal(state["sum"], torch.ones(4, 5))
    after = network(torch.zeros(2, 4, 3), state, torch.zeros(2, 4, dtype=torch.bool)).state["sum"]
    torch.testing.assert_close(after, 1 + 2 * network.encoder.module.linear.bias.expand(4, 5))


def test_a_custom_model_draws_its_weights_from_the_seed_and_keeps_its_own_initialisation(tmp_path):
    before = torch.get_rng_state()
    weights = [build(tmp_path, seed=seed).encoder.module.linear for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights[0].weight, weights[1].weight)
    assert not torch.equal(weights[0].weight, weights[2].weight)
    assert weights[0].bias.any()  # ours would be zero


def test_a_custom_model_sees_normalised_observations_if_asked(tmp_path):
    network = build(tmp_path, normalise_observations=True)
    assert any(name.startswith("normaliser.") for name in network.state_dict())


def test_a_custom_model_may_come_from_an_installed_module(tmp_path, monkeypatch):
    write(tmp_path, GOOD)
    (tmp_path / "net.py").rename(tmp_path / "installed_net_for_a_test.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    config = ModelConfig(module="installed_net_for_a_test:Net", args={"width": 4})
    assert build_network(VECTOR, TWO, config, seed=1).policy.in_features == 4


UNUSED = ("self.linear = nn.Linear", "self.unused = nn.Linear(2, 2); self.linear = nn.Linear")


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (UNUSED, r"parameters 'unused\.weight', 'unused\.bias' are not reached by the loss; use them in forward\(\)"),
        (("torch.tanh(self.linear(obs))", "torch.tanh(obs)"), r"'linear\.weight', 'linear\.bias' are not reached"),
        (("torch.tanh(self.linear(obs))", "self.linear(obs).detach()"), r"'linear\.weight', .* are not reached"),
        (("self.linear(obs))", "self.linear(obs)).flatten(0, 1)"), r"float32 \[8, 8\] .* return a tensor \[T, B, F\]"),
        (("self.linear(obs))", "self.linear(obs)).transpose(0, 1)"), r"float32 \[4, 2, 8\] .* \[2, 4, F\]"),
        (("self.linear(obs))", "self.linear(obs)).double()"), r"float64 \[2, 4, 8\]; return float32"),
        (("self.linear(obs))", "self.linear(obs)) / 0"), r"policy is not finite"),
        ((", state\n", ", {'extra': obs[0]}\n"), r"turns the state \{\} into .*add initial_state\(batch\)"),
        ((", state\n", "\n"), r"forward\(\) gives float32 \[2, 4, 8\]; return \(features, state\)"),
        (("return torch", "raise KeyError('speed')\n        return torch"), r"KeyError: 'speed' \(.*net\.py:12\)"),
        (("self.linear(obs)", "self.linear(obs[..., :2])"), r"forward\(\) raised RuntimeError: .*net\.py:12\)"),
        (("width=8", "width"), r"the constructor raised TypeError: .*'width'"),
        (("class Net(nn.Module)", "class Net(dict)"), r"the constructor raised|derive it from torch.nn.Module"),
        (("class Net(", "class Nett("), r"has no 'Net'; did you mean 'Nett'\?"),
        (("import torch\n", "import torch, nowhere_to_be_found\n"), r"nowhere_to_be_found"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_model_that_does_not_fit_is_refused_in_one_line(tmp_path, replace, message):
    with pytest.raises(Refused, match=rf"model\.file=.*net\.py.*{message}") as caught:
        build(tmp_path, replace=replace)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("replace", "message"),
    [
        (('return {"sum": torch.ones(batch, 5)}', "return torch.ones(batch, 5)"), "gives a Tensor; give a dict"),
        (("torch.ones(batch, 5)", "torch.ones(5)"), r"initial_state\(4\)\['sum'\] is float32 \[5\]"),
        (('{"sum": kept}\n', '{"sum": kept[:2]}\n'), "turns the state .* return the state as initial_state"),
        (('{"sum": kept}\n', "{}\n"), "turns the state .* return the state as initial_state"),
    ],
)
def test_a_state_that_changes_its_layout_is_refused(tmp_path, replace, message):
    with pytest.raises(Refused, match=rf"model\.file=net\.py: .*{message}"):
        build(tmp_path, RECURRENT, replace=replace)


def test_the_cause_is_chained_for_debugging(tmp_path):
    with pytest.raises(Refused) as caught:
        build(tmp_path, replace=("return torch", "raise KeyError('speed')\n        return torch"))
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_missing_file_is_refused(tmp_path):
    config = ModelConfig.model_validate({"file": "absent.py", "class": "Net"})
    with pytest.raises(Refused, match=r"absent\.py"):
        build_network(VECTOR, TWO, config, seed=1)


def test_the_check_leaves_no_trace(tmp_path):
    source = GOOD.replace("torch.tanh(self.linear(obs))", "nn.functional.dropout(self.norm(self.linear(obs)), 0.5)")
    source = source.replace("super().__init__()\n", "super().__init__(); self.norm = Norm()\n").replace(
        "class Net(",
        """class Norm(nn.BatchNorm1d):
        def __init__(self):
            super().__init__(8)
        def forward(self, x):
            return super().forward(x.flatten(0, 1)).view_as(x)

    class Net(""",
    )
    before = torch.get_rng_state()
    network = build(tmp_path, source)
    assert torch.equal(torch.get_rng_state(), before)
    assert network.training
    assert network.encoder.module.norm.num_batches_tracked == 0
    assert all(p.grad is None for p in network.parameters())
