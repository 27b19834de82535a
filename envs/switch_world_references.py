"""Stored reference levels of ``switch_world``, measured by ``benchmarks/switch_world_references.py``."""

from __future__ import annotations

from typing import NamedTuple

from lifelong.envs.base import References

_COMMAND = "python benchmarks/switch_world_references.py --lives 16 --steps 6000"


class Level(NamedTuple):
    """Reward of a step, with its standard error."""

    rate: float
    error: float


class Measured(NamedTuple):
    """One setting of the dials, played by everyone."""

    random: Level
    uniform_picks: Level
    eliminator: Level
    oracle: Level


#: by (size, colours, hazard, switching, feedback)
MEASURED: dict[tuple[int, int, float, str, float], Measured] = {
    (8, 4, 0.001, "markov", 1.0): Measured(
        random=Level(-0.0061, 0.0004),
        uniform_picks=Level(-0.0923, 0.0013),
        eliminator=Level(0.1781, 0.0012),
        oracle=Level(0.1825, 0.0011),
    ),
    (8, 4, 0.001, "markov", 0.9): Measured(
        random=Level(-0.0047, 0.0004),
        uniform_picks=Level(-0.0729, 0.0013),
        eliminator=Level(0.1346, 0.0016),
        oracle=Level(0.1451, 0.0013),
    ),
    (8, 4, 0.001, "hazard", 1.0): Measured(
        random=Level(-0.0068, 0.0003),
        uniform_picks=Level(-0.0892, 0.0011),
        eliminator=Level(0.1791, 0.0015),
        oracle=Level(0.1810, 0.0010),
    ),
    (6, 3, 0.005, "markov", 1.0): Measured(
        random=Level(-0.0066, 0.0004),
        uniform_picks=Level(-0.0816, 0.0018),
        eliminator=Level(0.2262, 0.0013),
        oracle=Level(0.2452, 0.0015),
    ),
}


def switch_world_references(
    size: int, colours: int, hazard: float, switching: str, feedback: float
) -> References | None:
    """The levels of these dials; None where they were not measured."""
    measured = MEASURED.get((size, colours, hazard, switching, feedback))
    if measured is None:
        return None

    def note(who: str, level: Level) -> str:
        return f"{who}, simulation: {level.rate} +- {level.error} (s.e.); {_COMMAND}"

    picks = note("walking to balls of colours drawn uniformly", measured.uniform_picks)
    return References(
        per="step",
        random=measured.random.rate,
        oracle=measured.oracle.rate,
        memoryless=max(0.0, measured.uniform_picks.rate),
        ideal_learner=measured.eliminator.rate,
        notes={
            "random": note("uniform actions", measured.random),
            "memoryless": f"collects nothing, or anything: {picks}",
            "ideal_learner": note(
                "the colours most probable after all that was paid, nearest first", measured.eliminator
            ),
            "oracle": note("shortest way to the rewarded ball, seeing the whole room", measured.oracle),
        },
    )
