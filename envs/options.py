"""Checks of the options of an environment: each error is one line for the person who typed the config."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch

_INT64_MAX = 2**63 - 1


def check_probability(env: str, option: str, value: float) -> float:
    """``value`` as a float, if it is in [0, 1]."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise ValueError(f"{env}: {option}={value!r} is no probability; allowed: 0 to 1")
    return float(value)


def check_count(env: str, option: str, value: int, low: int = 1, high: int = _INT64_MAX) -> int:
    """``value``, if it is an integer in low..high (both included)."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = f"an integer of at least {low}" if high == _INT64_MAX else f"an integer from {low} to {high}"
        raise ValueError(f"{env}: {option}={value!r} is not allowed; allowed: {limit}")
    return value


def check_choice(env: str, option: str, value: str, choices: tuple[str, ...]) -> str:
    """``value``, if it is one of ``choices``."""
    if value not in choices:
        raise ValueError(f"{env}: {option}={value!r} is unknown; allowed: {', '.join(choices)}")
    return value


def check_number(
    env: str,
    option: str,
    value: float,
    above: float | None = None,
    low: float | None = None,
    below: float | None = None,
) -> float:
    """``value`` as a float, if it is finite (and larger than ``above``, at least ``low``, smaller than ``below``)."""
    number = not isinstance(value, bool) and isinstance(value, int | float) and math.isfinite(value)
    too_low = number and ((above is not None and value <= above) or (low is not None and value < low))
    if not number or too_low or (below is not None and value >= below):
        limit = f" above {above:g}" if above is not None else f" of at least {low:g}" if low is not None else ""
        limit += "" if below is None else f"{' and' if limit else ''} below {below:g}"
        raise ValueError(f"{env}: {option}={value!r} is not allowed; allowed: a finite number{limit}")
    return float(value)


def check_flag(env: str, option: str, value: bool) -> bool:
    """``value``, if it is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{env}: {option}={value!r} is not allowed; allowed: true or false")
    return value


def check_list(env: str, option: str, value: Sequence[Any]) -> Sequence[Any]:
    """``value``, if it is a list (or another sequence, but no text)."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(f"{env}: {option}={value!r} is not allowed; allowed: a list")
    return value


def check_device(env: str, device: torch.device | str) -> torch.device:
    """``device``, if it is one that torch knows."""
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f"{env}: device={device!r} is unknown; allowed: cpu, cuda, cuda:1, ...") from None


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown ``word``: the nearest of ``known``, or nothing."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.4)
    return f"; did you mean {near[0]!r}?" if near else ""
