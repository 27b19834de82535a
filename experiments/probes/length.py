"""Length: does a memory that was trained on lives of 128 steps still work at step 10^5?"""

from __future__ import annotations

from itertools import pairwise

import torch

from lifelong.experiments.probes.learner import Memory
from lifelong.experiments.probes.pairs import CHANCE, STEPS, draw_keys, mixed_stream
from lifelong.experiments.probes.probe import SHARE, Curve, Panel, Probe, Progress, curve_of

_LIVES, _KEYS = 16, 8
_WRITE_SHARE = 0.5
_LONGEST = 100_000
_CHUNK = 1024  # steps that are in memory at once
_EDGES = [4, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000]


def measure_length(
    memory: Memory, generator: torch.Generator, progress: Progress, longest: int = _LONGEST
) -> dict[str, Curve]:
    """One life in which eight keys get new values all the time and one is asked at every step; what was asked between
    two ages is averaged. Constant memory.
    """
    pool = draw_keys(_LIVES, _KEYS, 0.0, generator)
    size, share = torch.full((_LIVES,), _KEYS), torch.full((_LIVES,), _WRITE_SHARE)
    state, known, start, spans = memory.initial_state(_LIVES), None, 0, []
    for first, last in pairwise(edge for edge in [0, *_EDGES] if edge <= longest):
        right, asked = torch.zeros(_LIVES, dtype=torch.int64), torch.zeros(_LIVES, dtype=torch.int64)
        for start in range(first, last, _CHUNK):
            stream, known = mixed_stream(pool, size, share, min(_CHUNK, last - start), generator, known)
            scores, state = memory(stream.tokens, state)
            right += (scores.argmax(-1) == stream.answer).sum(1)
            asked += (stream.answer >= 0).sum(1)
            progress(f"step {start:,}")
        some = asked > 0  # at the very start nothing may be bound yet
        spans.append((last, right[some] / asked[some]))
    return {"length": curve_of([last for last, _ in spans], [share for _, share in spans])}


LENGTH = Probe(
    "length",
    good="a good memory stays level to the right end",
    task="pairs",
    panels={
        "length": Panel(
            f"Length: trained on {STEPS} steps, one life of {_LONGEST:,}",
            f"step of the life (mean since the point before); {_KEYS} keys, rebound all the time",
            "share recalled",
            lambda: {"perfect": 1.0, "guessing": CHANCE},
            log_x=True,
            y_limits=SHARE,
        )
    },
    measure=measure_length,
    headline=lambda curves: curves["length"].y[-1],
    headline_says="share recalled at the last steps of 100,000",
)
