"""LSTM and GRU as memory cores: ``torch.nn.LSTM`` and ``torch.nn.GRU``, as fast with resets inside as without.

The trick. torch's fused sequence call knows no resets; a loop over T, or a PackedSequence of the pieces between
resets (which leaves the fused CPU path and was measured 2 to 15 times slower), would pay for every reset. Instead
each row is lengthened by one blank step in front of every reset, and the blank step *erases the state by the cell's
own equations*: an extra input column, seen by no parameter of the user's, drives the gates to exact zeros
(sigmoid(-1e4) is 0.0 in float32 and float64). Value and gradient of everything before are multiplied by that zero, so
nothing crosses; a row of T steps with R resets costs T + R steps.

A *learned* reset state cannot be written so (a cell writes nothing above 1), and is run as pieces from reset to reset,
all pieces of a power of two together (``run_pieces``).
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import MemoryCore
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.pieces import run_pieces
from lifelong.memory.registry import register_core

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
    """What LSTM and GRU share: options, output projection, initialisation, the state at a reset."""

    recurrence: nn.LSTM | nn.GRU
    _gates_of_blanks: Tensor

    def __init__(
        self,
        dim: int,
        cell: type[nn.LSTM] | type[nn.GRU],
        hidden: int | None,
        layers: int,
        state_names: tuple[str, ...],
        chrono_max: float | None,
        reset_state: str,
    ) -> None:
        super().__init__(dim)
        hidden = dim if hidden is None else hidden
        if hidden < 1 or layers < 1:
            raise ValueError(
                f"a recurrent core needs hidden >= 1 and layers >= 1, not hidden={hidden}, layers={layers}"
            )
        if chrono_max is not None and chrono_max <= 2:
            raise ValueError(f"chrono_max must be above 2 steps, or null, not {chrono_max}")
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
        self.reset_state = ResetState(reset_state, dict.fromkeys(state_names, (layers, hidden)))

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        like = next(self.recurrence.parameters())
        return TensorDict(self.reset_state.initial(batch_size, like, device, dtype), [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        start = self._restored(state, None if reset is None else reset[:, 0])
        if reset is None or not bool(reset[:, 1:].any()):
            return self._without_resets(inputs, *start)
        inner = reset.clone()
        inner[:, 0] = False  # the first one has been seen to
        if self.reset_state.learned:
            return self._in_pieces(inputs, start, inner)
        return self._lengthened(inputs, inner, *start)

    @abstractmethod
    def _without_resets(self, inputs: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        """The sequence call where nothing is reset, from the tensors of a state."""

    @abstractmethod
    def _lengthened(self, inputs: Tensor, reset: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        """The sequence call with a blank step in front of each reset, none of them at the first step."""

    def _in_pieces(self, inputs: Tensor, start: list[Tensor], reset: Tensor) -> tuple[Tensor, TensorDict]:
        batch, steps = reset.shape
        stored = TensorDict({}, [batch, steps])
        for (name, fresh), first in zip(self.initial_state(batch).items(), start, strict=True):
            later = fresh.unsqueeze(1).expand(-1, steps - 1, *fresh.shape[1:])
            stored.set(name, torch.cat([first.unsqueeze(1), later], 1))
        outputs, ends, last = run_pieces(self, inputs, stored, reset)
        return outputs, last[ends % steps == steps - 1]

    def _restored(self, state: TensorDict, reset: Tensor | None) -> list[Tensor]:
        """The tensors of the state, in the order of their names in ``reset_state``."""
        return [self.reset_state.restore(name, state.get(name), reset) for name in self.reset_state.shapes]

    def _weights(self, layer: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w_ih, w_hh, b_ih, b_hh = (getattr(self.recurrence, f"{name}_l{layer}") for name in names)
        return w_ih, w_hh, b_ih, b_hh


def _layers_first(state: Tensor) -> Tensor:
    return state.transpose(0, 1).contiguous()


@register_core("lstm")
class LSTMCore(_ClassicCore):
    """Long short-term memory (Hochreiter and Schmidhuber 1997), computed by ``torch.nn.LSTM``.

        i, f, o = sigmoid(W x + U h + b),  g = tanh(W x + U h + b)
        c = f c + i g,   h = o tanh(c),   output = P h   (P only if ``hidden`` differs from ``dim``)

    Initialisation: recurrent matrices orthogonal, input matrices Xavier-uniform, each gate by itself; biases 0, but
    ``forget_bias`` for the forget gate (1 remembers from the start: Jozefowicz et al. 2015). With ``chrono_max`` in
    its place, b_f = log(U(1, chrono_max - 1)) and b_i = -b_f, so that the units forget over times that are spread
    between 1 step and chrono_max (chrono initialisation: Tallec and Ollivier 2018, eq. 16).

    State: ``hidden`` and ``cell``, [B, layers, hidden].

    Args:
        dim: width of inputs and outputs.
        hidden: width of the state; None for ``dim``.
        layers: number of stacked LSTM layers.
        forget_bias: initial bias of the forget gates, where ``chrono_max`` is None.
        chrono_max: longest time, in steps, over which a unit forgets initially; None for no chrono initialisation.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        layers: int = 1,
        forget_bias: float = 1.0,
        chrono_max: float | None = None,
        reset_state: str = "zero",
    ) -> None:
        super().__init__(dim, nn.LSTM, hidden, layers, ("hidden", "cell"), chrono_max, reset_state)
        if chrono_max is not None and forget_bias != 1.0:
            raise ValueError(f"forget_bias={forget_bias} changes nothing beside chrono_max={chrono_max}; give only one")
        for layer in range(layers):
            to_input, to_forget, *_ = self._weights(layer)[2].data.split(self.hidden)
            to_forget.fill_(forget_bias)
            if chrono_max is not None:
                to_forget.uniform_(1.0, chrono_max - 1.0).log_()
                to_input.copy_(-to_forget)
        # What the two extra inputs do to the gates, in torch's order (i, f, g, o).
        # Erase: i = f = o = 0, hence c = h = 0.
        # Hold, behind a row's last step: i = 0 and f = 1, so c stays to the bit; h is read off the last real step.
        erase = torch.tensor([-_SATURATE, -_SATURATE, 0.0, -_SATURATE])
        hold = torch.tensor([-_SATURATE, _SATURATE, 0.0, -_SATURATE])
        columns = torch.stack([erase, hold], 1).repeat_interleave(self.hidden, 0)
        self.register_buffer("_gates_of_blanks", columns, persistent=False)

    def _without_resets(self, inputs: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        outputs, last = self.recurrence(inputs, tuple(_layers_first(part) for part in start))
        hidden, cell = (part.transpose(0, 1) for part in last)
        return self.output_projection(outputs), TensorDict({"hidden": hidden, "cell": cell}, [len(inputs)])

    def _lengthened(self, inputs: Tensor, reset: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        hidden, cell = (_layers_first(part) for part in start)
        spread = _Lengthened.before(reset, inputs)
        flags = torch.cat([spread.blank, spread.after], 2)
        outputs, last_hidden, last_cell = inputs, [], []
        for layer in range(self.layers):
            w_ih, w_hh, b_ih, b_hh = self._weights(layer)
            weights = [torch.cat([w_ih, self._gates_of_blanks.to(w_ih)], 1), w_hh, b_ih, b_hh]
            lengthened = torch.cat([spread.spread(outputs), flags], 2)
            before = (hidden[layer : layer + 1], cell[layer : layer + 1])
            found, _, after = torch.lstm(lengthened, before, weights, True, 1, 0.0, self.training, False, True)
            outputs = spread.collect(found)
            last_hidden.append(outputs[:, -1])
            last_cell.append(after[0])
        new_state = TensorDict({"hidden": _stack(last_hidden), "cell": _stack(last_cell)}, [len(inputs)])
        return self.output_projection(outputs), new_state

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        hidden, cell = (part.unbind(1) for part in self._restored(state, reset))
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
    Xavier-uniform, each gate by itself; biases 0, but b_z = log(U(1, chrono_max - 1)) with ``chrono_max`` (chrono
    initialisation: Tallec and Ollivier 2018, sect. 2).

    State: ``hidden``, [B, layers, hidden].

    Args:
        dim: width of inputs and outputs.
        hidden: width of the state; None for ``dim``.
        layers: number of stacked GRU layers.
        chrono_max: longest time, in steps, over which a unit forgets initially; None for no chrono initialisation.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    def __init__(
        self,
        dim: int,
        hidden: int | None = None,
        layers: int = 1,
        chrono_max: float | None = None,
        reset_state: str = "zero",
    ) -> None:
        super().__init__(dim, nn.GRU, hidden, layers, ("hidden",), chrono_max, reset_state)
        if chrono_max is not None:
            for layer in range(layers):
                _, to_keep, _ = self._weights(layer)[2].data.split(self.hidden)
                to_keep.uniform_(1.0, chrono_max - 1.0).log_()
        # Gates in torch's order (r, z, n). Erase: r = z = 0 and, with neither input nor bias, n = tanh(0) = 0: h = 0.
        erase = torch.tensor([-_SATURATE, -_SATURATE, 0.0]).repeat_interleave(self.hidden).unsqueeze(1)
        self.register_buffer("_gates_of_blanks", erase, persistent=False)

    def _without_resets(self, inputs: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        outputs, hidden = self.recurrence(inputs, _layers_first(start[0]))
        return self.output_projection(outputs), TensorDict({"hidden": hidden.transpose(0, 1)}, [len(inputs)])

    def _lengthened(self, inputs: Tensor, reset: Tensor, *start: Tensor) -> tuple[Tensor, TensorDict]:
        hidden = _layers_first(start[0])
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
        return self.output_projection(outputs), TensorDict({"hidden": _stack(last_hidden)}, [len(inputs)])

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        hidden = self._restored(state, reset)[0].unbind(1)
        outputs, new_hidden = inputs, []
        for layer in range(self.layers):
            outputs = torch.gru_cell(outputs, hidden[layer], *self._weights(layer))
            new_hidden.append(outputs)
        return self.output_projection(outputs), TensorDict({"hidden": _stack(new_hidden)}, [len(inputs)])


def _stack(layers: list[Tensor]) -> Tensor:
    """[B, hidden] per layer -> [B, layers, hidden], without a copy for one layer."""
    return layers[0].unsqueeze(1) if len(layers) == 1 else torch.stack(layers, 1)
