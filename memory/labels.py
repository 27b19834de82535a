"""Labels: what a token becomes, so that a memory can be trained on it and asked with it.

Every parametric core, whatever its model and its update rule, makes its pairs here. With x a token of width D:

    h = ShortConvolution(LayerNorm(x))
    q = turn(unit(phi_q(W_q h))),  k = turn(unit(phi_k(W_k h))),  v = W_v h      per head; unit(z) = z / |z|
    further numbers that the core asks for (gates, rates), each linear in h

For another core: build ``TokenLabels(dim, design, gates)``, hold ``shapes()`` and ``counters()`` as (part of) the
state, and call it, or its ``step``, for the ``Labels`` and the new state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lifelong.memory.feature_maps import default_query_map, feature_width, make_feature_map
from lifelong.memory.normalise import scale_to_length
from lifelong.memory.rotary import Rotary, Turning
from lifelong.memory.short_convolution import ShortConvolution

# Under the square root of the norm of a key: small against any learned key.
_EPSILON = 1.0e-6


class Labels(NamedTuple):
    """What T tokens of B lives become; in a step the T axis is absent.

    query: [B, T, H, K], K the width of keys once their feature map has seen them
    key:   [B, T, H, K], or with R > 1 pairs a token [B, T, R, H, K]
    value: [B, T, H, V], or [B, T, R, H, V]
    gates: [B, T, width] each, in the order in which they were asked for
    """

    query: Tensor
    key: Tensor
    value: Tensor
    gates: list[Tensor]


class Gate(NamedTuple):
    """Numbers of a token beside its labels: [..., width], linear in h.

    With ``bias`` [width] they begin as that bias whatever the token is (weights 0), without as ``nn.Linear`` does.
    """

    width: int
    bias: Tensor | None = None


@dataclass(frozen=True)
class LabelDesign:
    """How tokens become labels.

    heads:            memories, H
    key_dim:          width of queries and keys before their feature map
    value_dim:        width of values
    convolution_taps: window of the causal convolution in front, 2 or more; 0 for none
    key_map:          one of ``FEATURE_MAPS``
    query_map:        the same for queries; None for the map of the keys, but the identity beside silu
    map_order:        size of the maps that have one
    unit_keys:        whether queries and keys are scaled to unit length; if not, keys are divided by sqrt(K)
    turns:            one of ``TURNS`` for all heads, or for each
    turn_ratio:       between neighbouring rates of turning; None: rates evenly spaced
    pairs:            keys and values a token, R
    """

    heads: int
    key_dim: int
    value_dim: int
    convolution_taps: int = 0
    key_map: str = "identity"
    query_map: str | None = None
    map_order: int = 2
    unit_keys: bool = True
    turns: str | tuple[str, ...] = "none"
    turn_ratio: float | None = None
    pairs: int = 1

    @property
    def key_width(self) -> int:
        """Width K of queries and keys behind their feature map."""
        return feature_width(self.key_map, self.key_dim, self.map_order)


class TokenLabels(nn.Module):
    """[B, T, D] -> ``Labels``.

    Initialisation: as nn.Linear, biases 0, but for gates with a bias of their own.

    State, under the names that ``shapes`` and ``counters`` give: ``tail`` [B, taps - 1, D] with convolution, and that
    of ``Rotary`` where a head turns. All of it begins as zeros.

    Raises:
        ValueError: maps of queries and keys that end in different widths; an odd width that is to be turned.
    """

    def __init__(self, dim: int, design: LabelDesign, gates: Sequence[Gate] = ()) -> None:
        super().__init__()
        self.design = design
        heads, pairs = design.heads, design.pairs
        self.norm = nn.LayerNorm(dim)
        self.convolution = ShortConvolution(dim, design.convolution_taps) if design.convolution_taps else None
        labels = [heads * design.key_dim, pairs * heads * design.key_dim, pairs * heads * design.value_dim]
        self._widths = [*labels, *(gate.width for gate in gates)]
        # Queries, keys, values and all gates are one matrix: one large product is faster than six small ones.
        self.projection = nn.Linear(dim, sum(self._widths))
        self._initialise(gates, first_row=sum(labels))
        query_map = default_query_map(design.key_map) if design.query_map is None else design.query_map
        self.key_map = make_feature_map(design.key_map, design.key_dim, design.map_order)
        # One map for both where it is the same: random frequencies must be shared.
        same = query_map == design.key_map
        self.query_map = self.key_map if same else make_feature_map(query_map, design.key_dim, design.map_order)
        if self.query_map.width != self.key_map.width:
            raise ValueError(
                f"query_map {query_map!r} makes queries {self.query_map.width} wide and key_map {design.key_map!r} "
                f"keys {self.key_map.width}; use the same map for both, or leave query_map out"
            )
        turns = (design.turns,) * heads if isinstance(design.turns, str) else design.turns
        turned = set(turns) != {"none"}
        if turned and design.key_width % 2 and design.key_width != design.key_dim:
            raise ValueError(
                f"keys are turned in pairs of entries, so their width must be even, not {design.key_width}, which "
                f"key_map={design.key_map} makes of head_dim={design.key_dim} with map_order={design.map_order}; "
                "change one of these, or turn=none"
            )
        self.rotary = Rotary(turns, design.key_width, design.turn_ratio) if turned else None

    @torch.no_grad()
    def _initialise(self, gates: Sequence[Gate], first_row: int) -> None:
        self.projection.bias.zero_()
        for gate in gates:
            if gate.bias is not None:
                self.projection.weight[first_row : first_row + gate.width] = 0.0
                self.projection.bias[first_row : first_row + gate.width] = gate.bias
            first_row += gate.width

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the floating-point tensors of one life's state."""
        shapes = {} if self.rotary is None else self.rotary.shapes()
        if self.convolution is not None:
            shapes["tail"] = (self.convolution.taps - 1, self.projection.in_features)
        return shapes

    def counters(self) -> list[str]:
        """Names of the int64 tensors of the state, one number a life."""
        return [] if self.rotary is None else self.rotary.counters()

    def forward(
        self, inputs: Tensor, state: Mapping[str, Tensor], reset: Tensor | None
    ) -> tuple[Labels, dict[str, Tensor]]:
        """[B, T, D], state as ``shapes`` and ``counters`` say, [B, T] bool or None -> labels, new state."""
        features, turning, new = self.norm(inputs), None, {}
        if self.convolution is not None:
            features, new["tail"] = self.convolution(features, state["tail"], reset)
        if self.rotary is not None:
            turning, turned = self.rotary(state, inputs.shape[1], reset, features.dtype)
            new.update(turned)
        return self._labels(features, turning), new

    def step(
        self, inputs: Tensor, state: Mapping[str, Tensor], reset: Tensor | None
    ) -> tuple[Labels, dict[str, Tensor]]:
        """[B, D], state, [B] bool or None -> labels without the T axis, new state."""
        features, turning, new = self.norm(inputs), None, {}
        if self.convolution is not None:
            features, new["tail"] = self.convolution.step(features, state["tail"], reset)
        if self.rotary is not None:
            turning, turned = self.rotary.step(state, reset, features.dtype)
            new.update(turned)
        return self._labels(features, turning), new

    def _labels(self, features: Tensor, turning: Turning | None) -> Labels:
        design = self.design
        query, key, value, *gates = self._project(features)
        if turning is not None:
            query, key = turning.turn(query, key)
        return Labels(query, key, value.unflatten(-1, self._per_pair(design.value_dim)), gates)

    def _project(self, features: Tensor) -> list[Tensor]:
        """Everything that is a linear function of the token, [..., width] each; queries and keys as they are used."""
        design = self.design
        per_head, per_pair = (design.heads, design.key_dim), self._per_pair(design.key_dim)
        if not torch.is_grad_enabled() and self._elementwise_keys() and design.pairs == 1:
            widths = [self._widths[0] + self._widths[1], *self._widths[2:]]
            pointers, *rest = self.projection(features).split(widths, -1)
            if design.key_map == "silu":
                nn.functional.silu(pointers[..., self._widths[0] :], inplace=True)
            unit = scale_to_length(pointers.unflatten(-1, (2, *per_head)), 1.0, _EPSILON)
            return [*unit.unbind(-3), *rest]
        # With gradients, slices of the result would be copied together again in the backward pass; slices of the
        # weights are small. Measured on [16, 128, 64]: a quarter less time, and no buffer so large that the allocator
        # hands it back to the operating system at every update.
        slices = zip(self.projection.weight.split(self._widths), self.projection.bias.split(self._widths), strict=True)
        query, key, *rest = (nn.functional.linear(features, weight, bias) for weight, bias in slices)
        query = self.query_map(query.unflatten(-1, per_head))
        key = self.key_map(key.unflatten(-1, per_pair))
        if design.unit_keys:
            return [scale_to_length(query, 1.0, _EPSILON), scale_to_length(key, 1.0, _EPSILON), *rest]
        return [query, key * design.key_width**-0.5, *rest]

    def _elementwise_keys(self) -> bool:
        design = self.design
        return design.unit_keys and design.query_map in (None, "identity") and design.key_map in ("identity", "silu")

    def _per_pair(self, width: int) -> tuple[int, ...]:
        heads, pairs = self.design.heads, self.design.pairs
        return (heads, width) if pairs == 1 else (pairs, heads, width)
