"""Does a step cost more in an old life than in a young one? CPU microseconds a step of evaluation, side by side.

    python benchmarks/old_life.py RUN [steps=1000000] [lives=64] [rounds=31] [block=300]

One batch of lives is brought to life step ``steps`` (20 minutes for 10^6), another to 1,000. Then they take turns,
``block`` steps each, in one process on one thread; the median of the ratios is printed. ``lifelong evaluate`` writes
the time of every stretch too, but there minutes lie between young and old, in which the machine itself may change.
"""

from __future__ import annotations

import statistics
import sys
import time

from lifelong.experiments.evaluate import Life, build_life
from lifelong.experiments.evaluate_options import EvaluateOptions
from lifelong.experiments.process_memory import resident_bytes
from lifelong.experiments.run_folder import find_checkpoint

YOUNG = 1_000


def block_seconds(life: Life, steps: int) -> float:
    """CPU time of the life's next steps."""
    started = time.process_time()
    life.run_to(life.step + steps)
    return time.process_time() - started


def main() -> None:
    run, *words = sys.argv[1:] or [""]
    options = {"steps": 1_000_000, "lives": 64, "rounds": 31, "block": 300}
    for word in words:
        key, _, value = word.partition("=")
        if key not in options:
            raise SystemExit(f"{word}: allowed are {', '.join(options)}")
        options[key] = int(value)
    path, config = find_checkpoint(run)
    old, young = (build_life(path, config, EvaluateOptions(lives=options["lives"], seed=seed))[1] for seed in (0, 1))
    for tenth in range(1, 11):
        old.run_to(options["steps"] * tenth // 10)
        print(f"life step {old.step:,}: process {resident_bytes() / 1e6:.1f} MB", flush=True)
    young.run_to(YOUNG)
    times: list[tuple[float, float]] = []
    for number in range(options["rounds"]):
        first, second = (old, young) if number % 2 else (young, old)
        spent = {id(life): block_seconds(life, options["block"]) for life in (first, second)}
        times.append((spent[id(old)], spent[id(young)]))
    ratios = sorted(a / b for a, b in times)
    old_us, young_us = (1e6 * statistics.median(each) / options["block"] for each in zip(*times, strict=True))
    print(
        f"{options['lives']} lives: {old_us:.0f} us a step at life step {options['steps']:,}, {young_us:.0f} at "
        f"{YOUNG:,}; ratio {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f} over "
        f"{options['rounds']} rounds)"
    )


if __name__ == "__main__":
    main()
