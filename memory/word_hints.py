"""Across design spaces: which core has a word that this one lacks, and which options need another word to matter.

The parametric cores fall into three spaces, with an implementation each: a matrix per head (``design``), a small
network (``network_memory``), and the regression on a whole life (``mesa``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

_NETWORK_WITH_MUON = "memory=atlas, or memory=ttt_linear memory.optimiser=muon"

# Option and word: the words of a command line that choose a core which has it.
ELSEWHERE: dict[tuple[str, object], str] = {
    ("model", "matrix"): "memory=ttt_linear",
    ("model", "mlp"): "memory=ttt_mlp, or memory=titans_mlp",
    ("objective", "dot_product"): "memory=linear_attention",
    ("objective", "squared_error"): "memory=gated_delta",
    ("objective", "windowed_squared_error"): "memory=omega",
    ("objective", "huber"): "memory=huber_delta",
    ("objective", "power"): "memory=gated_delta memory.objective=power",
    ("retention", "constant"): "memory=retention",
    ("retention", "per_channel"): "memory=kda",
    ("retention", "pull"): "memory=titans_mlp, or memory=gated_delta memory.retention=pull",
    ("optimiser", "implicit"): "memory=longhorn",
    ("optimiser", "momentum"): "memory=momentum_delta, or memory=titans_mlp",
    ("optimiser", "muon"): _NETWORK_WITH_MUON,
    ("optimiser", "newton_schulz"): _NETWORK_WITH_MUON,
    ("optimiser", "second_order"): "memory=mesa",
    ("write_gate", "exponential"): "memory=mlstm",
}


def elsewhere(option: str, word: object) -> str:
    """The end of an error message: a core that has the word for this option, or nothing if the table has none."""
    core = ELSEWHERE.get((option, word)) if isinstance(word, str) else None
    return "" if core is None else f"; {option}={word} is to be had with {core}"


def _turns(design: Any) -> bool:
    return any(turn != "none" for turn in design.turns)


def _has_map_of_a_size(design: Any) -> bool:
    return not {design.key_map, design.query_map}.isdisjoint(["dpfp", "polynomial", "random_fourier"])


def _has_head(design: Any, wanted: Callable[[Any], bool]) -> bool:
    """Whether one of its heads is of a kind that is ``wanted``; where heads have no kinds, all of them are."""
    return any(map(wanted, design.kinds)) if hasattr(design, "kinds") else True


# Option: what gives it a meaning, in words, and whether a design has that.
NEEDED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "turn_ratio": ("heads that turn (turn=with, against or learned)", _turns),
    "map_order": ("key_map=dpfp, polynomial or random_fourier", _has_map_of_a_size),
    "window": ("objective=windowed_squared_error", lambda design: design.objective == "windowed_squared_error"),
    "huber_threshold": ("objective=huber", lambda design: design.objective == "huber"),
    "power": ("objective=power", lambda design: design.objective == "power"),
    "momentum": ("optimiser=momentum or muon", lambda design: design.optimiser in ("momentum", "muon")),
    "newton_schulz": ("optimiser=muon", lambda design: design.optimiser == "muon"),
    "hidden": ("model=mlp", lambda design: design.model == "mlp"),
    "write_rate_max": ("write_gate=sigmoid", lambda design: design.write_gate == "sigmoid"),
    "counting_horizon": ("a counting head", lambda design: _has_head(design, lambda kind: kind.counts)),
    "turn": ("a plain head; others turn by their kind", lambda design: _has_head(design, lambda kind: not kind.turn)),
    "read_norm": ("a head that does not count", lambda design: _has_head(design, lambda kind: not kind.counts)),
}


def check_all_matter(design: Any, defaults: Mapping[str, Any]) -> None:
    """Refuse an option that was changed from the core's default and changes nothing.

    Horizons are let pass: with retention=none they change nothing either, but whoever compares retentions gives all
    of them the same.

    Raises:
        ValueError: names the option and what it needs.
    """
    for option, (needed, has) in NEEDED.items():
        if option in defaults and getattr(design, option) != defaults[option] and not has(design):
            raise ValueError(
                f"{option}={getattr(design, option)} changes nothing here: it needs {needed}; leave it out, or at "
                f"{defaults[option]}"
            )
