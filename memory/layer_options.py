"""What is chosen around an online learner, whichever it is: how tokens become labels, and how answers are read out."""

from __future__ import annotations

from dataclasses import dataclass

from lifelong.memory.feature_maps import FEATURE_MAPS
from lifelong.memory.labels import LabelDesign
from lifelong.memory.option_checks import check_above, check_at_least, check_word
from lifelong.memory.rotary import TURNS

READ_NORMS = ["rms", "none"]
READ_GATES = ["silu", "sigmoid", "none"]


@dataclass(frozen=True, kw_only=True)
class LayerOptions:
    """Options of every layer of labels, learner and read-out (``lifelong.memory.rule_layer``).

    layers:           layers of the core
    heads:            memories per layer
    head_dim:         width of queries and keys of a head
    convolution_taps: window of the short causal convolution in front of the projections, 2 or more; 0 for none
    key_map:          phi_k, one of ``FEATURE_MAPS``
    query_map:        phi_q; None for key_map, but identity beside silu
    map_order:        size of dpfp, polynomial and random_fourier (``lifelong.memory.feature_maps``)
    unit_keys:        unit(z) = z / |z|; if false, queries are left as they are and keys are divided by sqrt(width)
    turn:             how keys and queries are turned by the time since the last reset (``lifelong.memory.rotary``)
    turn_ratio:       between neighbouring rates of turning, above 1; None for evenly spaced rates, under which keys
                      of head_dim steps in a row are orthogonal
    read_norm:        rms, or none
    read_gate:        silu, sigmoid, or none
    feed_forward:     hidden width of the feed-forward block behind each layer, as a multiple of dim; 0 for none

    Raises:
        ValueError: a value out of its range, or an unknown word.
    """

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
        for option, known in (
            ("key_map", FEATURE_MAPS),
            ("turn", TURNS),
            ("read_norm", READ_NORMS),
            ("read_gate", READ_GATES),
        ):
            check_word(option, getattr(self, option), known)
        if self.query_map is not None:
            check_word("query_map", self.query_map, FEATURE_MAPS)
        check_at_least(1, layers=self.layers, heads=self.head_count, head_dim=self.head_dim, map_order=self.map_order)
        check_above(1, turn_ratio=self.turn_ratio)
        check_at_least(0, feed_forward=self.feed_forward)

    @property
    def head_count(self) -> int:
        """Memories per layer, H."""
        return self.heads

    @property
    def turns(self) -> tuple[str, ...]:
        """How each head turns."""
        return (self.turn,) * self.head_count

    @property
    def counting(self) -> int:
        """How many of the heads, the last ones, count."""
        return 0

    def labels(self, value_dim: int) -> LabelDesign:
        """How tokens become labels."""
        return LabelDesign(
            heads=self.head_count,
            key_dim=self.head_dim,
            value_dim=value_dim,
            convolution_taps=self.convolution_taps,
            key_map=self.key_map,
            query_map=self.query_map,
            map_order=self.map_order,
            unit_keys=self.unit_keys,
            turns=self.turns,
            turn_ratio=self.turn_ratio,
        )
