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
    """One pass through the layers: what enters each, what enters gelu, what leaves the last."""

    inputs: list[Tensor]
    hidden: Tensor | None
    last: Tensor


def through_layers(network: Network, times: Callable[[int, Tensor], Tensor], vectors: Tensor) -> Pass:
    """`times(layer, rows)` is that layer's matrix times each row; rows are `[B, H, rows, in]`."""
    inputs = [_input(network, vectors)]
    last = times(0, inputs[0])
    if len(network.initial) == 1:
        return Pass(inputs, None, last)
    inputs.append(_input(network, torch.nn.functional.gelu(last)))
    return Pass(inputs, last, times(1, inputs[1]))


def forward(network: Network, times: Callable[[int, Tensor], Tensor], vectors: Tensor) -> Tensor:
    """f(vectors), with `times` as above."""
    last = through_layers(network, times, vectors).last
    if network.norm is None:
        return last
    gain, shift = network.norm
    normal = torch.nn.functional.layer_norm(last, last.shape[-1:], eps=_NORM_EPSILON)
    return torch.addcmul(vectors + shift, normal, gain)


def _input(network: Network, vectors: Tensor) -> Tensor:
    return torch.nn.functional.pad(vectors, (0, 1), value=1.0) if network.bias else vectors


def apply(network: Network, weights: Weights, vectors: Tensor) -> Tensor:
    """f(vectors; weights) for `[B, H, rows, Dk]`."""
    return forward(network, lambda layer, rows: rows @ weights[layer].mT, vectors)


def pair_gradients(
    network: Network, base: Weights, key: Tensor, value: Tensor, rate: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Inputs and deltas of every layer, whose outer products are the gradients of the pairs; and the surprise."""
    made = through_layers(network, lambda layer, rows: rows @ base[layer].mT, key)
    if network.norm is None:
        error = made.last - value
        delta = error * rate[..., None]
    else:
        gain, shift = network.norm
        centred = made.last - made.last.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + _NORM_EPSILON).rsqrt()
        normal = centred * scale
        error = torch.addcmul(key - value + shift, normal, gain)
        # Through the norm: what lies along it, or is the same for all entries, changes nothing.
        arriving = error * gain
        along = (arriving * normal).mean(-1, keepdim=True)
        delta = (arriving - arriving.mean(-1, keepdim=True) - normal * along) * (scale * rate[..., None])
    deltas = [delta]
    if made.hidden is not None:
        last_layer = base[1][..., :-1] if network.bias else base[1]
        deltas.insert(0, (delta @ last_layer) * _gelu_slope(made.hidden))
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
