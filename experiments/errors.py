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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x'?" for the nearest of ``known``, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else ""
