"""Random numbers that belong to a life: a counter-based generator in int64 tensor operations.

A draw is a pure function of (seed, life, stream, column, clock), so a life is the same life whatever its batch
neighbours and on every device, nothing but the clock has to be saved to go on bit for bit, and two policies meet the
same schedule.

Three streams come from one seed by ``numpy.random.SeedSequence(seed).spawn(3)``:

* ``SCHEDULE``: what changes in the world and when; never depends on actions,
* ``WORLD``: what the world shows (contexts, keys, positions),
* ``NOISE``: what disturbs it (reward noise, wind).

The generator is ``u = mix(mix(clock * golden + key_0) + key_1)`` with 128 bits of key per (seed, life, stream, column)
and ``mix`` the bijective finaliser of SplitMix64 (Steele, Lea, Flood 2014, *Fast splittable pseudorandom number
generators*; the multipliers are Stafford's variant 13). Integer overflow wraps in torch on CPU and CUDA, as the
mathematics wants it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


def _signed(value: int) -> int:
    """The int64 with the bits of ``value`` modulo 2^64."""
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_COLUMN = _signed(0xD1342543DE82EF95)


def _constant(value: int) -> Tensor:
    # As a tensor without dimensions, on the CPU, a constant works on every device, and operations with it are faster
    # than with a Python integer: 21 against 35 us for a ``mix`` of 256 x 8 numbers on one CPU thread.
    return torch.tensor(_signed(value), dtype=torch.int64)


_FIRST_MULTIPLIER = _constant(0xBF58476D1CE4E5B9)
_SECOND_MULTIPLIER = _constant(0x94D049BB133111EB)
_SHIFTS_AND_MASKS = [(_constant(shift), _constant((1 << (64 - shift)) - 1)) for shift in (30, 27, 31, 11)]


class Stream(IntEnum):
    """What a random number is for; the order is that of ``SeedSequence.spawn``."""

    SCHEDULE = 0
    WORLD = 1
    NOISE = 2


class Channel(NamedTuple):
    """``width`` independent uniform numbers per life and step, out of one stream."""

    stream: Stream
    width: int = 1


def _logical_shift(bits: Tensor, which: int) -> Tensor:
    # torch shifts int64 arithmetically; without the mask the mix would be no bijection.
    shift, mask = _SHIFTS_AND_MASKS[which]
    return (bits >> shift).bitwise_and_(mask)


def mix(bits: Tensor) -> Tensor:
    """SplitMix64's finaliser, a bijection of int64 in which every input bit flips each output bit half of the time."""
    bits = _logical_shift(bits, 0).bitwise_xor_(bits).mul_(_FIRST_MULTIPLIER)
    bits = _logical_shift(bits, 1).bitwise_xor_(bits).mul_(_SECOND_MULTIPLIER)
    return _logical_shift(bits, 2).bitwise_xor_(bits)


def _unit_interval(bits: Tensor) -> Tensor:
    return _logical_shift(bits, 3).to(torch.float64).mul_(2.0**-53)


def hashed_uniform(key: Tensor, *counters: Tensor) -> Tensor:
    """Uniform numbers in [0, 1), float64, as a pure function of ``key`` and ``counters`` (int64, of one shape)."""
    bits = key
    for counter in counters:
        bits = mix(bits + (counter + 1) * _GOLDEN)
    return _unit_interval(bits)


class Channels:
    """The named channels that an environment draws from at one kind of event (the birth of a life, or a step).

    Args:
        channels: name -> Channel. A channel's numbers do not change when a channel of another stream is added.
    """

    def __init__(self, channels: Mapping[str, Channel]) -> None:
        self.names = list(channels)
        self.widths = [channel.width for channel in channels.values()]
        self._streams = [channel.stream for channel in channels.values() for _ in range(channel.width)]
        seen = dict.fromkeys(Stream, 0)
        self._columns: list[int] = []
        for stream in self._streams:
            self._columns.append(seen[stream])
            seen[stream] += 1

    def keys(self, seed: int, lives: Tensor, event: int) -> Tensor:
        """Keys [B, 2, C] int64 of ``lives`` [B] int64 (indices) for this kind of ``event`` (a small number)."""
        roots = [child.generate_state(2, np.uint64) for child in np.random.SeedSequence(seed).spawn(len(Stream))]
        root = torch.tensor([[_signed(int(word)) for word in roots[s]] for s in self._streams], dtype=torch.int64)
        root = root.reshape(-1, 2).T.to(lives.device)  # [2, C]
        column = torch.tensor(self._columns, dtype=torch.int64, device=lives.device) * _COLUMN  # [C]
        per_life = mix(root[None] + (lives[:, None, None] + 1) * _GOLDEN)  # [B, 2, C]
        return mix(per_life + column + _signed(event * int(_FIRST_MULTIPLIER)))

    def draw(self, keys: Tensor, clock: Tensor) -> dict[str, Tensor]:
        """Uniform numbers in [0, 1), float64 [B, width] by channel name, for keys [B, 2, C] at clock [B] int64."""
        if not self.names:
            return {}
        uniform = _unit_interval(mix(mix((clock * _GOLDEN)[:, None] + keys[:, 0]) + keys[:, 1]))
        return dict(zip(self.names, uniform.split(self.widths, dim=1), strict=True))


def integers(uniform: Tensor, high: int) -> Tensor:
    """Integers in 0..high-1, int64, from uniform numbers in [0, 1); the bias is below high / 2^53."""
    return (uniform * high).to(torch.int64)
