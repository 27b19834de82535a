"""LSTM and GRU as memory cores: ``torch.nn.LSTM`` and ``torch.nn.GRU``, as fast with resets inside as without.

The trick. torch's fused sequence call knows no resets; a loop over T, or a PackedSequence of the pieces between
resets (which leaves the fused CPU path and was measured 2 to 15 times slower), would pay for every reset. Instead
each row is lengthened by one blank step in front of every reset, and the blank step *erases the state by the cell's
own equations*: an extra input column, seen by no parameter of the user's, drives the gates to exact zeros
(sigmoid(-1e4) is 0.0 in float32 and float64). Value and gradient of everything before are multiplied by that zero, so
nothing crosses; a row of T steps with R resets costs T + R steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.registry import register_core
from lifelong.memory.resets import clear

# A gate's pre-activation that saturates the sigmoid to exactly 0 or 1, however large the weights' own contribution.
_SATURATE = 1.0e4


class _Lengthened(NamedTuple):
    """Where the steps of a [B, T] batch lie once every row has a blank step in front of each of its resets."""

    length: int  # T + the largest number of resets in a row
    position: Tensor  # [B * T] int64, index of each step in the flattened [B * length]
    blank: Tensor  # [B, length, 1], 1 at the blank steps
    after: Tensor  # [B, length, 1], 1 behind a row's last step

    @classmethod
    def before(cls, reset: Tensor, like: Tensor) -> _Lengthened:
        """Place the blanks for ``reset`` [B, T]; the masks take the dtype of ``like``."""
        batch, steps = reset.shape
        added = reset.cumsum(1)
        length = steps + int(added[:, -1].max())
        position = added + torch.arange(steps, device=reset.device)
        row = torch.arange(batch, device=reset.device).unsqueeze(1) * length
        end = position[:, -1:]
        after = torch.arange(length, device=reset.device) > end
        blank = (~after).scatter(1, position, False)
        return cls(length, (position + row).flatten(), *(mask.unsqueeze(2).to(like.dtype) for mask in (blank, after)))

    def spread(self, steps: Tensor) -> Tensor:
        """[B, T, D] -> [B, length, D], zero at the blanks and behind the last step."""
        batch, _, width = steps.shape
        spread = steps.new_zeros(batch * self.length, width).index_copy_(0, self.position, steps.reshape(-1, width))
        return spread.view(batch, self.length, width)

    def collect(self, spread: Tensor) -> Tensor:
        """[B, length, D] -> [B, T, D]: the inverse of ``spread``."""
        batch, _, width = spread.shape
        return spread.reshape(-1, width).index_select(0, self.position).view(batch, -1, width)


class _ClassicCore(MemoryCore):
    """What LSTM and GRU share: options, output projection, initialisation."""

    recurrence: nn.LSTM | nn.GRU
    _gates_of_blanks: Tensor

    def __init__(self, dim: int, cell: type[nn.LSTM] | type[nn.GRU], hidden: int | None, layers: int) -> None:
        super().__init__(dim)
        hidden = dim if hidden is None else hidden
        if hidden < 1 or layers < 1:
            raise ValueError(
                f"a recurrent core needs hidden >= 1 and layers >= 1, not hidden={hidden}, layers={layers}"
            )
        self.hidden, self.layers = hidden, layers
        self.recurrence = cell(dim, hidden, num_layers=layers, batch_first=True)
        self.output_projection = nn.Identity() if hidden == dim else nn.Linear(hidden, dim)
        for name, parameter in self.recurrence.named_parameters():
            if name.startswith("weight_hh"):
                for gate in parameter.data.split(hidden):
                    nn.init.orthogonal_(gate)
            elif name.startswith("weight_ih"):
                for gate in parameter.data.split(hidden):
                    nn.init.xavier_uniform_(gate)
            else:
                nn.init.zeros_(parameter)

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (getattr(self.recurrence, f"{name}_l{layer}") for name in names)
        return w_ih, w_hh, b_ih, b_hh


def _inner(reset: Tensor | None) -> Tensor | None:
    """The resets behind the first step, or None if there are none; the first only clears the incoming state."""
    if reset is None or not bool(reset[:, 1:].any()):
        return None
    inner = reset.clone()
    inner[:, 0] = False
    return inner


def _layers_first(state: Tensor) -> Tensor:
    return state.transpose(0, 1).contiguous()


@register_core("lstm")
class LSTMCore(_ClassicCore):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), computed by ``torch.nn.LSTM``.

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b)
        c = f c + i g,   h = o tanh(c),   output = P h   (P only if ``hidden`` differs from ``dim``)

    Initialisation: recurrent matrices orthogonal, input matrices Xavier-uniform, each gate by itself; biases 0, but
    ``forget_bias`` for the forget gate (1 remembers from the start: Jozefowicz et al. 2015).

    State: ``hidden`` and ``cell``, [B, layers, hidden].

    Args:
        dim: width of inputs and outputs.
        hidden: width of the state; None for ``dim``.
        layers: number of stacked LSTM layers.
        forget_bias: initial bias of the forget gates.
    """

    def __init__(self, dim: int, hidden: int | None = None, layers: int = 1, forget_bias: float = 1.0) -> None:
        super().__init__(dim, nn.LSTM, hidden, layers)
        for layer in range(layers):
            self._weights(layer)[2].data[self.hidden : 2 * self.hidden] = forget_bias
        # What the two extra inputs do to the gates, in torch's order (i, f, g, o).
        # Erase: i = f = o = 0, hence c = h = 0.
        # Hold, behind a row's last step: i = 0 and f = 1, so c stays to the bit; h is read off the last real step.
        erase = torch.tensor([-_SATURATE, -_SATURATE, 0.0, -_SATURATE])
        hold = torch.tensor([-_SATURATE, _SATURATE, 0.0, -_SATURATE])
        columns = torch.stack([erase, hold], 1).repeat_interleave(self.hidden, 0)
        self.register_buffer("_gates_of_blanks", columns, persistent=False)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        zeros = self._zeros(batch_size, self.layers, self.hidden, device=device, dtype=dtype)
        return TensorDict({"hidden": zeros, "cell": zeros.clone()}, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        first = None if reset is None else reset[:, 0]
        hidden, cell = (_layers_first(clear(state.get(name), first)) for name in ("hidden", "cell"))
        inner = _inner(reset)
        if inner is None:
            outputs, (hidden, cell) = self.recurrence(inputs, (hidden, cell))
        else:
            outputs, hidden, cell = self._lengthened(inputs, hidden, cell, inner)
        new_state = TensorDict({"hidden": hidden.transpose(0, 1), "cell": cell.transpose(0, 1)}, [len(inputs)])
        return self.output_projection(outputs), new_state

    def _lengthened(self, inputs: Tensor, hidden: Tensor, cell: Tensor, reset: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        spread = _Lengthened.before(reset, inputs)
        flags = torch.cat([spread.blank, spread.after], 2)
        outputs, last_hidden, last_cell = inputs, [], []
        for layer in range(self.layers):
            w_ih, w_hh, b_ih, b_hh = self._weights(layer)
            weights = [torch.cat([w_ih, self._gates_of_blanks.to(w_ih)], 1), w_hh, b_ih, b_hh]
            lengthened = torch.cat([spread.spread(outputs), flags], 2)
            start = (hidden[layer : layer + 1], cell[layer : layer + 1])
            found, _, after = torch.lstm(lengthened, start, weights, True, 1, 0.0, self.training, False, True)
            outputs = spread.collect(found)
            last_hidden.append(outputs[:, -1])
            last_cell.append(after[0])
        return outputs, torch.stack(last_hidden), torch.stack(last_cell)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        hidden, cell = (clear(state.get(name), reset).unbind(1) for name in ("hidden", "cell"))
        outputs, new_hidden, new_cell = inputs, [], []
        for layer in range(self.layers):
            outputs, kept = torch.lstm_cell(outputs, (hidden[layer], cell[layer]), *self._weights(layer))
            new_hidden.append(outputs)
            new_cell.append(kept)
        new_state = TensorDict({"hidden": _stack(new_hidden), "cell": _stack(new_cell)}, [len(inputs)])
        return self.output_projection(outputs), new_state


@register_core("gru")
class GRUCore(_ClassicCore):
    """Gated recurrent unit (Cho et al. 2014), computed by ``torch.nn.GRU``:

        r, z = sigmoid(W x + b + U h + d),   n = tanh(W x + b + r (U h + d)),   h = (1 - z) n + z h,   output = P h

    with P only if ``hidden`` differs from ``dim``. Initialisation: recurrent matrices orthogonal, input matrices
    Xavier-uniform, each gate by itself; biases 0.

    State: ``hidden``, [B, layers, hidden].

    Args:
        dim: width of inputs and outputs.
        hidden: width of the state; None for ``dim``.
        layers: number of stacked GRU layers.
    """

    def __init__(self, dim: int, hidden: int | None = None, layers: int = 1) -> None:
        super().__init__(dim, nn.GRU, hidden, layers)
        # Gates in torch's order (r, z, n). Erase: r = z = 0 and, with neither input nor bias, n = tanh(0) = 0: h = 0.
        erase = torch.tensor([-_SATURATE, -_SATURATE, 0.0]).repeat_interleave(self.hidden).unsqueeze(1)
        self.register_buffer("_gates_of_blanks", erase, persistent=False)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        zeros = self._zeros(batch_size, self.layers, self.hidden, device=device, dtype=dtype)
        return TensorDict({"hidden": zeros}, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        hidden = _layers_first(clear(state.get("hidden"), None if reset is None else reset[:, 0]))
        inner = _inner(reset)
        if inner is None:
            outputs, hidden = self.recurrence(inputs, hidden)
        else:
            outputs, hidden = self._lengthened(inputs, hidden, inner)
        return self.output_projection(outputs), TensorDict({"hidden": hidden.transpose(0, 1)}, [len(inputs)])

    def _lengthened(self, inputs: Tensor, hidden: Tensor, reset: Tensor) -> tuple[Tensor, Tensor]:
        spread = _Lengthened.before(reset, inputs)
        real = 1.0 - spread.blank - spread.after
        outputs, last_hidden = inputs, []
        for layer in range(self.layers):
            w_ih, w_hh, b_ih, b_hh = self._weights(layer)
            # The input bias becomes the weight of a column that is 1 at real steps only: a blank step must have none,
            # and must send none of its gradient there.
            columns = [w_ih, b_ih.unsqueeze(1), self._gates_of_blanks.to(w_ih)]
            weights = [torch.cat(columns, 1), w_hh, torch.zeros_like(b_ih), b_hh]
            lengthened = torch.cat([spread.spread(outputs), real, spread.blank], 2)
            found, _ = torch.gru(
                lengthened, hidden[layer : layer + 1], weights, True, 1, 0.0, self.training, False, True
            )
            outputs = spread.collect(found)
            last_hidden.append(outputs[:, -1])
        return outputs, torch.stack(last_hidden)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        hidden = clear(state.get("hidden"), reset).unbind(1)
        outputs, new_hidden = inputs, []
        for layer in range(self.layers):
            outputs = torch.gru_cell(outputs, hidden[layer], *self._weights(layer))
            new_hidden.append(outputs)
        return self.output_projection(outputs), TensorDict({"hidden": _stack(new_hidden)}, [len(inputs)])


def _stack(layers: list[Tensor]) -> Tensor:
    """[B, hidden] per layer -> [B, layers, hidden], without a copy for one layer."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)
