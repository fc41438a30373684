import pytest
import torch
from torch import nn

from rollmill.models.recurrent import Memory, gru


def memory_of(kind, inputs=3, size=5):
    torch.manual_seed(0)
    return Memory(kind, inputs, size)


def run_step_by_step(memory, features, state, reset):
    """The definition, with torch's cells: zero the state where an episode begins, then take one step."""
    cell = (nn.LSTMCell if isinstance(memory.rnn, nn.LSTM) else nn.GRUCell)(features.shape[-1], memory.out_features)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        setattr(cell, name, getattr(memory.rnn, f"{name}_l0"))
    outputs, kept = [], tuple(state.values())
    for x, begins in zip(features, reset, strict=True):
        kept = tuple(torch.where(begins[:, None], torch.zeros_like(part), part) for part in kept)
        after = cell(x, kept) if len(kept) == 2 else cell(x, kept[0])
        kept = after if isinstance(after, tuple) else (after,)
        outputs.append(kept[0])
    return torch.stack(outputs), dict(zip(state, kept, strict=True))


def batch(memory, steps=12, rows=4):
    generator = torch.Generator().manual_seed(1)
    features = torch.randn(steps, rows, 3, generator=generator)
    state = {name: torch.randn(rows, 5, generator=generator) for name in memory.initial_state(1)}
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    reset[0, 1] = reset[3, 0] = reset[3, 2] = reset[4, 0] = reset[11, 3] = True
    return features, state, reset


@pytest.mark.parametrize("kind", ["gru", "lstm"])
@pytest.mark.parametrize("steps", [1, 12])
def test_outputs_state_and_gradients_equal_those_of_single_steps(kind, steps):
    memory = memory_of(kind)
    results = []
    for run in (memory, lambda *a: run_step_by_step(memory, *a)):
        features, state, reset = batch(memory)
        features = features[:steps].requires_grad_()
        memory.zero_grad()
        output, after = run(features, state, reset[:steps])
        (output.square().sum() + sum(part.sum() for part in after.values())).backward()
        results.append((output, after, features.grad, [p.grad.clone() for p in memory.parameters()]))
    torch.testing.assert_close(*results, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_a_reset_cuts_the_influence_of_what_came_before_in_that_row_only(kind):
    memory = memory_of(kind)
    features, state, _ = batch(memory)
    reset = torch.zeros(12, 4, dtype=torch.bool)
    reset[6, 0] = True
    outputs = []
    for early in (features, features.clone()):
        if early is not features:
            early[:6] += 1
        outputs.append(memory(early, state, reset)[0])
    before, after = outputs
    assert torch.equal(before[6:, 0], after[6:, 0])
    assert not torch.isclose(before[6, 1:], after[6, 1:]).all(-1).any()


@pytest.mark.parametrize("kind", ["gru", "lstm"])
def test_an_unroll_in_two_pieces_equals_the_whole(kind):
    memory = memory_of(kind)
    features, state, reset = batch(memory)
    whole, last = memory(features, state, reset)
    first, between = memory(features[:5], state, reset[:5])
    second, end = memory(features[5:], between, reset[5:])
    torch.testing.assert_close(torch.cat((first, second)), whole)
    torch.testing.assert_close(end, last)


def test_an_lstm_has_a_cell_and_a_hidden_state():
    state = memory_of("lstm").initial_state(7)
    assert {name: tuple(part.shape) for name, part in state.items()} == {"hidden": (7, 5), "cell": (7, 5)}
    assert list(memory_of("gru").state_spec) == ["hidden"]


def test_the_gradients_of_a_gru_are_those_of_finite_differences():
    generator = torch.Generator().manual_seed(2)
    shapes = (4, 3, 6), (3, 2), (6, 2), (6,)  # input, state before, weight, bias: 4 steps, 3 rows, 2 units
    projected, state, weight, bias = (
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes
    )
    reset = torch.zeros(4, 3, dtype=torch.bool)
    reset[0, 1] = reset[2, 0] = reset[3, 0] = reset[3, 2] = True
    assert torch.autograd.gradcheck(lambda x, h, w, b: gru(x, h, reset, w, b), (projected, state, weight, bias))


def test_a_gru_decides_as_it_learns_bit_for_bit():
    memory = memory_of("gru")
    features, state, reset = batch(memory)
    learning, _ = memory(features, state, reset)
    with torch.inference_mode():
        acting, _ = memory(features, state, reset)
    assert torch.equal(learning, acting)
