"""Overwriting: a key gets a new value after the old one was written many times. Which one is answered?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.pairs import CHANCE, VALUES, ask, draw_keys, draw_values, write_tokens
from lifelong.experiments.probes.probe import SHARE, Curve, Panel, Probe, Progress, curve_of, value_at

_LIVES, _KEYS = 64, 4
_REPEATS = [1, 2, 4, 8, 16, 31]


def measure_overwriting(
    memory: Memory, generator: torch.Generator, progress: Progress, repeats: Sequence[int] = _REPEATS
) -> dict[str, Curve]:
    """Four keys are written with their old values ``repeats`` times over, then once each with a new value."""
    new, old = [], []
    for count in repeats:
        progress(f"{count} old writes")
        keys = draw_keys(_LIVES, _KEYS, 0.0, generator)
        before = draw_values(_LIVES, _KEYS, generator=generator)
        after = (before + 1 + torch.randint(VALUES - 1, before.shape, generator=generator)) % VALUES
        tokens = torch.cat([write_tokens(keys, before).repeat(1, count, 1), write_tokens(keys, after)], 1)
        _, state = memory(tokens, memory.initial_state(_LIVES))
        answered = ask(memory, state, keys).argmax(-1)
        new.append(answered == after)
        old.append(answered == before)
    x = list(repeats)
    return {"new": curve_of(x, new), "old": curve_of(x, old)}


OVERWRITING = Probe(
    "overwriting",
    good="a good memory answers the new value (left: 1) and not the old one (right: 0), however often that was written",
    task="pairs",
    panels={
        "new": Panel(
            "Overwriting: the new value, written once",
            "times the old value was written before",
            "share answered with the new value",
            lambda: {"perfect": 1.0, "guessing": CHANCE},
            log_x=True,
            y_limits=SHARE,
        ),
        "old": Panel(
            "The old value, answered by mistake",
            "times the old value was written before",
            "share answered with the old value",
            lambda: {"perfect": 0.0, "guessing": CHANCE},
            log_x=True,
            y_limits=SHARE,
        ),
    },
    measure=measure_overwriting,
    headline=lambda curves: value_at(curves["new"], 16),
    headline_says="share answered with the new value after 16 old writes",
)
