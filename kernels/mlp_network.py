"""The networks that `mlp_memory` trains: one or two layers, with or without residual and layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Weights = tuple[Tensor, ...]  # one matrix [..., out, in] a layer

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NORM_EPSILON = 1e-6


class Network(NamedTuple):
    """What does not change within a call."""

    initial: Weights  # [H, out, in] a layer
    norm: tuple[Tensor, Tensor] | None
    chunk: int
    newton_schulz: int


class Bases(NamedTuple):
    """The weights that gradients of one piece are taken at."""

    base: Weights
    initial: Weights
    born: Tensor | None  # [B, 1, rows, 1] whether a reset of the piece lies before; None: there is none

    def times(self, layer: int, vectors: Tensor) -> Tensor:
        """Layer times the rows of `[B, H, rows, in]`."""
        return self._choose(vectors @ self.base[layer].mT, vectors, self.initial[layer].mT)

    def transposed_times(self, layer: int, vectors: Tensor) -> Tensor:
        return self._choose(vectors @ self.base[layer], vectors, self.initial[layer])

    def repeated(self, times: int) -> Bases:
        return self if self.born is None else self._replace(born=self.born.repeat_interleave(times, 2))

    def last(self) -> Weights:
        """The base of the last row."""
        if self.born is None:
            return self.base
        born = self.born[:, :, -1:]
        return tuple(torch.where(born, new, old) for new, old in zip(self.initial, self.base, strict=True))

    def _choose(self, before: Tensor, vectors: Tensor, initial: Tensor) -> Tensor:
        return before if self.born is None else torch.where(self.born, vectors @ initial, before)


class Pass(NamedTuple):
    """One pass through the network: inputs of its layers, what enters gelu, what leaves the last layer, the result."""

    inputs: list[Tensor]
    hidden: Tensor | None
    last: Tensor
    result: Tensor


def forward(network: Network, times: Callable[[int, Tensor], Tensor], vectors: Tensor) -> Pass:
    inputs, hidden, last = [vectors], None, times(0, vectors)
    if len(network.initial) == 2:
        hidden = last
        inputs.append(torch.nn.functional.gelu(hidden))
        last = times(1, inputs[1])
    if network.norm is None:
        return Pass(inputs, hidden, last, last)
    gain, shift = network.norm
    return Pass(inputs, hidden, last, vectors + _normalise(last) * gain[:, None] + shift[:, None])


def _normalise(vectors: Tensor) -> Tensor:
    return torch.nn.functional.layer_norm(vectors, vectors.shape[-1:], eps=_NORM_EPSILON)


def apply(network: Network, weights: Weights, vectors: Tensor) -> Tensor:
    """f(vectors; weights) for `[B, H, rows, Dk]`."""
    return forward(network, lambda layer, rows: rows @ weights[layer].mT, vectors).result


def pair_gradients(
    network: Network, bases: Bases, key: Tensor, value: Tensor, rate: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Inputs and deltas of every layer, whose outer products are the gradients of the pairs; and the surprise."""
    made = forward(network, bases.times, key)
    error = made.result - value
    delta = error * rate[..., None]
    if network.norm is not None:
        delta = delta * network.norm[0][:, None]
        normal = _normalise(made.last)
        scale = (made.last.var(-1, correction=0, keepdim=True) + _NORM_EPSILON).rsqrt()
        delta = (delta - delta.mean(-1, keepdim=True) - normal * (delta * normal).mean(-1, keepdim=True)) * scale
    deltas = [delta]
    if made.hidden is not None:
        deltas.insert(0, bases.transposed_times(1, delta) * _gelu_slope(made.hidden))
    return made.inputs, deltas, torch.linalg.vector_norm(error, dim=-1)


def _gelu_slope(hidden: Tensor) -> Tensor:
    density = (-0.5 * hidden.square()).exp() / math.sqrt(2 * math.pi)
    return torch.special.ndtr(hidden) + hidden * density


def orthogonalise(matrices: Tensor, iterations: int) -> Tensor:
    """Push singular values of `[..., out, in]` towards one by the Newton-Schulz iteration of Muon (Jordan 2024)."""
    wide = matrices.shape[-2] <= matrices.shape[-1]
    x = matrices if wide else matrices.mT
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    a, b, c = _NEWTON_SCHULZ
    for _ in range(iterations):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if wide else x.mT
