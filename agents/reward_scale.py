"""What the algorithm learns from in place of the bare reward: scaled, and centred for the average-reward objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensordict import TensorDict

from lifelong.agents.distributed import ALONE, Group

if TYPE_CHECKING:
    from lifelong.agents.algorithm import AlgorithmConfig


class RewardScale:
    """Two running means as exponential averages, which follow a life of any length (a mean with 1 / t freezes).

        scale:   m <- (1 - rate) m + rate E[r^2],  r / sqrt(m)          ``reward_scale_rate``
        centre:  r - r_bar,  r_bar <- r_bar + eta E[r - r_bar + gamma V' - V]      ``objective=average_reward``

    m begins as the mean square of the first segment, r_bar as its mean. What the agent sees of its rewards is not
    changed.
    """

    def __init__(self, config: AlgorithmConfig, group: Group = ALONE) -> None:
        self.config = config
        self.group = group  # over whose lives means are taken
        self.mean_square: float | None = None
        self.average: float | None = None

    def apply(self, segment: TensorDict) -> None:
        """Write ``learned_reward`` under ``next``, and move the running means on."""
        config, following = self.config, segment["steps", "next"]
        reward = following["reward"]
        if config.reward_scale_rate is not None:
            square = float(self.group.mean(reward.double().square()))
            rate = config.reward_scale_rate
            self.mean_square = square if self.mean_square is None else (1 - rate) * self.mean_square + rate * square
            reward = reward / max(self.mean_square, 1e-12) ** 0.5
        if config.objective == "average_reward":
            if self.average is None:
                self.average = float(self.group.mean(reward.double()))
            reward = reward - self.average
            ahead = config.gamma * following["state_value"] * ~following["terminated"]
            delta = self.group.mean((reward + ahead - segment["steps", "state_value"]).double())
            self.average += config.average_reward_rate * float(delta)
        following["learned_reward"] = reward

    def metrics(self) -> dict[str, float]:
        found = {"train/reward_average": self.average, "train/reward_mean_square": self.mean_square}
        return {name: value for name, value in found.items() if value is not None}

    def state_dict(self) -> dict[str, Any]:
        return {"mean_square": self.mean_square, "average": self.average}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.mean_square, self.average = state["mean_square"], state["average"]
