"""One layer of parametric attention: a matrix per head, trained online on the pairs that the layer makes.

The choices that such a layer is composed of are named in ``lifelong.memory.design``; each has a file of its own:
labels, update_rules (objective, retention, optimiser), read_out.
"""

from __future__ import annotations

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.design import Design
from lifelong.memory.labels import Gate, LabelDesign, TokenLabels
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.read_out import ReadOut
from lifelong.memory.update_rules import make_rule


class FastWeightLayer(nn.Module):
    """y = x + read_out(rule(labels(x))): the equations are those of ``Design``.

    State: what ``TokenLabels`` and the rule keep, one flat TensorDict.
    """

    def __init__(self, dim: int, design: Design) -> None:
        super().__init__()
        kinds = design.kinds
        value_dim = design.head_dim if design.value_dim is None else design.value_dim
        labels = LabelDesign(
            heads=len(kinds),
            key_dim=design.head_dim,
            value_dim=value_dim,
            convolution_taps=design.convolution_taps,
            key_map=design.key_map,
            query_map=design.query_map,
            map_order=design.map_order,
            unit_keys=design.unit_keys,
            turns=design.turns,
            turn_ratio=design.turn_ratio,
            pairs=design.pairs,
        )
        self.rule = make_rule(design, labels.key_width, value_dim)
        counting = sum(kind.counts for kind in kinds)
        gate_width = 0 if design.read_gate == "none" else len(kinds) * value_dim
        self._gated = gate_width > 0
        self.labels = TokenLabels(dim, labels, [*([Gate(gate_width)] if gate_width else []), *self.rule.gates()])
        self.read_out = ReadOut(dim, len(kinds), value_dim, design.read_norm, design.read_gate, counting)
        others = {**self.labels.shapes(), **self.rule.shapes()}
        self._other_states = ResetState("zero", others, self.labels.counters())

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        like = self.labels.projection.weight
        state = self.rule.reset_state.initial(batch_size, like, device, dtype)
        return TensorDict({**state, **self._other_states.initial(batch_size, like, device, dtype)}, [batch_size])

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, T, D] -> [B, T, D]."""
        return self._run(inputs, state, reset, is_step=False)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        """[B, D] -> [B, D]."""
        return self._run(inputs, state, reset, is_step=True)

    def _run(self, inputs: Tensor, state: TensorDict, reset: Tensor | None, is_step: bool) -> tuple[Tensor, TensorDict]:
        kept = dict(state.items())
        labels, new = (self.labels.step if is_step else self.labels)(inputs, kept, reset)
        gate, gates = (labels.gates[0], labels.gates[1:]) if self._gated else (None, labels.gates)
        readings, learned = self.rule(labels, gates, kept, reset, is_step)
        return inputs + self.read_out(readings, gate), TensorDict({**new, **learned}, [len(inputs)])
