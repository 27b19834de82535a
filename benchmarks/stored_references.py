"""Print the reference levels that are stored in the code because they come from a long simulation or search.

python benchmarks/stored_references.py [--only NAME ...]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from typing import Any

import torch

from lifelong.envs.associative_recall import simulate_echo_return
from lifelong.envs.drift_bandit import simulate_filter_rate
from lifelong.envs.drift_control import DriftControl, simulate_levels
from lifelong.envs.drift_control_learners import KINDS, level, search_memoryless
from lifelong.envs.drift_torus import simulate_elimination_rate
from lifelong.envs.drift_torus_learners import MemorylessTorus
from lifelong.envs.forage import simulate_greedy_rate
from lifelong.envs.markov_stream import simulate_filter_rate as simulate_markov_filter_rate
from lifelong.envs.measurement import Estimate
from lifelong.envs.switching_bandit import simulate_ideal_rate


def report(what: str, figure: Estimate) -> None:
    print(f"{what}: {figure.mean:.5f} +- {figure.standard_error:.5f}", flush=True)


def switching_bandit() -> None:
    ideal = simulate_ideal_rate(6, 4, 1 / 300, None, lives=8192, steps=2000, seed=2026)
    report("switching_bandit, default options, ideal learner", ideal)


def drift_bandit() -> None:
    filtered = simulate_filter_rate(5, 0.9, 0.1, 0.01, told=False, lives=8192, steps=5000, seed=2026)
    report("drift_bandit, default options, ideal learner", filtered)


def associative_recall() -> None:
    for pairs, values, episodes in ((4, 4, 50), (32, 16, 8)):
        echoed = simulate_echo_return(pairs, values, lives=8192, episodes=episodes, seed=2026)
        report(f"associative_recall, pairs={pairs} values={values}, echo of one value", echoed)


def markov_stream() -> None:
    predicted = simulate_markov_filter_rate(8, 4, 0.005, 0.1, "hidden", lives=2048, steps=1000, burn_in=500, seed=2026)
    report("markov_stream, default options, ideal learner", predicted)


def forage() -> None:
    report("forage, default options, greedy oracle", simulate_greedy_rate(15, 2, 8, 2000, 2048, 500, seed=2026))


def drift_torus() -> None:
    learner = simulate_elimination_rate(5, 2, 0.001, lives=2048, steps=10_000, seed=2026)
    report("drift_torus, default options, learner by elimination", learner)
    for gears, starts in ((1, 8), (2, 4)):
        best, _ = MemorylessTorus(5, gears, 0.001).best(starts, iterations=400)
        print(f"drift_torus, size=5 gears={gears} hazard=0.001, best policy without memory found: {best:.5f}")


def drift_control() -> None:
    searches: dict[str, dict[str, Any]] = {
        "cartpole": {"generations": 40, "policies": 64, "lives": 16},
        "acrobot": {"generations": 25, "policies": 48, "lives": 12},
    }
    for system, size in searches.items():
        levels = simulate_levels(system, 0.01, 0, lives=2048, steps=1000, seed=2026)
        for name, figure in levels._asdict().items():
            if figure is not None:
                report(f"drift_control, system={system}, {name}", figure)

        def build(lives: int, seed: int, system: Any = system) -> DriftControl:
            return DriftControl(lives, seed, system=system)

        for kind in KINDS:
            for last_transition, greedy in itertools.product((False, True), repeat=2):
                policy, weights = search_memoryless(build, kind, last_transition, greedy=greedy, **size)
                sees = "last transition" if last_transition else "observation"
                found = level(build, policy, weights, lives=256, steps=1500)
                acts = "greedy" if greedy else "random"
                report(f"drift_control, system={system}, without memory, {kind} in the {sees}, {acts}", found)


STORED: dict[str, Callable[[], None]] = {
    function.__name__: function
    for function in (
        *(associative_recall, switching_bandit, drift_bandit, markov_stream),
        *(forage, drift_torus, drift_control),
    )
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(STORED), default=list(STORED), metavar="NAME")
    torch.set_num_threads(1)
    for name in parser.parse_args().only:
        STORED[name]()


if __name__ == "__main__":
    main()
