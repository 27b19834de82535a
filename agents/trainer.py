"""The training loop: collect a segment, improve the agent on it, say what happened. Nothing here writes files.

    trainer = Trainer(env, agent, AlgorithmConfig(), seed=0, total_frames=1_000_000)
    while not trainer.done:
        metrics = trainer.update()

``state_dict`` holds everything that the future depends on, except the environment's own state.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import fmean
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.algorithm import Algorithm, AlgorithmConfig
from lifelong.agents.distributed import ALONE, Group
from lifelong.agents.faults import NonFinite
from lifelong.agents.health import memory_health, refuse_broken_memory
from lifelong.agents.rollout import Environment, Lives, collect_segment
from lifelong.agents.statistics import merge_statistics


class Trainer:
    """Lives, an agent and an algorithm.

    Args:
        env: a batched environment; it is reset on the first update, unless a state is loaded before.
        agent: the network.
        config: the algorithm's options.
        seed: of the two generators that training draws from (actions, minibatches).
        total_frames: where the schedules end and ``done`` becomes true. A frame is one step of one life.
        group: the ranks that train together, each with its part of the lives in ``env``; see ``distributed``. Frames
            and metrics are of all.
    """

    def __init__(
        self,
        env: Environment,
        agent: ActorCritic,
        config: AlgorithmConfig,
        seed: int,
        total_frames: int,
        group: Group = ALONE,
    ) -> None:
        config.check(env.num_lives * group.world)
        device = agent.token.weight.device
        self.group = group
        group.copy_weights(agent)
        self.config = config
        self.agent = agent
        self.lives = Lives(env, agent, torch.Generator(device).manual_seed(seed), group)
        self.algorithm = Algorithm(agent, config, torch.Generator().manual_seed(seed + 1), group)
        self.total_frames = total_frames
        self.frames = 0
        self.timings = {"collect": 0.0, "update": 0.0}  # process CPU seconds of the last update

    @property
    def done(self) -> bool:
        return self.frames >= self.total_frames

    def update(self) -> dict[str, float]:
        """One segment and the improvement on it; returns the metrics by name. They are explained in docs/metrics.md.

        Raises:
            NonFinite: a memory, a reward, a loss or a weight is not finite; it says which, and where.
            RankLost: another rank has left.
        """
        started = time.process_time()
        self.lives.statistics.begin_span()
        life_step = self.lives.statistics.life_step.clone()
        segment = collect_segment(self.lives, self.config.segment)
        refuse_broken_memory(self.agent.core, self.lives.state, self.lives.statistics.life_step)
        collected = time.process_time()
        try:
            learned = self.algorithm.update(segment, self.frames / self.total_frames)
        except NonFinite:
            self._blame_memory(segment, life_step)
            raise
        self.timings = {"collect": collected - started, "update": time.process_time() - collected}
        self.frames += segment["steps"].numel() * self.group.world
        parts = self.group.gather((self.lives.statistics, memory_health(self.lives)))
        statistics = merge_statistics([part for part, _ in parts])
        return {**statistics.metrics(), **learned, **_merge_health([health for _, health in parts])}

    @torch.no_grad()
    def _blame_memory(self, segment: TensorDict, life_step: Tensor) -> None:
        """Say which memory broke in an update that failed, if one did: at the segment's start, where the lives were
        ``life_step`` [B] old, or on the way through it with the weights that the update came to.
        """
        core = self.agent.core
        refuse_broken_memory(core, segment["memory", "core"], life_step)
        if not all(bool(weight.isfinite().all()) for weight in self.agent.parameters()):
            return  # they broke the memory, not it them
        state = self.agent.remember(segment["steps"], segment["memory"])
        refuse_broken_memory(core, state, self.lives.statistics.life_step)

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
        self.lives.load_state_dict(state["lives"])  # first: it names a foreign core, weights only list their keys
        self.agent.load_state_dict(state["agent"])
        self.algorithm.load_state_dict(state["algorithm"])
        self.frames = state["frames"]


def _merge_health(parts: list[dict[str, float]]) -> dict[str, float]:
    """Over all lives what ``memory_health`` says of all; of the first four lives, what rank 0 says of its own."""
    merged = dict(parts[0])
    for name, merge in (("state_norm", fmean), ("state_max", max), ("state_non_finite", fmean)):
        key = f"memory/{name}"
        if key in merged:
            merged[key] = merge([part[key] for part in parts])
    return merged
