"""Evaluation: slow weights frozen, fast weights live, one unbroken stretch of steps in a batch of lives, in constant
memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.health import memory_health, refuse_broken_memory
from lifelong.agents.rollout import Environment, Lives


@dataclass(frozen=True)
class Span:
    """What happened between two life steps."""

    start: int
    stop: int
    reward_rate: float  # mean reward of a step
    episodes: int  # ended in this span
    episode_return: float | None  # their mean return; None where none ended
    memory: dict[str, float]  # memory/...: see lifelong.agents.health


def evaluate_lives(
    env: Environment, agent: ActorCritic, steps: int, spans: int = 10, seed: int = 0, greedy: bool = False
) -> Iterator[Span]:
    """Run every life of ``env`` for ``steps`` steps and yield ``spans`` equal parts as they end.

    The weights are not changed. Nothing is kept but the sums of the present span, so a life may be as long as one
    likes.
    """
    device = agent.token.weight.device
    lives = Lives(env, agent, torch.Generator(device).manual_seed(seed))
    lives.start()
    with torch.no_grad():
        previous = agent.embed_previous(lives.last)
    edges = [steps * index // spans for index in range(spans + 1)]
    for start, stop in pairwise(edges):
        statistics = lives.statistics
        statistics.begin_span()
        for _ in range(start, stop):
            _, _, previous = lives.act(previous, greedy)
        refuse_broken_memory(agent.core, lives.state, statistics.life_step)
        lives.remember(previous)
        episodes = statistics.span_episodes
        yield Span(
            start,
            stop,
            statistics.span_reward_rate(),
            episodes,
            statistics.span_return_sum / episodes if episodes else None,
            memory_health(lives),
        )
