"""Update rules: how a matrix per head learns the pairs of a token, and what it answers to the token's query.

A rule says which gates it wants of ``TokenLabels`` and which tensors it keeps, and runs over a sequence or a step. The
mathematics is in ``lifelong.kernels``; here gates become rates, and options become arguments.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lifelong.kernels import (
    ErrorFunction,
    FastWeightOutput,
    MLSTMState,
    MomentumState,
    delta_product_attention,
    fast_weight_attention,
    fast_weight_step,
    huber,
    implicit_write_rate,
    mlstm_attention,
    mlstm_step,
    power,
    replay_window,
)
from lifelong.kernels.types import SQUARED
from lifelong.memory.design import Design
from lifelong.memory.health import is_watched, report_answers, report_write
from lifelong.memory.labels import Gate, Labels
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.rule_layer import Answer, Rule, decay_gate, share_gate


class Retention(nn.Module):
    """log a, the natural logarithm of what is kept before a write: None, [H] of constants, or of a gate of the token.

    Initialisation: a = 1 - 1 / horizon, with the horizons of the design; a gate begins there whatever the token is.
    """

    constant: Tensor | None

    def __init__(self, design: Design, key_width: int) -> None:
        super().__init__()
        self.heads, self.per_channel = design.head_count, design.retention == "per_channel"
        self._horizons = design.horizons(key_width if self.per_channel else 1)
        self.is_learned = design.retention in ("scalar", "per_channel", "pull")
        fixed = nn.functional.logsigmoid((self._horizons - 1.0).log()).float()
        self.register_buffer("constant", fixed if design.retention == "constant" else None, persistent=False)

    def gates(self) -> list[Gate]:
        """What it wants of a token: [H] or [H * Dk], or nothing."""
        return [decay_gate(self._horizons)] if self.is_learned else []

    def forward(self, gates: list[Tensor], like: Tensor) -> Tensor | None:
        """The gates, and a tensor [..., H] -> log a, [..., H] or [..., H, Dk], or None for a = 1."""
        if self.is_learned:
            log_decay = nn.functional.logsigmoid(gates[0])
            return log_decay.unflatten(-1, (self.heads, -1)) if self.per_channel else log_decay
        return None if self.constant is None else self.constant.expand_as(like)


class MatrixRule(Rule):
    """A rule whose kernels have a step of their own."""

    @abstractmethod
    def forward(
        self,
        labels: Labels,
        gates: list[Tensor],
        state: Mapping[str, Tensor],
        reset: Tensor | None,
        is_step: bool = False,
    ) -> Answer:
        """Labels and gates [B, T, ...], in a step [B, ...], reset [B, T] or [B] -> readings, new state."""

    def step(self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None) -> Answer:
        answer: Answer = self(labels, gates, state, reset, is_step=True)
        return answer


class GradientRule(MatrixRule):
    """Every rule of ``Design`` with a sigmoid write gate: a gradient step a pair, bent, damped or with momentum.

    State: ``fast_weights`` [B, H, Dv, Dk]; with momentum ``momentum``, the same; with a window ``window``, its earlier
    pairs and their rates, [B, window - 1, H, Dk + Dv + 1]. With retention=pull, ``fast_weights`` is S - S_0: then
    S - S_0 simply decays, and S k = (S - S_0) k + S_0 k.
    """

    _erases: Tensor

    def __init__(self, design: Design, key_width: int, value_dim: int) -> None:
        super().__init__()
        self.design, self.heads = design, design.head_count
        self.register_buffer("_erases", torch.tensor(design.erases), persistent=False)
        self._erase = design.erases[0] if len(set(design.erases)) == 1 else None
        self.retention = Retention(design, key_width)
        self.error_function: ErrorFunction = SQUARED
        if design.objective == "huber":
            self.error_function = huber(design.huber_threshold)
        elif design.objective == "power":
            self.error_function = power(design.power)
        shape = (self.heads, value_dim, key_width)
        self.reset_state = ResetState(design.reset_state, {"fast_weights": shape})
        if design.retention == "pull":
            self.goal = nn.Parameter(torch.zeros(shape))
        if design.closed_loop:
            self.feedback, self.correction = nn.Parameter(torch.ones(self.heads)), nn.Parameter(torch.zeros(self.heads))
        self._window = design.window if design.objective == "windowed_squared_error" else 1
        others: dict[str, tuple[int, ...]] = {}
        if design.optimiser == "momentum":
            others["momentum"] = shape
        if self._window > 1:
            others["window"] = (self._window - 1, self.heads, key_width + value_dim + 1)
        self.others = ResetState("zero", others)

    def gates(self) -> list[Gate]:
        """Write rates, then decays, then momentum."""
        design, share = self.design, self.design.write_rate / self.design.write_rate_max
        rates = [share_gate(self.heads * design.pairs, share)]
        momentum = [share_gate(self.heads, design.momentum)] if design.optimiser == "momentum" else []
        return [*rates, *self.retention.gates(), *momentum]

    def forward(
        self,
        labels: Labels,
        gates: list[Tensor],
        state: Mapping[str, Tensor],
        reset: Tensor | None,
        is_step: bool = False,
    ) -> Answer:
        design = self.design
        query, key, value = labels[:3]
        rate = design.write_rate_max * gates[0].sigmoid() if design.write_rate_max != 1.0 else gates[0].sigmoid()
        if design.pairs > 1:
            rate = rate.unflatten(-1, (design.pairs, self.heads))
        if design.optimiser == "implicit":
            rate = implicit_write_rate(rate, key)
        log_decay = self.retention(gates[1:], gates[0] if design.pairs == 1 else rate[..., 0, :])
        options: dict[str, Any] = {
            "erase": self._erases if self._erase is None else self._erase,
            "error_function": self.error_function,
            "reset_state": self.reset_state.get("fast_weights"),
            "implementation": design.implementation,
        }
        if design.closed_loop:
            answered = key * self.feedback.sigmoid().unsqueeze(-1)
            options.update(erase_key=answered, error_before_decay=True)
            query = query - self.correction.unsqueeze(-1) * answered
        at_goal = None
        if design.retention == "pull":
            # The error is taken where it is asked for: v - S z = (v - S_0 z) - (S - S_0) z, z being k or d k.
            at_goal = _through(self.goal, query)
            asked = answered if design.closed_loop else key
            value = value - _through(self.goal * self._erases.view(-1, 1, 1), asked)
        if design.pairs > 1 or self._window > 1:
            found, new = self._several(query, key, value, rate, log_decay, state, reset, is_step, options)
        else:
            if design.optimiser == "momentum":
                options["momentum"] = gates[-1].sigmoid()
                before: Any = MomentumState(state["fast_weights"], state["momentum"])
            else:
                before = state["fast_weights"]
            run, name = (fast_weight_step, "state") if is_step else (fast_weight_attention, "initial_state")
            found = run(query, key, value, rate, log_decay, reset=reset, **{name: before}, **options)
            new = {}
            if isinstance(found.state, MomentumState):
                new["momentum"] = found.state.momentum
        weights = found.state.weights if isinstance(found.state, MomentumState) else found.state
        if is_watched():
            shown = labels.value if at_goal is None else labels.value - _through(self.goal, key)
            report_write(key, shown, log_decay, state["fast_weights"], weights)
        return found.output if at_goal is None else found.output + at_goal, {"fast_weights": weights, **new}

    def _several(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        rate: Tensor,
        log_decay: Tensor | None,
        state: Mapping[str, Tensor],
        reset: Tensor | None,
        is_step: bool,
        options: dict[str, Any],
    ) -> tuple[FastWeightOutput, dict[str, Tensor]]:
        """Several writes a token: its own pairs, or those of the window."""
        if is_step:
            query, key, value, rate = (tensor.unsqueeze(1) for tensor in (query, key, value, rate))
            log_decay = None if log_decay is None else log_decay.unsqueeze(1)
            reset = None if reset is None else reset.unsqueeze(1)
        new = {}
        if self._window > 1:
            key, value, rate, new["window"] = replay_window(key, value, rate, self._window, reset, state["window"])
        found = delta_product_attention(
            query, key, value, rate, log_decay, reset, initial_state=state["fast_weights"], **options
        )
        return found._replace(output=found.output.squeeze(1) if is_step else found.output), new


class ExponentialRule(MatrixRule):
    """The matrix memory of xLSTM (Beck et al. 2024): the Hebb rule, written with b = exp(w_b . h + c_b).

        C = a C + b v k^T,  n = a n + b k,  reads  C q / max(|n . q|, 1)

    State: ``fast_weights`` [B, H, Dv + 1, Dk], C and n over exp(``log_scale``) [B, H], so that no exponential
    overflows. The scale does not show in what is read, and the new one carries no gradient.
    """

    def __init__(self, design: Design, key_width: int, value_dim: int) -> None:
        super().__init__()
        self.design, self.heads = design, design.head_count
        self.retention = Retention(design, key_width)
        self.reset_state = ResetState(design.reset_state, {"fast_weights": (self.heads, value_dim + 1, key_width)})
        self.others = ResetState("zero", {"log_scale": (self.heads,)})

    def gates(self) -> list[Gate]:
        """Logarithms of the write rates, then decays."""
        return [Gate(self.heads, torch.full((self.heads,), math.log(self.design.write_rate))), *self.retention.gates()]

    def forward(
        self,
        labels: Labels,
        gates: list[Tensor],
        state: Mapping[str, Tensor],
        reset: Tensor | None,
        is_step: bool = False,
    ) -> Answer:
        log_decay = self.retention(gates[1:], gates[0])
        log_decay = torch.zeros_like(gates[0]) if log_decay is None else log_decay
        memory, scale = state["fast_weights"], state["log_scale"]
        if scale.requires_grad:
            # The kernel takes the scale for a constant; what C and n owe to a given one is a factor of 1.
            memory = memory * (scale - scale.detach()).exp()[..., None, None]
        run = mlstm_step if is_step else mlstm_attention
        found = run(
            *labels[:3],
            gates[0],
            log_decay,
            reset,
            MLSTMState(memory, scale),
            self.design.implementation,
            reset_state=self.reset_state.get("fast_weights"),
        )
        if is_watched():
            # Everything over the new scale: the old memory comes to it from its own.
            least = (-found.state.log_scale).exp().unsqueeze(-1)

            def answer(matrices: Sequence[Tensor]) -> Tensor:
                read = _through(matrices[0], labels.key)
                return read[..., :-1] / read[..., -1:].abs().maximum(least)

            kept = memory * (log_decay + scale - found.state.log_scale).exp()[..., None, None]
            report_answers(labels.value, answer, log_decay, [kept], [found.state.memory])
        return found.output, {"fast_weights": found.state.memory, "log_scale": found.state.log_scale}


def make_rule(design: Design, key_width: int, value_dim: int) -> Rule:
    """The rule of a design for keys and values of these widths."""
    rule = ExponentialRule if design.write_gate == "exponential" else GradientRule
    return rule(design, key_width, value_dim)


def _through(weights: Tensor, vectors: Tensor) -> Tensor:
    """S z: [H, Dv, Dk], [..., H, Dk] -> [..., H, Dv]."""
    return (weights @ vectors.unsqueeze(-1)).squeeze(-1)
