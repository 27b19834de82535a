"""What happened in B lives: reward rates and episode returns, for lives that end and for lives that never do.

Stock loggers say nothing until an episode ends; here every segment has a reward rate. Sums are float64 and counters
int64: a float32 sum stops growing at 2^24, an int32 counter at 2^31.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

# Edges of the buckets of "steps since the hidden rule changed": within a bucket a learner's reward is roughly level.
CHANGE_AGES = (0, 10, 30, 100, 300)


class LifeStatistics:
    """Running sums over B lives.

    An *episode* is what lies between two resets of the world, whether they end the life or not (soft resets).

    Args:
        num_lives: B.
        window: how many ended episodes the means look back on.
    """

    def __init__(self, num_lives: int, window: int = 100) -> None:
        self.episode_return = torch.zeros(num_lives, dtype=torch.float64)
        self.episode_length = torch.zeros(num_lives, dtype=torch.int64)
        self.life_step = torch.zeros(num_lives, dtype=torch.int64)
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.ended_at: deque[int] = deque(maxlen=window)  # by the count of steps of each life
        self.episodes = 0
        self.total_reward = torch.zeros((), dtype=torch.float64)
        self.total_steps = 0
        self.begin_span()

    def begin_span(self) -> None:
        """Start a new span (a segment, a tenth of a life): the span's sums go back to zero."""
        self.span_reward = torch.zeros((), dtype=torch.float64)
        self.span_steps = 0
        self.span_return_sum = 0.0
        self.span_episodes = 0
        self.change_reward = torch.zeros(len(CHANGE_AGES), dtype=torch.float64)
        self.change_count = torch.zeros(len(CHANGE_AGES), dtype=torch.float64)

    def add(self, reward: Tensor, life_end: Tensor, soft_reset: Tensor, rule_age: Tensor | None) -> None:
        """One step of all lives: reward [B], life_end and soft_reset [B] bool, rule_age [B] int64.

        ``rule_age`` is how many steps ago the hidden rule changed by which the reward was given; None where nobody
        says.
        """
        reward = reward.double().cpu()
        total = reward.sum()
        self.total_reward += total
        self.span_reward += total
        self.total_steps += reward.numel()
        self.span_steps += reward.numel()
        self.episode_return += reward
        self.episode_length += 1
        self.life_step += 1
        if rule_age is not None:
            self._add_change(reward, rule_age.cpu())
        ended = (life_end | soft_reset).cpu()
        if ended.any():
            finished = self.episode_return[ended].tolist()
            self.returns.extend(finished)
            self.span_return_sum += sum(finished)
            self.span_episodes += len(finished)
            self.lengths.extend(self.episode_length[ended].tolist())
            self.ended_at.extend([self.total_steps // reward.numel()] * len(finished))
            self.episodes += len(finished)
            self.episode_return[ended] = 0
            self.episode_length[ended] = 0
            self.life_step[life_end.cpu()] = 0

    def _add_change(self, reward: Tensor, age: Tensor) -> None:
        bucket = torch.bucketize(age, torch.tensor(CHANGE_AGES[1:]), right=True)
        self.change_reward.index_add_(0, bucket, reward)
        self.change_count.index_add_(0, bucket, torch.ones_like(reward))

    def span_reward_rate(self) -> float:
        """Mean reward of a step in the present span."""
        return float(self.span_reward) / max(self.span_steps, 1)

    def metrics(self) -> dict[str, float]:
        """The present span and the last episodes, by the names under which they are logged."""
        metrics = {
            "rollout/reward_rate": self.span_reward_rate(),
            "rollout/episodes": float(self.episodes),
            "life/step_mean": float(self.life_step.double().mean()),
            "life/step_max": float(self.life_step.max()),
        }
        if self.returns:
            metrics["rollout/ep_rew_mean"] = sum(self.returns) / len(self.returns)
            metrics["rollout/ep_len_mean"] = sum(self.lengths) / len(self.lengths)
        for index, (start, total, count) in enumerate(
            zip(CHANGE_AGES, self.change_reward.tolist(), self.change_count.tolist(), strict=True)
        ):
            if count:
                end = f"{CHANGE_AGES[index + 1]}" if index + 1 < len(CHANGE_AGES) else "on"
                metrics[f"life/reward_after_change_{start}_{end}"] = total / count
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and lists only. Taken between spans."""
        return {
            "episode_return": self.episode_return.clone(),
            "episode_length": self.episode_length.clone(),
            "life_step": self.life_step.clone(),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "ended_at": list(self.ended_at),
            "episodes": self.episodes,
            "total_reward": self.total_reward.clone(),
            "total_steps": self.total_steps,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.episode_return = state["episode_return"].clone()
        self.episode_length = state["episode_length"].clone()
        self.life_step = state["life_step"].clone()
        self.returns = deque(state["returns"], maxlen=self.returns.maxlen)
        self.lengths = deque(state["lengths"], maxlen=self.lengths.maxlen)
        unknown = [0] * len(self.returns)  # a state from before ``ended_at`` was kept
        self.ended_at = deque(state.get("ended_at", unknown), maxlen=self.ended_at.maxlen)
        self.episodes = state["episodes"]
        self.total_reward = state["total_reward"].clone()
        self.total_steps = state["total_steps"]
        self.begin_span()


def merge_statistics(parts: Sequence[LifeStatistics]) -> LifeStatistics:
    """Of all lives, from those of their parts, which have made the same number of steps; one part is its own sum."""
    if len(parts) == 1:
        return parts[0]
    merged = LifeStatistics(sum(len(part.life_step) for part in parts))
    for name in ("episode_return", "episode_length", "life_step"):
        setattr(merged, name, torch.cat([getattr(part, name) for part in parts]))
    for name in ("episodes", "total_reward", "total_steps"):
        setattr(merged, name, sum(getattr(part, name) for part in parts))
    for name in ("reward", "steps", "return_sum", "episodes"):
        setattr(merged, f"span_{name}", sum(getattr(part, f"span_{name}") for part in parts))
    for name in ("change_reward", "change_count"):
        setattr(merged, name, sum(getattr(part, name) for part in parts))
    ended = [end for part in parts for end in zip(part.ended_at, part.returns, part.lengths, strict=True)]
    ended.sort(key=lambda end: end[0])  # stable: within a step, in the order of lives
    for at, total, length in ended:
        merged.ended_at.append(at)
        merged.returns.append(total)
        merged.lengths.append(length)
    return merged
