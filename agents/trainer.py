"""The training loop: collect a segment, improve the agent on it, say what happened. Nothing here writes files.

    trainer = Trainer(env, agent, AlgorithmConfig(), seed=0, total_frames=1_000_000)
    while not trainer.done:
        metrics = trainer.update()

``state_dict`` holds everything that the future depends on, except the environment's own state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.algorithm import Algorithm, AlgorithmConfig
from lifelong.agents.health import memory_health, refuse_broken_memory
from lifelong.agents.rollout import Environment, Lives, collect_segment


class Trainer:
    """Lives, an agent and an algorithm.

    Args:
        env: a batched environment; it is reset on the first update, unless a state is loaded before.
        agent: the network.
        config: the algorithm's options.
        seed: of the two generators that training draws from (actions, minibatches).
        total_frames: where the schedules end and ``done`` becomes true. A frame is one step of one life.
    """

    def __init__(
        self, env: Environment, agent: ActorCritic, config: AlgorithmConfig, seed: int, total_frames: int
    ) -> None:
        config.check(env.num_lives)
        device = agent.token.weight.device
        self.config = config
        self.agent = agent
        self.lives = Lives(env, agent, torch.Generator(device).manual_seed(seed))
        self.algorithm = Algorithm(agent, config, torch.Generator().manual_seed(seed + 1))
        self.total_frames = total_frames
        self.frames = 0
        self.timings = {"collect": 0.0, "update": 0.0}  # process CPU seconds of the last update

    @property
    def done(self) -> bool:
        return self.frames >= self.total_frames

    def update(self) -> dict[str, float]:
        """One segment and the improvement on it; returns the metrics by name. See docs of the tags in the README.

        Raises:
            NonFinite: a memory, a reward, a loss or a weight is not finite; it says which, and where.
        """
        started = time.process_time()
        self.lives.statistics.begin_span()
        segment = collect_segment(self.lives, self.config.segment)
        refuse_broken_memory(self.agent.core, self.lives.state, self.lives.statistics.life_step)
        collected = time.process_time()
        learned = self.algorithm.update(segment, self.frames / self.total_frames)
        self.timings = {"collect": collected - started, "update": time.process_time() - collected}
        self.frames += segment["steps"].numel()
        return {**self.lives.statistics.metrics(), **learned, **memory_health(self.lives)}

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimizer, memory, generators, counters, statistics: tensors, numbers, strings and containers of
        them only.
        """
        return {
            "agent": self.agent.state_dict(),
            "algorithm": self.algorithm.state_dict(),
            "lives": self.lives.state_dict(),
            "frames": self.frames,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was taken. The environment's state is loaded by whoever holds it."""
        self.agent.load_state_dict(state["agent"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.lives.load_state_dict(state["lives"])
        self.frames = state["frames"]
