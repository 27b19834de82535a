"""Mesa: a memory that answers with the optimum of a regression on its whole life, not with one gradient step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lifelong.kernels import MesaState, mesa_attention
from lifelong.memory.health import is_watched, report_answers
from lifelong.memory.labels import Gate, Labels
from lifelong.memory.layer_options import LayerOptions
from lifelong.memory.learned_reset import RESET_STATES, ResetState
from lifelong.memory.option_checks import check_above, check_at_least, check_between, check_horizons, check_word
from lifelong.memory.registry import register_design
from lifelong.memory.rule_layer import Rule, RuleCore, decay_gate, share_gate, spread_horizons

RETENTIONS = ["none", "scalar"]
IMPLEMENTATIONS = ["auto", "reference", "chunked"]
# Lambda does not fall below: single precision needs it, and so does von Oswald et al.'s own model.
_LEAST_REGULARISER = 0.25


@dataclass(frozen=True, kw_only=True)
class MesaDesign(LayerOptions):
    """Options of ``mesa``.

    head_dim:        width of queries and keys of a head, Dk
    value_dim:       width of the values of a head; None for ``head_dim``
    write_rate:      b at first, between 0 and 1: the weight of a pair in the regression
    regulariser:     Lambda at first, above 0.25
    retention:       none (a = 1), or scalar: a = sigmoid(w_a . h + c_a)
    horizon_min:     horizon 1 / (1 - a) of the fastest head, in steps, at first
    horizon_max:     of the slowest; the others are spread geometrically
    iterations:      of conjugate gradients; None solves directly
    reset_state:     V and H of a new life: zero, or learned (H as L L^T)
    implementation:  of the kernel: auto, reference, chunked

    Raises:
        ValueError: a value out of its range, or an unknown word.
    """

    value_dim: int | None = None
    write_rate: float = 0.5
    regulariser: float = 1.0
    retention: str = "scalar"
    horizon_min: float = 32.0
    horizon_max: float = 1.0e3
    iterations: int | None = None
    reset_state: str = "zero"
    implementation: str = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_word("retention", self.retention, RETENTIONS)
        check_word("reset_state", self.reset_state, RESET_STATES)
        check_word("implementation", self.implementation, IMPLEMENTATIONS)
        check_between(0, 1, write_rate=self.write_rate)
        check_above(_LEAST_REGULARISER, regulariser=self.regulariser)
        check_horizons(self.horizon_min, self.horizon_max)
        check_at_least(1, value_dim=self.value_dim, iterations=self.iterations)


class MomentsReset(ResetState):
    """What a life's moments start with: V_0 as it is, and H_0 = L L^T, so that it is a moment of some keys.

    L begins as 10^-3 times the identity: next to nothing beside Lambda, but at L = 0 there is no slope to learn from.
    """

    def __init__(self, kind: str, shapes: Mapping[str, Sequence[int]]) -> None:
        super().__init__("zero", shapes)
        if kind == "learned":
            # Under names of their own: a ParameterDict has methods `values` and `keys`.
            self.learned["value_moments"] = nn.Parameter(torch.zeros(tuple(shapes["values"])))
            identity = torch.eye(shapes["keys"][-1]).expand(tuple(shapes["keys"]))
            self.learned["key_roots"] = nn.Parameter(1e-3 * identity)

    def get(self, name: str) -> Tensor | None:
        if not self.learned:
            return None
        root = self.learned["key_roots"]
        return root @ root.mT if name == "keys" else self.learned["value_moments"]

    def moments(self) -> MesaState | None:
        """V_0 and H_0, without the batch axis; None for zero."""
        values, keys = self.get("values"), self.get("keys")
        return None if values is None or keys is None else MesaState(values, keys)


class MesaRule(Rule):
    """State: ``values`` [B, H, Dv, Dk] and ``keys`` [B, H, Dk, Dk], the two running moments."""

    reset_state: MomentsReset

    def __init__(self, design: MesaDesign, key_width: int, value_dim: int) -> None:
        super().__init__()
        self.design = design
        # The inverse of softplus, log(e^x - 1), so that no exponential overflows
        above = design.regulariser - _LEAST_REGULARISER
        start = above + math.log(-math.expm1(-above))
        self.regulariser = nn.Parameter(torch.full((design.heads, key_width), start))
        shapes = {"values": (design.heads, value_dim, key_width), "keys": (design.heads, key_width, key_width)}
        self.reset_state, self.others = MomentsReset(design.reset_state, shapes), ResetState("zero", {})

    def gates(self) -> list[Gate]:
        design = self.design
        rate = share_gate(design.heads, design.write_rate)
        if design.retention == "none":
            return [rate]
        return [rate, decay_gate(spread_horizons(design.heads, design.horizon_min, design.horizon_max))]

    def forward(
        self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        regulariser = nn.functional.softplus(self.regulariser) + _LEAST_REGULARISER
        log_decay = nn.functional.logsigmoid(gates[1]) if len(gates) > 1 else None
        before = MesaState(state["values"], state["keys"])
        found = mesa_attention(
            labels.query,
            labels.key,
            labels.value,
            gates[0].sigmoid(),
            regulariser,
            log_decay,
            reset,
            before,
            self.design.implementation,
            iterations=self.design.iterations,
            reset_state=self.reset_state.moments(),
        )

        if is_watched():

            def answer(moments: Sequence[Tensor]) -> Tensor:
                nothing = torch.zeros_like(gates[0])  # written, so that what is read is the answer of the moments
                key, value = labels.key, labels.value
                return mesa_attention(key, key, value, nothing, regulariser, initial_state=MesaState(*moments)).output

            decay = 1.0 if log_decay is None else log_decay.exp().mT.unsqueeze(-1)
            report_answers(labels.value, answer, log_decay, [decay * moment for moment in before], found.state)
        return found.output, found.state._asdict()


@register_design("mesa", MesaDesign, head_dim=16)
class Mesa(RuleCore):
    """Recursive least squares (MesaNet, von Oswald et al. 2025): second order, every pair of a life fitted at once.

        H <- a H + b k k^T,   V <- a V + b v k^T,   o = V (H + Lambda)^{-1} q

    which is S q for S = argmin sum_s w_s |S k_s - v_s|^2 + |S Lambda^{1/2}|^2, w_s = b_s a_{s+1} ... a_t. Lambda is a
    learned diagonal. Keys may be as correlated as they like: what one of them is bound to is not blurred by the
    others. A read solves a system of width Dk, so the cost of a step is Dk^3 / 3 in place of Dk^2: small heads.

    Horizons are shorter than those of other cores because H grows with them, and single precision holds H + Lambda
    only to 10^-7 of the largest moment (``lifelong.kernels.mesa``).

    State per layer: ``values`` [B, H, Dv, Dk], ``keys`` [B, H, Dk, Dk], and that of ``TokenLabels``.
    """

    matrices = ("values",)

    def __init__(self, dim: int, design: MesaDesign) -> None:
        super().__init__(dim, design, design.value_dim, partial(MesaRule, design))
