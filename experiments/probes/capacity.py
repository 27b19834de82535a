"""Capacity: how many pairs does a state of this size hold?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.pairs import CHANCE, ask, draw_keys, draw_values, write_tokens
from lifelong.experiments.probes.probe import SHARE, Curve, Panel, Probe, Progress, curve_of

_LIVES = 64
_COUNTS = [1, 2, 4, 8, 16, 32, 64, 128]


def measure_capacity(
    memory: Memory, generator: torch.Generator, progress: Progress, counts: Sequence[int] = _COUNTS
) -> dict[str, Curve]:
    """N pairs are written one a step, and then every key is asked of a copy of the state."""
    recalled = []
    for count in counts:
        progress(f"{count} pairs")
        keys = draw_keys(_LIVES, count, 0.0, generator)
        values = draw_values(_LIVES, count, generator=generator)
        _, state = memory(write_tokens(keys, values), memory.initial_state(_LIVES))
        recalled.append(ask(memory, state, keys).argmax(-1) == values)
    share = curve_of(list(counts), recalled)
    held = [count * (y - CHANCE) / (1 - CHANCE) for count, y in zip(counts, share.y, strict=True)]
    error = [count * e / (1 - CHANCE) for count, e in zip(counts, share.error, strict=True)]
    return {"share": share, "held": Curve(share.x, held, error)}


CAPACITY = Probe(
    "capacity",
    good="a good memory stays near 1 (left), on the diagonal (right), for as many pairs as possible",
    task="pairs",
    panels={
        "share": Panel(
            "Capacity: share of the pairs recalled",
            "pairs written",
            "share recalled",
            lambda: {"perfect": 1.0, "guessing": CHANCE},
            log_x=True,
            y_limits=SHARE,
        ),
        "held": Panel(
            "Pairs held = pairs written x (share - 1/8) / (7/8)",
            "pairs written",
            "pairs held",
            lambda: {"perfect": Curve([float(count) for count in _COUNTS], [float(count) for count in _COUNTS])},
            log_x=True,
            log_y=True,
            y_limits=(0.5, 200.0),
        ),
    },
    measure=measure_capacity,
    headline=lambda curves: max(curves["held"].y),
    headline_says="most pairs held",
)
