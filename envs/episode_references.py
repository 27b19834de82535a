"""What random and perfect policies get on well-known ids: mean returns of episodes with the id's own limits."""

from __future__ import annotations

from lifelong.envs.base import References

EPISODE_REFERENCES: dict[str, References] = {
    "CartPole-v1": References(
        per="episode",
        random=22.3,
        oracle=500.0,
        memoryless=500.0,
        notes={
            "random": "uniform actions, simulation: 22.3 +- 0.4",
            "oracle": "the limit of 500 steps",
            "memoryless": "one fixed linear feedback of the observation did not fall in 4e6 steps",
        },
    ),
}

#: by (id, view size, actions)
MINIGRID_REFERENCES: dict[tuple[str, int, tuple[int, ...]], References] = {}
