"""Print the reference levels that are stored in the code because they come from a long simulation."""

from __future__ import annotations

import torch

from lifelong.envs.drift_bandit import simulate_filter_rate
from lifelong.envs.drift_torus import simulate_elimination_rate
from lifelong.envs.drift_torus_learners import MemorylessTorus
from lifelong.envs.forage import simulate_greedy_rate
from lifelong.envs.markov_stream import simulate_filter_rate as simulate_markov_filter_rate
from lifelong.envs.switching_bandit import simulate_ideal_rate


def main() -> None:
    torch.set_num_threads(1)
    ideal = simulate_ideal_rate(6, 4, 1 / 300, None, lives=8192, steps=2000, seed=2026)
    print(f"switching_bandit, default options, ideal learner: {ideal.mean:.5f} +- {ideal.standard_error:.5f}")
    filtered = simulate_filter_rate(5, 0.9, 0.1, 0.01, told=False, lives=8192, steps=5000, seed=2026)
    print(f"drift_bandit, default options, ideal learner: {filtered.mean:.5f} +- {filtered.standard_error:.5f}")
    learner = simulate_elimination_rate(5, 2, 0.001, lives=2048, steps=10_000, seed=2026)
    print(f"drift_torus, default options, learner by elimination: {learner.mean:.5f} +- {learner.standard_error:.5f}")
    predicted = simulate_markov_filter_rate(8, 4, 0.005, 0.1, "hidden", lives=2048, steps=1000, burn_in=500, seed=2026)
    print(f"markov_stream, default options, ideal learner: {predicted.mean:.5f} +- {predicted.standard_error:.5f}")
    greedy = simulate_greedy_rate(15, 2, 8, 2000, lives=2048, steps=500, seed=2026)
    print(f"forage, default options, greedy oracle: {greedy.mean:.5f} +- {greedy.standard_error:.5f}", flush=True)
    for gears, starts in ((1, 8), (2, 4)):
        best, _ = MemorylessTorus(5, gears, 0.001).best(starts, iterations=400)
        print(
            f"drift_torus, size=5 gears={gears} hazard=0.001, best policy without memory found: {best:.5f}", flush=True
        )


if __name__ == "__main__":
    main()
