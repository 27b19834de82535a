"""``lifelong bench [kernels|ppo]``: measurements of this machine, as ratios within one run.

Without a name both are run. ``lifelong bench kernels --help`` and ``lifelong bench ppo --help`` say what is measured.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable

from lifelong.experiments.errors import UserError, did_you_mean

BENCHES = ("kernels", "ppo")


def bench(arguments: list[str]) -> int:
    """Run the named benchmark with the words that follow it; all of them where none is named."""
    if not arguments:
        return max(_main(name)([]) for name in BENCHES)
    name, *rest = arguments
    if name not in BENCHES:
        raise UserError(f"bench {name}: unknown; allowed: {', '.join(BENCHES)}{did_you_mean(name, BENCHES)}")
    return int(_main(name)(rest))


def _main(name: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = importlib.import_module(f"lifelong.experiments.bench_{name}").main
    return main
