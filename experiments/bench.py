"""``lifelong bench [kernels|ppo]``: measurements of this machine, as ratios within one run."""

from __future__ import annotations

import importlib
from collections.abc import Callable

from lifelong.experiments.errors import UserError, did_you_mean

_BENCHES = ("kernels", "ppo")


def bench(arguments: list[str]) -> int:
    """Run the named benchmark with the words that follow it; all of them where none is named."""
    if not arguments:
        return max(_main(name)([]) for name in _BENCHES)
    name, *rest = arguments
    if name not in _BENCHES:
        raise UserError(f"bench {name}: unknown; allowed: {', '.join(_BENCHES)}{did_you_mean(name, _BENCHES)}")
    return int(_main(name)(rest))


def _main(name: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = importlib.import_module(f"lifelong.experiments.bench_{name}").main
    return main
