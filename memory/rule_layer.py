"""A layer around any online learner: labels in front, read-out behind."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.labels import Gate, Labels, TokenLabels
from lifelong.memory.layer_options import LayerOptions
from lifelong.memory.layered import LayeredCore, MemoryLayer
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.read_out import ReadOut

# What comes back of a rule: readings [..., H, Dv], new state.
Answer = tuple[Tensor, dict[str, Tensor]]


class Rule(nn.Module, ABC):
    """An online learner of a layer: what it keeps of a life, and how it learns and answers.

    ``reset_state`` states the tensors that a life may start with learned values of, ``others`` those that begin as
    zeros.
    """

    reset_state: ResetState
    others: ResetState

    @abstractmethod
    def gates(self) -> list[Gate]:
        """The numbers that it wants of a token."""

    def initial(
        self, batch_size: int, like: Tensor, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> dict[str, Tensor]:
        """What it keeps of new lives; device and dtype are those of ``like`` unless given."""
        learned = self.reset_state.initial(batch_size, like, device, dtype)
        return {**learned, **self.others.initial(batch_size, like, device, dtype)}

    @abstractmethod
    def forward(self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None) -> Answer:
        """Labels and gates [B, T, ...], reset [B, T] -> readings [B, T, H, Dv], new state."""

    def step(self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None) -> Answer:
        """The same without the T axis. Here: as a sequence of one step."""
        query, key, value = (each.unsqueeze(1) for each in labels[:3])
        gates = [gate.unsqueeze(1) for gate in gates]
        reset = None if reset is None else reset.unsqueeze(1)
        readings, new = self(Labels(query, key, value, []), gates, state, reset)
        return readings.squeeze(1), new


class RuleLayer(MemoryLayer):
    """y = x + read_out(rule(labels(x))): labels and read-out as in ``lifelong.memory.design.Design``.

    State: what ``TokenLabels`` and the rule keep, one flat TensorDict.
    """

    def __init__(self, dim: int, options: LayerOptions, value_dim: int, rule: Rule) -> None:
        super().__init__()
        heads = options.head_count
        read_gate = [] if options.read_gate == "none" else [Gate(heads * value_dim)]
        self._gated = bool(read_gate)
        self.labels = TokenLabels(dim, options.labels(value_dim), [*read_gate, *rule.gates()])
        self.rule = rule
        self.read_out = ReadOut(dim, heads, value_dim, options.read_norm, options.read_gate, options.counting)
        self.reset_state = ResetState("zero", self.labels.shapes(), self.labels.counters())

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        learned = self.rule.initial(batch_size, self.labels.projection.weight, device, dtype)
        return TensorDict(learned, [batch_size]).update(super().initial_state(batch_size, device, dtype))

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        return self._run(inputs, state, reset, is_step=False)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        return self._run(inputs, state, reset, is_step=True)

    def _run(self, inputs: Tensor, state: TensorDict, reset: Tensor | None, is_step: bool) -> tuple[Tensor, TensorDict]:
        kept = dict(state.items())
        labels, new = (self.labels.step if is_step else self.labels)(inputs, kept, reset)
        gate, gates = (labels.gates[0], labels.gates[1:]) if self._gated else (None, labels.gates)
        readings, learned = (self.rule.step if is_step else self.rule)(labels, gates, kept, reset)
        return inputs + self.read_out(readings, gate), TensorDict({**new, **learned}, [len(inputs)])


class RuleCore(LayeredCore):
    """A stack of rule layers.

    Args:
        dim: width of inputs and outputs.
        options: of all layers.
        value_dim: width of the values of a head; None for ``head_dim``.
        make_rule: the learner of a layer, from the width of keys behind their feature map and that of values.
    """

    def __init__(
        self, dim: int, options: LayerOptions, value_dim: int | None, make_rule: Callable[[int, int], Rule]
    ) -> None:
        values = options.head_dim if value_dim is None else value_dim
        keys = options.labels(values).key_width
        super().__init__(
            dim, options.layers, options.feed_forward, lambda: RuleLayer(dim, options, values, make_rule(keys, values))
        )


def share_gate(width: int, share: float) -> Gate:
    """A gate whose sigmoid begins at ``share``."""
    return Gate(width, torch.full((width,), math.log(share / (1.0 - share))))  # float32 would round a share to 1


def decay_gate(horizons: Tensor) -> Gate:
    """A gate whose sigmoid begins at the decays 1 - 1 / horizon, in steps: sigmoid(log(horizon - 1)) is that."""
    return Gate(len(horizons), (horizons - 1.0).log().float())


def spread_horizons(count: int, shortest: float, longest: float) -> Tensor:
    """``shortest * (longest / shortest) ** (i / (n - 1))`` for i < n; the geometric mean for one. In float64, which
    tells a horizon next to 1 from 1."""
    place = torch.linspace(0.0, 1.0, count, dtype=torch.float64) if count > 1 else torch.full((1,), 0.5).double()
    return shortest * (longest / shortest) ** place
