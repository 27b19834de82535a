"""Print the reference levels that are stored in the code because they come from a long simulation."""

from __future__ import annotations

import torch

from lifelong.envs.drift_bandit import simulate_filter_rate
from lifelong.envs.switching_bandit import simulate_ideal_rate


def main() -> None:
    torch.set_num_threads(1)
    ideal = simulate_ideal_rate(6, 4, 1 / 300, None, lives=8192, steps=2000, seed=2026)
    print(f"switching_bandit, default options, ideal learner: {ideal.mean:.5f} +- {ideal.standard_error:.5f}")
    filtered = simulate_filter_rate(5, 0.9, 0.1, 0.01, told=False, lives=8192, steps=5000, seed=2026)
    print(f"drift_bandit, default options, ideal learner: {filtered.mean:.5f} +- {filtered.standard_error:.5f}")


if __name__ == "__main__":
    main()
