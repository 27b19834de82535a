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
        scaled: Tensor = _ScaleToLength.apply(vectors, length, epsilon)
        return scaled
    return vectors * _factor(vectors, length, epsilon)


def _factor(vectors: Tensor, length: float, epsilon: float) -> Tensor:
    norm = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    factor = norm.square_().add_(epsilon).rsqrt_()
    return factor if length == 1.0 else factor.mul_(length)


class _ScaleToLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, length: float, epsilon: float) -> Tensor:
        factor = _factor(vectors, length, epsilon)
        scaled = vectors * factor
        ctx.save_for_backward(scaled, factor)
        ctx.length = length
        return scaled

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        # dx = f (g - y (y . g) / length^2), with y = f x
        scaled, factor = ctx.saved_tensors
        along = (scaled * gradient).sum(-1, keepdim=True)
        return torch.addcmul(gradient, scaled, along, value=-(ctx.length**-2)).mul_(factor), None, None
