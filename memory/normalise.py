"""Vectors scaled to a given length, forward and backward in as few passes over memory as torch allows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scale_to_length(vectors: Tensor, length: float, epsilon: float) -> Tensor:
    """y = length * x / sqrt(|x|^2 + epsilon) over the last axis: unit norm for length 1, RMS norm for sqrt(n).

    Smooth at zero, where y = 0. Equal to composing torch operations; with gradients it takes about half their time.
    """
    if torch.is_grad_enabled() and vectors.requires_grad:
        scaled: Tensor = _ScaleToLength.apply(vectors, length, epsilon)[0]
        return scaled
    return vectors * _factor(vectors, length, epsilon)


def _factor(vectors: Tensor, length: float, epsilon: float) -> Tensor:
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    factor = norm.square_().add_(epsilon).rsqrt_()
    return factor if length == 1.0 else factor.mul_(length)


class _ScaleToLength(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, length: float, epsilon: float) -> tuple[Tensor, Tensor]:
        factor = _factor(vectors, length, epsilon)
        return vectors * factor, factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*output)
        ctx.mark_non_differentiable(output[1])
        ctx.length = inputs[1]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        # dx = f (g - y (y . g) / length^2), with y = f x
        scaled, factor = ctx.saved_tensors
        along = (scaled * gradient).sum(-1, keepdim=True)
        return torch.addcmul(gradient, scaled, along, value=-(ctx.length**-2)).mul_(factor), None, None
