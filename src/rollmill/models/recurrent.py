"""Memory within an episode; the state is reset where an episode begins."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rollmill.models.gru import gru
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
