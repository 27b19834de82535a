"""The parametric core: any point of the design space."""

from __future__ import annotations

from functools import partial

from lifelong.memory.design import Design
from lifelong.memory.rule_layer import RuleCore
from lifelong.memory.update_rules import make_rule


class ParametricCore(RuleCore):
    """Layers of fast weights, a matrix per head, trained online on the pairs that the layer makes: by ``Design``."""

    matrices = ("fast_weights",)

    def __init__(self, dim: int, design: Design) -> None:
        super().__init__(dim, design, design.value_dim, partial(make_rule, design))
