"""A layer around any online learner: labels in front, read-out behind; and the options that all such layers share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.design import READ_GATES, READ_NORMS, check_word, spread_horizons
from lifelong.memory.feature_maps import FEATURE_MAPS
from lifelong.memory.labels import Gate, LabelDesign, Labels, TokenLabels
from lifelong.memory.layered import MemoryLayer
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.read_out import ReadOut
from lifelong.memory.rotary import TURNS


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """What is chosen around an online learner; the words mean what they mean in ``lifelong.memory.design.Design``."""

    layers: int = 1
    heads: int = 4
    head_dim: int = 32
    convolution_taps: int = 4
    key_map: str = "silu"
    query_map: str | None = None
    map_order: int = 2
    unit_keys: bool = True
    turn: str = "none"
    turn_ratio: float | None = None
    read_norm: str = "rms"
    read_gate: str = "silu"
    feed_forward: float = 0.0

    def __post_init__(self) -> None:
        words = [("key_map", FEATURE_MAPS), ("turn", TURNS), ("read_norm", READ_NORMS), ("read_gate", READ_GATES)]
        for option, known in words:
            check_word(option, getattr(self, option), known)
        if self.query_map is not None:
            check_word("query_map", self.query_map, FEATURE_MAPS)
        for option in ("layers", "heads", "head_dim", "map_order"):
            check_above(option, getattr(self, option), 0)
        if self.convolution_taps < 0 or self.convolution_taps == 1:
            raise ValueError(f"convolution_taps must be 0 (no convolution) or 2 or more, not {self.convolution_taps}")
        if self.turn_ratio is not None:
            check_above("turn_ratio", self.turn_ratio, 1)

    def labels(self, value_dim: int) -> LabelDesign:
        """How tokens become labels."""
        return LabelDesign(
            heads=self.heads,
            key_dim=self.head_dim,
            value_dim=value_dim,
            convolution_taps=self.convolution_taps,
            key_map=self.key_map,
            query_map=self.query_map,
            map_order=self.map_order,
            unit_keys=self.unit_keys,
            turns=self.turn,
            turn_ratio=self.turn_ratio,
        )


def check_above(option: str, value: float, least: float) -> None:
    """Raise the ValueError that names the option."""
    if not value > least:
        raise ValueError(f"{option} must lie above {least}, not {value}")


def check_between(option: str, value: float, least: float, most: float) -> None:
    """Raise the ValueError that names the option."""
    if not least < value < most:
        raise ValueError(f"{option} must lie between {least:g} and {most:g}, not {value}")


def check_horizons(shortest: float, longest: float) -> None:
    """Raise ValueError for horizons in the wrong order."""
    if not 1.0 < shortest <= longest:
        raise ValueError(f"horizons need 1 < horizon_min <= horizon_max, not {shortest} and {longest}")


def share_gate(width: int, share: float) -> Gate:
    """A gate whose sigmoid begins at ``share``."""
    return Gate(width, torch.full((width,), share).logit())


def decay_gate(heads: int, shortest: float, longest: float) -> Gate:
    """A gate whose sigmoid begins at the decays 1 - 1 / horizon, with horizons spread over the heads."""
    return Gate(heads, (spread_horizons(heads, shortest, longest) - 1.0).log())


class Rule(nn.Module, ABC):
    """An online learner of a layer: what it keeps of a life, and how it learns and answers."""

    @abstractmethod
    def gates(self) -> list[Gate]:
        """The numbers that it wants of a token."""

    @abstractmethod
    def initial(
        self, batch_size: int, like: Tensor, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> dict[str, Tensor]:
        """What it keeps of new lives; device and dtype are those of ``like`` unless given."""

    @abstractmethod
    def forward(
        self, labels: Labels, gates: list[Tensor], state: Mapping[str, Tensor], reset: Tensor | None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Labels and gates [B, T, ...], reset [B, T] -> readings [B, T, H, Dv], new state."""


class RuleLayer(MemoryLayer):
    """y = x + read_out(rule(labels(x))): labels and read-out as in ``lifelong.memory.design.Design``.

    State: what ``TokenLabels`` and the rule keep, one flat TensorDict.
    """

    def __init__(self, dim: int, options: LayerOptions, value_dim: int, rule: Rule) -> None:
        super().__init__()
        read_gate = [] if options.read_gate == "none" else [Gate(options.heads * value_dim)]
        self._gated = bool(read_gate)
        self.labels = TokenLabels(dim, options.labels(value_dim), [*read_gate, *rule.gates()])
        self.rule = rule
        self.read_out = ReadOut(dim, options.heads, value_dim, options.read_norm, options.read_gate)
        self.reset_state = ResetState("zero", self.labels.shapes(), self.labels.counters())

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        like = self.labels.projection.weight
        state = super().initial_state(batch_size, device, dtype)
        return state.update(self.rule.initial(batch_size, like, device, dtype))

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        labels, new = self.labels(inputs, dict(state.items()), reset)
        return self._through(inputs, labels, new, state, reset)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        labels, new = self.labels.step(inputs, dict(state.items()), reset)
        query, key, value = (each.unsqueeze(1) for each in labels[:3])
        sequence = Labels(query, key, value, [gate.unsqueeze(1) for gate in labels.gates])
        reset = None if reset is None else reset.unsqueeze(1)
        outputs, after = self._through(inputs.unsqueeze(1), sequence, new, state, reset)
        return outputs.squeeze(1), after

    def _through(
        self, inputs: Tensor, labels: Labels, new: dict[str, Tensor], state: TensorDict, reset: Tensor | None
    ) -> tuple[Tensor, TensorDict]:
        gate, gates = (labels.gates[0], labels.gates[1:]) if self._gated else (None, labels.gates)
        readings, learned = self.rule(labels, gates, dict(state.items()), reset)
        return inputs + self.read_out(readings, gate), TensorDict({**new, **learned}, [len(inputs)])
