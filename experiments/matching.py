"""Cores at equal cost: the width at which a core's state, or its parameters, come nearest to a given size."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from lifelong.experiments.errors import UserError
from lifelong.memory import MemoryCore, core_options, make_core

# Options that change what a core is, and not how wide; of the others the first that moves the cost is the width.
_NOT_WIDTHS = ("layers", "heads", "convolution_taps", "feed_forward")
_STEPS = (1, 2, 4, 8, 16)  # some cores want even widths, or multiples of more
_LARGEST = 1 << 20
NEAR = 0.1  # a miss by more than this share is worth a sentence


@dataclass(frozen=True)
class Match:
    """A core's options with the width found, and what they cost."""

    options: dict[str, Any]
    width: str | None  # the option that was searched over; None where none moves the cost
    state_bytes: int
    parameters: int
    note: str  # how far it is from what was asked for; empty where it is near

    def __str__(self) -> str:
        width = "" if self.width is None else f"{self.width}={self.options[self.width]}, "
        size = f"{width}{self.state_bytes:,} bytes of state, {self.parameters:,} parameters"
        return f"{size} ({self.note})" if self.note else size


def match(
    core_name: str,
    options: dict[str, Any],
    dim: int,
    *,
    state_bytes: int | None = None,
    parameters: int | None = None,
) -> Match:
    """The options of ``core_name`` with its width such that its cost is as near as possible to what is given.

    The width is the first of the core's options, in the order in which it declares them, that moves the cost
    (``head_dim``, ``hidden``, ``state_dim``, a window), leaving out the numbers of layers, heads and taps; cores that
    have none for their parameters are widened by ``feed_forward``. Everything else stays as given. Nothing is
    allocated: cores are built on torch's meta device where they can be.

    Args:
        core_name, options: as ``make_core`` takes them.
        dim: width of the core's inputs and outputs.
        state_bytes: bytes of state of one life; or
        parameters: the number of parameters.

    Raises:
        ValueError: both or none is given, or it is below 1, or the core refuses the options as they are.
    """
    if (state_bytes is None) == (parameters is None):
        raise ValueError("match takes either state_bytes or parameters")
    target = state_bytes if state_bytes is not None else parameters
    assert target is not None
    if target < 1:
        raise ValueError(f"match needs a size of 1 or more, not {target}")
    count = _state_bytes if state_bytes is not None else _parameters

    def cost(**changed: Any) -> int:
        return count(_build(core_name, dim, {**options, **changed}))

    plain = cost()
    option = next((each for each in core_options(core_name) if _moves(cost, each)), None)
    if option is not None:
        chosen: dict[str, Any] = {**options, option: _nearest(lambda width: cost(**{str(option): width}), target)}
    elif parameters is not None and "feed_forward" in core_options(core_name):
        option = "feed_forward"
        chosen = {**options, option: _nearest(lambda hidden: cost(feed_forward=hidden / dim), target) / dim}
    else:
        chosen = dict(options)
    core = _build(core_name, dim, chosen)
    reached = plain if option is None else count(core)
    unit = "bytes of state" if state_bytes is not None else "parameters"
    return Match(chosen, option, _state_bytes(core), _parameters(core), _note(option, reached, target, unit))


def refuse_given_width(matched: Match, words: Iterable[str], matches: str) -> None:
    """Refuse a word that gives the option which is searched over.

    Raises:
        UserError: names the word, and what the option is wanted for.
    """
    for word in words:
        if matched.width is not None and word.startswith(f"memory.{matched.width}="):
            raise UserError(f"{word}: this option is what {matches} is reached by; leave it out")


def _note(option: str | None, reached: int, target: int, unit: str) -> str:
    if reached == 0:
        return f"it has no {unit} to match"
    miss = reached / target - 1.0
    if abs(miss) <= NEAR:
        return ""
    way = "above" if miss > 0 else "below"
    reason = "no option moves it" if option is None else "the nearest it can be"
    return f"{abs(miss):.0%} {way} the {target:,} {unit} asked for: {reason}"


def _moves(cost: Callable[..., int], option: str) -> bool:
    """Whether 32 costs more than 16, both of which any width may be; options of other types are refused."""
    try:
        return option not in _NOT_WIDTHS and cost(**{option: 32}) > cost(**{option: 16})
    except ValueError:
        return False


def _nearest(cost: Callable[[int], int], target: int) -> int:
    """The width whose cost is nearest to ``target``, for a cost that grows with the width."""
    step = _step(cost)
    high = step
    while cost(high) < target and high < _LARGEST:
        high *= 2
    low = high // 2
    while high - low > step:
        middle = (low + high) // 2 // step * step
        low, high = (middle, high) if cost(middle) < target else (low, middle)
    return min((width for width in (low, high) if width >= step), key=lambda width: (abs(cost(width) - target), width))


def _step(cost: Callable[[int], int]) -> int:
    """The widths that a core takes are multiples of this."""
    for step in _STEPS:
        with suppress(ValueError):
            for factor in (1, 2, 3, 5):
                cost(factor * step)
            return step
    raise ValueError(f"no width among the multiples of {', '.join(map(str, _STEPS))} is accepted by this core")


def _build(core_name: str, dim: int, options: dict[str, Any]) -> MemoryCore:
    """The core without its numbers, or, where it cannot be built so, with them; torch's generator is left alone."""
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                return make_core(core_name, dim, **options)
        except (NotImplementedError, RuntimeError):
            return make_core(core_name, dim, **options)


def _state_bytes(core: MemoryCore) -> int:
    return core.state_bytes()


def _parameters(core: MemoryCore) -> int:
    return sum(parameter.numel() for parameter in core.parameters())
