"""Memory within an episode; the state is reset where an episode begins.

The GRU runs over [T, B] in which episodes begin anywhere, without cutting the sequence.
With candidate n, gates r and z and the kept state k = h[t-1], zeroed where step t begins an episode:

    r = σ(x_r + W_r k + b_r)    z = σ(x_z + W_z k + b_z)    m = W_n k + b_n
    n = tanh(x_n + r m)         h[t] = n + z (k - n)

x is the input's projection, one product for all steps. Torch's own layer has no reset mask, so it would have to be
called again after every reset, and its backward pass adds to the gradient of the weights at each step. Here that is one
product over all steps as well: with 512 units, 32 steps, 32 rows and a few resets forward and backward of this layer
take a sixth less time on one thread.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from rollmill.nested import Nested
from rollmill.types import ArraySpec


class Memory(nn.Module):
    """A GRU or LSTM over [T, B, F] whose state is zeroed before each step that begins an episode.

    The state is {"hidden": [B, H]}, with an LSTM also "cell".
    """

    def __init__(self, kind: Literal["gru", "lstm"], inputs: int, size: int) -> None:
        super().__init__()
        self.rnn = nn.GRU(inputs, size) if kind == "gru" else nn.LSTM(inputs, size)
        self.out_features = size
        self.state_spec = {name: ArraySpec((size,), "float32") for name in self._names}

    @property
    def _names(self) -> tuple[str, ...]:
        return ("hidden", "cell") if isinstance(self.rnn, nn.LSTM) else ("hidden",)

    def initial_state(self, batch: int) -> Nested:
        """Zeros, on the device of the weights."""
        device = next(self.parameters()).device
        return {name: torch.zeros(batch, self.out_features, device=device) for name in self._names}

    def forward(self, features: Tensor, state: Nested, reset: Tensor) -> tuple[Tensor, Nested]:
        """Outputs [T, B, H] and the state after the last step."""
        rnn = self.rnn
        if isinstance(rnn, nn.LSTM):
            return self._run_lstm(rnn, features, state, reset)
        inputs, recurrent, input_bias, recurrent_bias = rnn.all_weights[0]
        output = gru(F.linear(features, inputs, input_bias), state["hidden"], reset, recurrent, recurrent_bias)
        return output, {"hidden": output[-1]}

    def _run_lstm(self, rnn: nn.LSTM, features: Tensor, state: Nested, reset: Tensor) -> tuple[Tensor, Nested]:
        """Between two resets of any environment the steps run in one call, which is faster than a call for each.

        Columns that are not reset carry their state over the cut.
        """
        kept = tuple(state[name].unsqueeze(0) for name in self._names)
        steps = features.shape[0]
        cuts = [0] if steps == 1 else [0, *(1 + reset[1:].any(1).nonzero().flatten()).tolist()]
        outputs = []
        for start, end in zip(cuts, [*cuts[1:], steps], strict=True):
            begins = reset[start].unsqueeze(-1)
            kept = tuple(part.masked_fill(begins, 0.0) for part in kept)
            output, kept = rnn(features[start:end], kept)
            outputs.append(output)
        joined = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
        return joined, {name: part.squeeze(0) for name, part in zip(self._names, kept, strict=True)}


def gru(projected: Tensor, state: Tensor, reset: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """States h [T, B, H] after each step; x is [T, B, 3H], the state before [B, H], W [3H, H], in the order r, z, n."""
    if torch.is_grad_enabled():
        outputs: Tensor = _GRU.apply(projected, state, reset, weight, bias)  # type: ignore[no-untyped-call]
        return outputs
    return _run(projected, state, reset, weight, bias)[0]


def _run(
    projected: Tensor, state: Tensor, reset: Tensor, weight: Tensor, bias: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The states, and what the backward pass needs: k [T, B, H]; r, z and n side by side [T, B, 3H]; m [T, B, H]."""
    steps, rows, size = *projected.shape[:2], weight.shape[1]
    outputs, kept, memory = (projected.new_empty(steps, rows, size) for _ in range(3))
    active = projected.clone()
    kept[0] = state
    transposed, begins = weight.t(), reset.any(1).tolist()
    for t in range(steps):
        if t > 0:
            kept[t] = outputs[t - 1]
        if begins[t]:
            kept[t].masked_fill_(reset[t].unsqueeze(-1), 0.0)
        recalled = torch.addmm(bias, kept[t], transposed)
        memory[t] = recalled[:, 2 * size :]
        gates, candidate = active[t, :, : 2 * size], active[t, :, 2 * size :]
        gates.add_(recalled[:, : 2 * size]).sigmoid_()
        candidate.addcmul_(gates[:, :size], memory[t]).tanh_()
        torch.lerp(candidate, kept[t], gates[:, size:], out=outputs[t])
    return outputs, kept, active, memory


class _GRU(Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, state: Tensor, reset: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        outputs, *intermediate = _run(projected, state, reset, weight, bias)
        ctx.save_for_backward(reset, weight, *intermediate)
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, Tensor, Tensor]:
        (upstream,) = gradients
        reset, weight, kept, active, memory = ctx.saved_tensors
        steps, _, size = kept.shape
        # what reaches x, and what reaches W k + b: they differ in the candidate's part, which r scales
        projected, recalled = torch.empty_like(active), torch.empty_like(active)
        r, z, n = active.chunk(3, -1)
        # All that doesn't depend on the gradient of later steps is computed for all steps at once.
        by_update = (kept - n) * z * (1 - z)
        by_candidate = (1 - z) * (1 - n * n)
        by_reset = memory * r * (1 - r)
        begins = reset.any(1).tolist()
        following = torch.zeros_like(kept[0])
        for t in reversed(range(steps)):
            total = following.add_(upstream[t])
            to_r, to_z, to_n = projected[t].chunk(3, -1)
            torch.mul(total, by_candidate[t], out=to_n)
            torch.mul(total, by_update[t], out=to_z)
            torch.mul(to_n, by_reset[t], out=to_r)
            recalled[t, :, : 2 * size] = projected[t, :, : 2 * size]
            torch.mul(to_n, r[t], out=recalled[t, :, 2 * size :])
            following = torch.addmm(total.mul_(z[t]), recalled[t], weight)
            if begins[t]:
                following.masked_fill_(reset[t].unsqueeze(-1), 0.0)
        flat = recalled.flatten(0, 1)
        return projected, following, None, flat.t() @ kept.flatten(0, 1), flat.sum(0)
