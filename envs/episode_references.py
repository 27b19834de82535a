"""What random and perfect policies get on known ids: mean returns of episodes, with the id's own step limit."""

from __future__ import annotations

from lifelong.envs.base import References

EPISODE_REFERENCES: dict[str, References] = {
    "CartPole-v1": References(
        per="episode",
        random=22.3,
        oracle=500.0,
        memoryless=500.0,
        last_transition=500.0,
        notes={
            "random": "uniform actions, simulation: 22.3 +- 0.4",
            "oracle": "the limit of 500 steps",
            "memoryless": "one fixed linear feedback of the observation did not fall in 4e6 steps",
        },
    ),
}

_COMMAND = "python benchmarks/minigrid_references.py --episodes 6400"


def _memory(
    random: float, error: float, one_side: float, learner: float, oracle: float, memoryless: bool
) -> References:
    """Reference levels of a MiniGrid memory task, from the command above."""
    side = f"walking always to the same side gets {one_side} (exact, shortest paths)"
    return References(
        per="episode",
        random=random,
        oracle=oracle,
        memoryless=one_side if memoryless else None,
        ideal_learner=learner,
        notes={
            "random": f"uniform over the actions, simulation: {random} +- {error} (s.e.); {_COMMAND}",
            "oracle": f"knows the side, shortest path, exact over all layouts; {_COMMAND}",
            "memoryless": side if memoryless else f"{side}; a view of 7x7 may do better",
            "ideal_learner": f"has to look at the cue and at one end, shortest way to do both; {_COMMAND}",
        },
    )


_ALL, _MOVES = tuple(range(7)), (0, 1, 2)

#: by (id, view size, actions)
MINIGRID_REFERENCES: dict[tuple[str, int, tuple[int, ...]], References] = {
    ("MiniGrid-MemoryS7-v0", 7, _ALL): _memory(0.164, 0.004, 0.492, 0.978, 0.984, memoryless=False),
    ("MiniGrid-MemoryS9-v0", 3, _MOVES): _memory(0.262, 0.005, 0.494, 0.975, 0.988, memoryless=True),
    ("MiniGrid-MemoryS13-v0", 3, _MOVES): _memory(0.287, 0.005, 0.496, 0.982, 0.992, memoryless=True),
}
