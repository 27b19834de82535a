"""Checks of options: each error names the option, what came, and what is allowed."""

from __future__ import annotations

from lifelong.memory.registry import did_you_mean
from lifelong.memory.word_hints import elsewhere


def check_word(option: str, word: object, known: list[str]) -> None:
    """Raise ValueError for a word that is not known; it names a core that has the word, or the nearest word."""
    if word not in known:
        hint = elsewhere(option, word) or did_you_mean(word, known)
        raise ValueError(f"{option} must be one of {', '.join(known)}, not {word!r}{hint}")


def check_at_least(least: float, **options: float | None) -> None:
    """Raise ValueError for the first option that is below ``least``; None is let pass."""
    for name, value in options.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} must be {least:g} or more, not {value}")


def check_above(least: float, **options: float | None) -> None:
    """Raise ValueError for the first option that is ``least`` or below; None is let pass."""
    for name, value in options.items():
        if value is not None and not value > least:
            raise ValueError(f"{name} must lie above {least:g}, not {value}")


def check_between(least: float, most: float, hint: str = "", **options: float) -> None:
    """Raise ValueError for the first option that does not lie strictly between the two."""
    for name, value in options.items():
        if not least < value < most:
            raise ValueError(f"{name} must lie between {least:g} and {most:g}, not {value}{hint}")


def check_horizons(shortest: float, longest: float) -> None:
    """Raise ValueError for horizons in the wrong order."""
    if not 1.0 < shortest <= longest:
        raise ValueError(f"horizons need 1 < horizon_min <= horizon_max, not {shortest} and {longest}")
