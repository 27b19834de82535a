"""The networks that `mlp_memory` trains: one or two layers, with or without biases, residual and layer norm."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Weights = tuple[Tensor, ...]  # one matrix [..., out, in] a layer; with biases the last column is one

_NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
_NORM_EPSILON = 1e-6


class Network(NamedTuple):
    """What does not change within a call."""

    initial: Weights  # [H, out, in] a layer
    norm: tuple[Tensor, Tensor] | None  # gain and shift [H, 1, Dv]
    bias: bool
    pull: bool  # decay is towards the initial weights
    chunk: int
    newton_schulz: int


class Pass(NamedTuple):
    """One pass through the network: inputs of its layers, what enters gelu, what leaves the last layer, the result."""

    inputs: list[Tensor]
    hidden: Tensor | None
    last: Tensor
    result: Tensor


def forward(network: Network, times: Callable[[int, Tensor], Tensor], vectors: Tensor) -> Pass:
    """`times(layer, rows)` is that layer's matrix times each row; rows are `[B, H, rows, in]`."""
    inputs, hidden = [_input(network, vectors)], None
    last = times(0, inputs[0])
    if len(network.initial) == 2:
        hidden = last
        inputs.append(_input(network, torch.nn.functional.gelu(hidden)))
        last = times(1, inputs[1])
    if network.norm is None:
        return Pass(inputs, hidden, last, last)
    gain, shift = network.norm
    normal = torch.nn.functional.layer_norm(last, last.shape[-1:], eps=_NORM_EPSILON)
    return Pass(inputs, hidden, last, torch.addcmul(vectors + shift, normal, gain))


def _input(network: Network, vectors: Tensor) -> Tensor:
    return torch.nn.functional.pad(vectors, (0, 1), value=1.0) if network.bias else vectors


def apply(network: Network, weights: Weights, vectors: Tensor) -> Tensor:
    """f(vectors; weights) for `[B, H, rows, Dk]`."""
    return forward(network, lambda layer, rows: rows @ weights[layer].mT, vectors).result


def pair_gradients(
    network: Network, base: Weights, key: Tensor, value: Tensor, rate: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Inputs and deltas of every layer, whose outer products are the gradients of the pairs; and the surprise."""
    made = forward(network, lambda layer, rows: rows @ base[layer].mT, key)
    error = made.result - value
    delta = error * rate[..., None]
    if network.norm is not None:
        delta = _through_norm(made.last, delta * network.norm[0])
    deltas = [delta]
    if made.hidden is not None:
        last_layer = base[1][..., :-1] if network.bias else base[1]
        deltas.insert(0, (delta @ last_layer) * _gelu_slope(made.hidden))
    return made.inputs, deltas, torch.linalg.vector_norm(error, dim=-1)


def _through_norm(last: Tensor, delta: Tensor) -> Tensor:
    """The gradient at the input of the layer norm, from that at its output."""
    centred = last - last.mean(-1, keepdim=True)
    scale = (centred.square().mean(-1, keepdim=True) + _NORM_EPSILON).rsqrt()
    normal = centred * scale
    along = (delta * normal).mean(-1, keepdim=True)
    return (delta - delta.mean(-1, keepdim=True) - normal * along) * scale


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
