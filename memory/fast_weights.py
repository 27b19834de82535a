"""One layer of parametric attention: a linear model per head, trained online on the pairs that the layer makes.

A fast-weight layer is composed of six choices, and this file keeps them apart:
*labels* (which query, key and value a token becomes), *model* (a matrix per head), *objective* (what one write
improves), *retention* (what is forgotten before a write), *optimiser* (one gradient step of size ``write_rate``), and
*read-out*. ``UpdateRule`` names the choices that differ between the registered cores; the mathematics is in
``lifelong.kernels``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.kernels import FastWeightOutput, fast_weight_attention, fast_weight_step
from lifelong.memory.normalise import scale_to_length
from lifelong.memory.short_convolution import ShortConvolution

# Under the square root of a norm. Keys: small against any learned key. Readings: an empty memory reads zeros, and
# what is read shortly after is not blown up by more than 1/sqrt(1e-5), about 300.
_KEY_EPSILON = 1.0e-6
_READING_EPSILON = 1.0e-5

# What is done to a key before it is scaled to unit length.
KEY_MAPS: dict[str, Callable[[Tensor], Tensor]] = {"identity": lambda key: key, "silu": nn.functional.silu}


@dataclass(frozen=True)
class UpdateRule:
    """What the fast weights S learn from a pair (k, v), written with rate b.

    objective:  ``"squared_error"``  S <- S^- + b (v - S^- k) k^T   the delta rule: a gradient step on |S k - v|^2 / 2
                ``"dot_product"``    S <- S^- + b v k^T             the Hebb rule: a gradient step on -<v, S k>
    horizons:   None for S^- = S, or (shortest, longest) for S^- = a S with a learned, data-dependent decay a per head,
                whose horizon 1 / (1 - a), in steps, starts at geometrically spread values between the two.
    """

    objective: str = "squared_error"
    horizons: tuple[float, float] | None = None


class Labels(NamedTuple):
    """What a token becomes: [..., H, D] each, and per head [..., H] the write rate and the log decay."""

    query: Tensor
    key: Tensor
    value: Tensor
    write_rate: Tensor
    log_decay: Tensor | None
    gate: Tensor  # [..., H * Dv], opens the read-out


class FastWeightLayer(nn.Module):
    """Pre-norm residual layer around one fast-weight memory. With x the input:

        h = ShortConvolution(LayerNorm(x))
        q = unit(W_q h),  k = unit(phi(W_k h)),  v = W_v h             per head, unit(z) = z / |z|
        b = sigmoid(w_b . h + c_b),  log a = logsigmoid(w_a . h + c_a)  per head
        S = update(a S, k, v, b),  o = S q                              ``UpdateRule``; read after write
        y = x + W_o (rms_norm(o) * silu(W_g h))                         norm per head

    phi is ``key_map``: the identity, or silu(z) = z sigmoid(z), after which keys are mostly positive and queries are
    not. Agents learned somewhat sooner with it on three seeds (README, "What was measured").

    Because |k| = 1, one write changes the answer to k by b of the error, and no write can make the squared error
    overshoot.

    Initialisation: w_b = w_a = 0; c_b = logit(write_rate); c_a = log(horizon - 1), so that a = 1 - 1 / horizon, with
    the horizon of head i of H at ``shortest * (longest / shortest) ** (i / (H - 1))`` (one head: the geometric mean).
    Everything else as nn.Linear.

    State: ``fast_weights`` [B, H, Dv, Dk] and, with convolution, ``tail`` [B, taps - 1, D].
    """

    def __init__(
        self,
        dim: int,
        rule: UpdateRule,
        heads: int,
        key_dim: int,
        value_dim: int,
        convolution_taps: int,
        write_rate: float,
        key_map: str,
        implementation: str,
    ) -> None:
        super().__init__()
        self.rule, self.implementation = rule, implementation
        self.key_map = key_map
        self.heads, self.key_dim, self.value_dim = heads, key_dim, value_dim
        self.norm = nn.LayerNorm(dim)
        self.convolution = ShortConvolution(dim, convolution_taps) if convolution_taps else None
        gates = [heads] if rule.horizons is None else [heads, heads]
        self._widths = [heads * key_dim, heads * key_dim, heads * value_dim, heads * value_dim, *gates]
        # Queries, keys, values and all gates are one matrix: one large product is faster than six small ones.
        self.projection = nn.Linear(dim, sum(self._widths))
        self.output_projection = nn.Linear(heads * value_dim, dim)
        with torch.no_grad():
            self.projection.bias.zero_()
            self.projection.weight[-sum(gates) :] = 0.0
            self.projection.bias[-sum(gates) :] = _initial_gates(heads, write_rate, rule.horizons)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        like = self.projection.weight
        device, dtype = device or like.device, dtype or like.dtype
        weights = torch.zeros(batch_size, self.heads, self.value_dim, self.key_dim, device=device, dtype=dtype)
        if self.convolution is None:
            return TensorDict({"fast_weights": weights}, [batch_size])
        tail = torch.zeros(batch_size, self.convolution.taps - 1, like.shape[1], device=device, dtype=dtype)
        return TensorDict({"fast_weights": weights, "tail": tail}, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, T, D] -> [B, T, D]."""
        features, tail = self.norm(inputs), None
        if self.convolution is not None:
            features, tail = self.convolution(features, state.get("tail"), reset)
        return self._through_memory(fast_weight_attention, inputs, features, tail, state, reset)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, D] -> [B, D]."""
        features, tail = self.norm(inputs), None
        if self.convolution is not None:
            features, tail = self.convolution.step(features, state.get("tail"), reset)
        return self._through_memory(fast_weight_step, inputs, features, tail, state, reset)

    def _through_memory(
        self,
        operation: Callable[..., FastWeightOutput],
        inputs: Tensor,
        features: Tensor,
        tail: Tensor | None,
        state: TensorDict,
        reset: Tensor | None,
    ) -> tuple[Tensor, TensorDict]:
        """Labels, write and read, read-out: the same for a sequence and for a step."""
        labels = self._labels(features)
        memory = operation(
            labels.query,
            labels.key,
            labels.value,
            labels.write_rate,
            labels.log_decay,
            None,  # no momentum
            self.rule.objective == "squared_error",
            reset,
            state.get("fast_weights"),
            self.implementation,
        )
        new_state = {"fast_weights": memory.state} if tail is None else {"fast_weights": memory.state, "tail": tail}
        return inputs + self._read_out(memory.output, labels.gate), TensorDict(new_state, [len(inputs)])

    def _labels(self, features: Tensor) -> Labels:
        query, key, value, gate, write_rate, *decay = self._project(features)
        return Labels(
            query,
            key,
            value.unflatten(-1, (self.heads, self.value_dim)),
            write_rate.sigmoid(),
            nn.functional.logsigmoid(decay[0]) if decay else None,
            gate,
        )

    def _project(self, features: Tensor) -> list[Tensor]:
        """Everything that is a linear function of the token, [..., width] each; queries and keys as unit vectors."""
        per_head = (self.heads, self.key_dim)
        if not torch.is_grad_enabled():
            widths = [self._widths[0] + self._widths[1], *self._widths[2:]]
            pointers, *rest = self.projection(features).split(widths, -1)
            if self.key_map == "silu":
                nn.functional.silu(pointers[..., self._widths[0] :], inplace=True)
            unit = scale_to_length(pointers.unflatten(-1, (2, *per_head)), 1.0, _KEY_EPSILON)
            return [*unit.unbind(-3), *rest]
        # With gradients, slices of the result would be copied together again in the backward pass; slices of the
        # weights are small. Measured on [16, 128, 64]: a quarter less time, and no buffer so large that the allocator
        # hands it back to the operating system at every update.
        slices = zip(self.projection.weight.split(self._widths), self.projection.bias.split(self._widths), strict=True)
        query, key, *rest = (nn.functional.linear(features, weight, bias) for weight, bias in slices)
        key = KEY_MAPS[self.key_map](key)
        unit_query, unit_key = (scale_to_length(z.unflatten(-1, per_head), 1.0, _KEY_EPSILON) for z in (query, key))
        return [unit_query, unit_key, *rest]

    def _read_out(self, readings: Tensor, gate: Tensor) -> Tensor:
        normed = scale_to_length(readings, math.sqrt(self.value_dim), self.value_dim * _READING_EPSILON)
        opened: Tensor = self.output_projection(normed.flatten(-2) * nn.functional.silu(gate))
        return opened


def _initial_gates(heads: int, write_rate: float, horizons: tuple[float, float] | None) -> Tensor:
    """Biases of the write rates and, with decay, of the decays: [H] or [2 H]."""
    rates = torch.full((heads,), math.log(write_rate / (1.0 - write_rate)))
    if horizons is None:
        return rates
    return torch.cat([rates, torch.log(spread_horizons(heads, *horizons) - 1.0)])


def spread_horizons(heads: int, shortest: float, longest: float) -> Tensor:
    """``shortest * (longest / shortest) ** (i / (H - 1))`` for the heads i < H; the geometric mean for one."""
    place = torch.linspace(0.0, 1.0, heads, dtype=torch.float64) if heads > 1 else torch.tensor([0.5])
    return (shortest * (longest / shortest) ** place).float()
