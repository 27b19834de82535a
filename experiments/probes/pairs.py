"""The task of the recall probes: pairs of a key and a value come by, and keys are asked.

A token is  [ key | value | written | asked key ],  16 + 8 + 1 + 16 numbers: a pair that is to be kept (written = 1),
noise that looks like one (written = 0) or nothing, and the key whose value is to be said, or zeros. Keys are points on
the unit sphere, values one of 8. A step may do both; a pair is asked later than it is written. Guessing is right once
in 8 times.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.experiments.probes.learner import Learner, Memory

KEY, VALUES = 16, 8
TOKEN = 2 * KEY + VALUES + 1
CHANCE = 1.0 / VALUES
STEPS, LIVES = 128, 8  # of a training batch
_LARGEST_POOL = 64


class Stream(NamedTuple):
    """Tokens [B, T, F] and what is right at each step, [B, T] int64; -1 where nothing is asked."""

    tokens: Tensor
    answer: Tensor


def draw_keys(lives: int, count: int, correlation: Tensor | float, generator: torch.Generator) -> Tensor:
    """Unit keys [B, count, 16] whose expected cosine with each other is ``correlation`` (a number, or [B, 1, 1])."""
    correlation = torch.as_tensor(correlation, dtype=torch.float32)
    own = torch.randn(lives, count, KEY, generator=generator)
    common = torch.randn(lives, 1, KEY, generator=generator)
    return torch.nn.functional.normalize(correlation.sqrt() * common + (1 - correlation).sqrt() * own, dim=-1)


def draw_values(*shape: int, generator: torch.Generator) -> Tensor:
    """int64, uniform."""
    return torch.randint(VALUES, shape, generator=generator)


def write_tokens(keys: Tensor, values: Tensor, written: Tensor | float = 1.0) -> Tensor:
    """keys [..., 16], values [...] int64, written [...] -> tokens [..., F] that ask nothing."""
    flag = torch.as_tensor(written, dtype=keys.dtype).expand(values.shape).unsqueeze(-1)
    one_hot = torch.nn.functional.one_hot(values, VALUES).to(keys.dtype)
    return torch.cat([keys, one_hot, flag, torch.zeros_like(keys)], -1)


def ask_tokens(keys: Tensor) -> Tensor:
    """keys [..., 16] -> tokens [..., F] that write nothing."""
    return torch.cat([keys.new_zeros(*keys.shape[:-1], TOKEN - KEY), keys], -1)


def noise_tokens(lives: int, steps: int, generator: torch.Generator) -> Tensor:
    """Tokens [B, T, F] that look like pairs and are not to be kept."""
    keys = draw_keys(lives, steps, 0.0, generator)
    return write_tokens(keys, draw_values(lives, steps, generator=generator), 0.0)


def ask(memory: Memory, state, keys: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
    """What the memory answers to each of keys [B, N, 16], each asked of a copy of the same state: scores [B, N, 8]."""
    lives, count, _ = keys.shape
    copies = state[torch.arange(lives).repeat_interleave(count)]
    scores, _ = memory(ask_tokens(keys).flatten(0, 1).unsqueeze(1), copies)
    return scores.view(lives, count, -1)


def mixed_stream(
    pool: Tensor,
    size: Tensor,
    write_share: Tensor,
    steps: int,
    generator: torch.Generator,
    known: Tensor | None = None,
) -> tuple[Stream, Tensor]:
    """Pairs, noise and questions in random order; keys are bound again and again, and the newest value is right.

    Args:
        pool: keys [B, P, 16], of which life b uses the first ``size[b]``.
        write_share: [B], probability that a step writes.
        known: [B, P] int64, the values bound before, -1 for none; None: nothing is.

    Returns:
        the stream, and what is bound after it.
    """
    lives, places, _ = pool.shape
    bound = torch.full((lives, places), -1) if known is None else known.clone()
    rows = torch.arange(lives)
    chosen = (torch.rand(lives, steps, generator=generator) * size.unsqueeze(1)).long()
    writes = torch.rand(lives, steps, generator=generator) < write_share.unsqueeze(1)
    values = draw_values(lives, steps, generator=generator)
    wish = torch.rand(lives, steps, places, generator=generator)
    answer = torch.full((lives, steps), -1)
    asked = torch.zeros(lives, steps, KEY)
    for t in range(steps):
        is_bound = bound >= 0
        which = wish[:, t].masked_fill(~is_bound, -1.0).argmax(1)
        some = is_bound.any(1)
        answer[:, t] = torch.where(some, bound[rows, which], -1)
        asked[:, t] = pool[rows, which] * some.unsqueeze(1)
        bound[rows, chosen[:, t]] = torch.where(writes[:, t], values[:, t], bound[rows, chosen[:, t]])
    noise = draw_keys(lives, steps, 0.0, generator)
    keys = torch.where(writes.unsqueeze(-1), pool[rows.unsqueeze(1), chosen], noise)
    tokens = write_tokens(keys, values, writes.float())
    tokens[..., -KEY:] = asked
    return Stream(tokens, answer), bound


def training_loss(learner: Learner, generator: torch.Generator) -> Tensor:
    """Cross-entropy of what is asked, over lives that differ in how many keys there are (1 to 64), how alike they are
    (cosine 0 for half the lives, up to 0.95 for the others) and how often something is written.
    """
    size = (_LARGEST_POOL ** torch.rand(LIVES, generator=generator)).round().long()
    share = torch.rand(LIVES, generator=generator).clamp(0.1, 1.0)
    alike = (torch.rand(LIVES, 1, 1, generator=generator) * 2 - 1).clamp(0.0, 0.95)
    pool = draw_keys(LIVES, _LARGEST_POOL, alike, generator)
    stream, _ = mixed_stream(pool, size, share, STEPS, generator)
    scores, _ = learner(stream.tokens, learner.initial_state(LIVES))
    return torch.nn.functional.cross_entropy(scores.flatten(0, 1), stream.answer.flatten(), ignore_index=-1)
