"""Correlated keys: can pairs be told apart whose keys are much alike?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.pairs import CHANCE, ask, draw_keys, draw_values, write_tokens
from lifelong.experiments.probes.probe import SHARE, Curve, Panel, Probe, Progress, curve_of, value_at

_LIVES, _PAIRS = 64, 8
_CORRELATIONS = [0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 0.98]


def measure_correlated_keys(
    memory: Memory, generator: torch.Generator, progress: Progress, correlations: Sequence[float] = _CORRELATIONS
) -> dict[str, Curve]:
    """Eight pairs are written whose keys have the expected cosine given, and then every key is asked."""
    recalled = []
    for correlation in correlations:
        progress(f"cosine {correlation}")
        keys = draw_keys(_LIVES, _PAIRS, correlation, generator)
        values = draw_values(_LIVES, _PAIRS, generator=generator)
        _, state = memory(write_tokens(keys, values), memory.initial_state(_LIVES))
        recalled.append(ask(memory, state, keys).argmax(-1) == values)
    return {"correlated_keys": curve_of(list(correlations), recalled)}


CORRELATED_KEYS = Probe(
    "correlated_keys",
    good="a good memory stays at 1 to the right",
    task="pairs",
    panels={
        "correlated_keys": Panel(
            f"Correlated keys: {_PAIRS} pairs whose keys are alike",
            "expected cosine between two keys",
            "share recalled",
            lambda: {"perfect": 1.0, "guessing": CHANCE},
            y_limits=SHARE,
        )
    },
    measure=measure_correlated_keys,
    headline=lambda curves: value_at(curves["correlated_keys"], 0.9),
    headline_says="share recalled at cosine 0.9",
)
