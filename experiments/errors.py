"""A user's mistake ends in one line on stderr and exit code 2."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """What was wrong, what is allowed, the nearest match: one line, for the person who typed it."""


class RunFailed(Exception):
    """A run stopped on a fault of an environment, the arithmetic or the disk: one line that says where the last good
    checkpoint is.
    """


def whole_number(word: str, lowest: int) -> int:
    """The N of ``key=N``, which may be written 1000000 or 1e6.

    Raises:
        UserError: not a whole number, or below ``lowest``.
    """
    _, _, value = word.partition("=")
    try:
        number = float(value)
        whole = int(number) if number == int(number) else None
    except (ValueError, OverflowError):
        whole = None
    if whole is None or whole < lowest:
        raise UserError(f"{word}: must be a whole number, {lowest} or more")
    return whole


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the nearest of ``known``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
