"""What a score in switch_world can be read against; the figures stand in ``envs/switch_world_references.py``.

python benchmarks/switch_world_references.py [--lives 16] [--steps 6000]
"""

from __future__ import annotations

import argparse
from typing import Any

from lifelong.envs.switch_world_players import Eliminator, Oracle, UniformPicks, measure_player, measure_random

DIALS: list[dict[str, Any]] = [
    {"size": 8, "colours": 4, "hazard": 0.001, "switching": "markov", "feedback": 1.0},
    {"size": 8, "colours": 4, "hazard": 0.001, "switching": "markov", "feedback": 0.9},
    {"size": 8, "colours": 4, "hazard": 0.001, "switching": "hazard", "feedback": 1.0},
    {"size": 6, "colours": 3, "hazard": 0.005, "switching": "markov", "feedback": 1.0},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lives", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6_000)
    arguments = parser.parse_args()
    for dials in DIALS:
        levels = {"random": measure_random(arguments.lives, arguments.steps, **dials)}
        for name, player in (("uniform_picks", UniformPicks), ("eliminator", Eliminator), ("oracle", Oracle)):
            levels[name] = measure_player(player, arguments.lives, arguments.steps, **dials)
        text = ", ".join(
            f"{name}=Level({level.mean:.4f}, {level.standard_error:.4f})" for name, level in levels.items()
        )
        print(f"{tuple(dials.values())}: Measured({text}),", flush=True)


if __name__ == "__main__":
    main()
