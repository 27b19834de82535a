"""The data that every implementation of the fast-weight operation takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class MomentumState(NamedTuple):
    """State of the rule with momentum: the fast weights and their running update, both `[B, H, Dv, Dk]`."""

    weights: Tensor
    momentum: Tensor


State = Tensor | MomentumState


class FastWeightOutput(NamedTuple):
    """What a fast-weight call returns; a step has no T axis.

    output:   `[B, T, H, Dv]` what was read, in the dtype of `value`
    state:    final state; the same type that `initial_state` takes
    surprise: `[B, T, H]` norm of the prediction error, before any robust error function; differentiable
    """

    output: Tensor
    state: State
    surprise: Tensor


@dataclass(frozen=True, slots=True)
class ErrorFunction:
    """How the prediction error is bent before it is written.

    name `"squared"` writes `e`; `"huber"` writes `e * min(1, parameter / |e|)`, where `|e|` is the Euclidean norm over
    Dv; `"power"` writes `sign(e) |e|^(parameter - 1)`, elementwise. `huber` and `power` make them.
    """

    name: str = "squared"
    parameter: float = 0.0

    def __post_init__(self) -> None:
        if self.name not in ("squared", "huber", "power"):
            raise ValueError(f'an error function must be named squared, huber or power, got "{self.name}"')
        if not isfinite(self.parameter):
            raise ValueError(f"the parameter of an error function must be finite, got {self.parameter}")
        if self.name == "huber" and self.parameter <= 0:
            raise ValueError(f"the parameter of huber must be > 0, got {self.parameter}")
        if self.name == "power" and self.parameter < 1:
            raise ValueError(f"the parameter of power must be >= 1, got {self.parameter}")


SQUARED = ErrorFunction()


@dataclass(frozen=True, slots=True)
class FastWeightCall:
    """One validated call. A step call (`is_step`) holds the same tensors without the T axis.

    For every life and head, at each step t:

        if reset_t:  S, M <- reset_state, 0
        S^-   = S * exp(log_decay_t)                                     (per column if the decay is per channel)
        e     = value_t - erase * (S if error_before_decay else S^-) erase_key_t
        U     = write_rate_t * error_function(e) key_t^T
        S     = S^- + U                                                  (no momentum)
        M     = momentum_t * M + U;  S = S^- + M                         (momentum)
        output_t   = S query_t
        surprise_t = |value_t - (S_previous if error_before_decay else S^-) erase_key_t|   whether `erase` is on or off

    `query`, `key`, `erase_key`, `value` keep the dtype they came in; all else has `state_dtype`.
    No scale is applied to the query.
    """

    query: Tensor  # [B, T, H, Dk]
    key: Tensor  # [B, T, H, Dk], the key that is written with
    value: Tensor  # [B, T, H, Dv]
    write_rate: Tensor  # [B, T, H]
    initial_weights: Tensor  # [B, H, Dv, Dk]
    log_decay: Tensor | None = None  # [B, T, H] or [B, T, H, Dk], natural logarithm, <= 0
    momentum: Tensor | None = None  # [B, T, H], in [0, 1]
    initial_momentum: Tensor | None = None  # [B, H, Dv, Dk], given exactly when `momentum` is
    erase: bool | Tensor = True  # bool, or bool tensor [H]
    erase_key: Tensor | None = None  # [B, T, H, Dk]; None: the key itself
    error_before_decay: bool = False
    error_function: ErrorFunction = SQUARED
    reset: Tensor | None = None  # [B, T] bool
    reset_state: Tensor | None = None  # [H, Dv, Dk]; None: zero
    in_place: bool = False  # steps only: write the new state over the tensors of the old one

    @property
    def is_step(self) -> bool:
        return self.query.dim() == 3

    @property
    def state_dtype(self) -> torch.dtype:
        """float64 if every input is, else float32. Also the dtype in which everything is computed."""
        return self.initial_weights.dtype

    @property
    def per_channel_decay(self) -> bool:
        return self.log_decay is not None and self.log_decay.dim() == self.query.dim()

    @property
    def requires_grad(self) -> bool:
        """Whether autograd would record this call."""
        if not torch.is_grad_enabled():
            return False
        tensors = (
            self.query,
            self.key,
            self.value,
            self.write_rate,
            self.initial_weights,
            self.log_decay,
            self.momentum,
            self.initial_momentum,
            self.erase_key,
            self.reset_state,
        )
        return any(tensor is not None and tensor.requires_grad for tensor in tensors)

    def in_state_dtype(self) -> FastWeightCall:
        """The same call with query, keys and value converted to `state_dtype`."""
        dtype = self.state_dtype
        if self.query.dtype == self.key.dtype == self.value.dtype == dtype and self.erase_key is None:
            return self
        return replace(
            self,
            query=self.query.to(dtype),
            key=self.key.to(dtype),
            value=self.value.to(dtype),
            erase_key=None if self.erase_key is None else self.erase_key.to(dtype),
        )


class Implementation(Protocol):
    """What a module must offer to be named in `implementation=`."""

    def refusal(self, call: FastWeightCall) -> str | None:
        """Why this implementation cannot serve the call, in plain words that end a sentence; None if it can."""

    def attention(self, call: FastWeightCall) -> FastWeightOutput:
        """Serve a sequence call."""

    def step(self, call: FastWeightCall) -> FastWeightOutput:
        """Serve a step call; honours `call.in_place`."""
