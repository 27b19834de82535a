"""Stable Hadamard memory: a matrix that is rescaled entry by entry before each write."""

from __future__ import annotations

from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lifelong.memory.layered import LayeredCore, MemoryLayer
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core
from lifelong.memory.resets import clear
from lifelong.memory.rotary import positions


class SHMLayer(MemoryLayer):
    """See ``SHMCore``."""

    def __init__(self, dim: int, width: int, rows: int, reset_state: str) -> None:
        super().__init__()
        self.width = width
        self.norm = nn.LayerNorm(dim)
        self.projection = nn.Linear(dim, 4 * width + 1, bias=False)  # key, query, value, v_c, eta
        self.theta = nn.Parameter(torch.empty(rows, width))
        nn.init.xavier_uniform_(self.theta)
        self.shortcut = nn.Linear(dim, width)
        self.output_projection = nn.Linear(width, dim)
        self.reset_state = ResetState(reset_state, {"memory": (width, width)}, ["position"])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        features = self.norm(inputs)
        position = positions(state.get("position"), inputs.shape[1], reset)
        read, memory = _HadamardMemory.apply(
            *self._labels(features, position), reset, state.get("memory"), self.reset_state.get("memory")
        )
        new_state = TensorDict({"memory": memory, "position": position[:, -1] + 1}, [len(inputs)])
        return self._block(inputs, features, read), new_state

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        features = self.norm(inputs)
        position = self.reset_state.restore("position", state.get("position"), reset)
        memory = self.reset_state.restore("memory", state.get("memory"), reset)
        query, key, value, theta, control = self._labels(features, position)
        memory = torch.addcmul(_outer(value, key), memory, 1.0 + _outer(theta, control).tanh())
        read = (memory @ query.unsqueeze(-1)).squeeze(-1)
        new_state = TensorDict({"memory": memory, "position": position + 1}, [len(inputs)])
        return self._block(inputs, features, read), new_state

    def _labels(self, features: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """q, k, eta v, theta_l and v_c, [..., m] each."""
        *pointers, value, control, rate = self.projection(features).split([*[self.width] * 4, 1], -1)
        key, query = (positive / (1.0e-5 + positive.sum(-1, keepdim=True)) for positive in (p.relu() for p in pointers))
        theta = self.theta[scatter_rows(position, len(self.theta))]
        return query, key, rate.sigmoid() * value, theta, control

    def _block(self, inputs: Tensor, features: Tensor, read: Tensor) -> Tensor:
        return inputs + self.output_projection(read + self.shortcut(features))


def scatter_rows(position: Tensor, rows: int) -> Tensor:
    """A number in [0, rows) for each life step [...] int64, as good as drawn: bits mixed by products and shifts."""
    mixed = (position + 1) * 0x9E3779B1 & 0xFFFFFFFF
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    return (mixed ^ mixed >> 13) % rows


def _outer(a: Tensor, b: Tensor) -> Tensor:
    return a.unsqueeze(-1) * b.unsqueeze(-2)


class _HadamardMemory(torch.autograd.Function):
    """query, key, value, theta, control [B, T, m], reset [B, T] or None, start [B, m, m], reset state [m, m] or None ->
    what is read [B, T, m], and the last memory.

    A loop over time: calibrations go up to 2, whose products over a long sequence no scan can hold. They are worked
    out again on the way back, in place of stored: what a step touches stays in the processor's cache.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        theta: Tensor,
        control: Tensor,
        reset: Tensor | None,
        start: Tensor,
        fresh: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        labels = (query, key, value, theta, control)
        batch, steps, width = query.shape
        memories, readings = query.new_empty(steps, batch, width, width), []
        memory = start
        for t, (q, k, v, row, c) in enumerate(zip(*(label.unbind(1) for label in labels), strict=True)):
            memory = _restored(memory, None if reset is None else reset[:, t], fresh)
            calibration = _outer(row, c).tanh_().add_(1.0)
            memory = torch.mul(memory, calibration, out=memories[t]).addcmul_(v.unsqueeze(-1), k.unsqueeze(-2))
            readings.append(torch.bmm(memory, q.unsqueeze(-1)).squeeze(-1))
        ctx.save_for_backward(*labels, reset, start, fresh, memories)
        return torch.stack(readings, 1), memory.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_readings: Tensor, of_memory: Tensor) -> tuple[Tensor | None, ...]:
        *labels, reset, start, fresh, memories = ctx.saved_tensors
        of_fresh = None if fresh is None else torch.zeros_like(fresh)
        arriving, gradients = of_memory.clone(), []
        steps = list(zip(*(each.unbind(1) for each in [*labels, of_readings]), strict=True))
        for t in reversed(range(len(steps))):
            q, k, v, row, c, of_reading = steps[t]
            flags = None if reset is None else reset[:, t]
            before = _restored(memories[t - 1] if t else start, flags, fresh)
            arriving.addcmul_(of_reading.unsqueeze(-1), q.unsqueeze(-2))
            bent = _outer(row, c).tanh_()
            of_bent = torch.ops.aten.tanh_backward(arriving * before, bent)
            sides = ((memories[t].mT, of_reading), (arriving.mT, v), (arriving, k), (of_bent, c), (of_bent.mT, row))
            gradients.append([torch.bmm(matrix, side.unsqueeze(-1)).squeeze(-1) for matrix, side in sides])
            arriving.addcmul_(arriving, bent)
            if flags is not None:
                if of_fresh is not None:
                    of_fresh += arriving[flags].sum(0)
                arriving = clear(arriving, flags)
        of_labels = [torch.stack(each[::-1], 1) for each in zip(*gradients, strict=True)]
        return *of_labels, None, arriving, of_fresh


def _restored(memory: Tensor, reset: Tensor | None, fresh: Tensor | None) -> Tensor:
    """``memory`` [B, m, m] with the rows of ``reset`` [B] put to ``fresh`` [m, m], or zero."""
    if reset is None or fresh is None:
        return clear(memory, reset)
    return torch.where(reset.view(-1, 1, 1), fresh, memory)


@register_core("shm")
class SHMCore(LayeredCore):
    """Stable Hadamard memory (Le, Do, Nguyen, Gupta, Venkatesh 2024, eq. 4 to 10), in residual blocks. With u =
    LayerNorm(x):

        k = relu(W_k u) / sum,  q = relu(W_q u) / sum,  v = W_v u,  eta = sigmoid(w_eta . u)
        C = 1 + tanh(theta_l (W_c u)^T)                                calibration, entries in (0, 2)
        M <- M * C + eta v k^T,   y = x + W_o (M q + W_s u + b_s) + b_o        * entry by entry

    theta_l is a row of a learned matrix. The authors draw l at every step, so that calibrations of neighbouring steps
    are hardly correlated and their products neither vanish nor explode (their proposition 4). A policy that draws
    anew in the update would not be the one that acted; here l is a fixed scatter of the step of the life, so that an
    agent meets the same rows whenever it is run. ``rows=1`` is what the authors' published code does (its draw always
    gives the first row).

    Nothing keeps M bounded but what is learned: a calibration that stays near 2 doubles an entry at every step.

    State: per layer ``memory`` [B, m, m] and ``position`` [B] int64, steps since the last reset.

    Args:
        dim: width of inputs and outputs.
        width: m, of keys and values.
        layers: number of layers.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        rows: number of rows theta_l.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    matrices = ("memory",)

    def __init__(
        self,
        dim: int,
        width: int = 64,
        layers: int = 1,
        feed_forward: float = 0.0,
        rows: int = 128,
        reset_state: str = "zero",
    ) -> None:
        check_at_least(1, width=width, rows=rows)
        super().__init__(dim, layers, feed_forward, lambda: SHMLayer(dim, width, rows, reset_state))
