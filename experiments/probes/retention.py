"""Retention: is a pair still there after 1, 10, ..., 10^6 steps of a life that goes on?"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.pairs import CHANCE, ask, draw_keys, draw_values, noise_tokens, write_tokens
from lifelong.experiments.probes.probe import SHARE, Curve, Panel, Probe, Progress, curve_of

_LIVES, _PAIRS = 16, 8
_AGES = [1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
_CHUNK = 1024  # steps that are in memory at once
_FORGOTTEN_AFTER = 3  # ages in a row at chance; what is forgotten does not come back


def measure_retention(
    memory: Memory, generator: torch.Generator, progress: Progress, ages: Sequence[int] = _AGES
) -> dict[str, Curve]:
    """Eight pairs are written; then steps of noise go by, and at each age every key is asked of a copy of the state.

    Constant memory. The measurement ends early once recall was at chance, within two standard errors of a guesser, at
    three ages in a row.
    """
    keys = draw_keys(_LIVES, _PAIRS, 0.0, generator)
    values = draw_values(_LIVES, _PAIRS, generator=generator)
    _, state = memory(write_tokens(keys, values), memory.initial_state(_LIVES))
    guess = CHANCE + 2 * (CHANCE * (1 - CHANCE) / values.numel()) ** 0.5
    age, found, at_chance = 0, [], 0
    for until in ages:
        while age < until:
            steps = min(_CHUNK, until - age)
            _, state = memory(noise_tokens(_LIVES, steps, generator), state)
            age += steps
            progress(f"age {age:,}")
        right = ask(memory, state, keys).argmax(-1) == values
        found.append(right)
        at_chance = at_chance + 1 if float(right.double().mean()) <= guess else 0
        if at_chance == _FORGOTTEN_AFTER:
            break
    return {"retention": curve_of(list(ages[: len(found)]), found)}


def _half_life(curves: dict[str, Curve]) -> float:
    """The last age up to which recall stayed above half way between guessing and perfect; 0 if it never was."""
    curve, reached = curves["retention"], 0.0
    for age, share in zip(curve.x, curve.y, strict=True):
        if share < (1 + CHANCE) / 2:
            break
        reached = age
    return reached


RETENTION = Probe(
    "retention",
    good="a good memory stays at 1 to the right end; a curve ends where all is forgotten",
    task="pairs",
    panels={
        "retention": Panel(
            f"Retention: {_PAIRS} pairs, asked while the life goes on",
            "age of the pairs (steps of noise since)",
            "share recalled",
            lambda: {"perfect": 1.0, "guessing": CHANCE},
            log_x=True,
            y_limits=SHARE,
        )
    },
    measure=measure_retention,
    headline=_half_life,
    headline_says="last age with recall above half way from guessing to perfect",
)
