"""The parametric core: any point of the design space."""

from __future__ import annotations

from lifelong.memory.design import Design
from lifelong.memory.layered import LayeredCore
from lifelong.memory.rule_layer import RuleLayer
from lifelong.memory.update_rules import make_rule


class ParametricCore(LayeredCore):
    """Layers of fast weights, a matrix per head, trained online on the pairs that the layer makes: by ``Design``."""

    matrices = ("fast_weights",)

    def __init__(self, dim: int, design: Design) -> None:
        value_dim = design.head_dim if design.value_dim is None else design.value_dim
        key_width = design.labels(value_dim).key_width

        def layer() -> RuleLayer:
            return RuleLayer(dim, design, value_dim, make_rule(design, key_width, value_dim))

        super().__init__(dim, design.layers, design.feed_forward, layer)
