"""Evaluation: one unbroken life in a batch of lives, in constant memory, fast weights live; and what changes if the one
or the other learner is held still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.health import memory_health, refuse_broken_memory
from lifelong.agents.life_curves import LifeCurves
from lifelong.agents.rollout import Environment, Lives
from lifelong.agents.trainer import Trainer

_ROUNDED_TO = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Span:
    """What happened between two life steps."""

    start: int
    stop: int
    reward_rate: float  # mean reward of a step
    episodes: int  # ended in this span
    episode_return: float | None  # their mean return; None where none ended
    memory: dict[str, float]  # memory/...: see lifelong.agents.health


@dataclass(frozen=True)
class Ablation:
    """What is done to the lives besides living them.

    freeze_memory_at: step of the evaluation, the same for all lives, from which on the memory is read but not written;
        None: never. A reset drops a frozen memory too: the life that begins then reads the reset state to its end.
    reset_memory_every: the memory is dropped every so many steps, the world goes on; None: never.
    state_dtype: what the state is rounded to between steps; ``"float64"``: everything is computed in it.
    """

    freeze_memory_at: int | None = None
    reset_memory_every: int | None = None
    state_dtype: str = "float32"


class Evaluation:
    """Lives whose agent's slow weights stay as they are.

        evaluation = Evaluation(env, agent, seed=0)
        for stop in (1_000, 10_000):
            span = evaluation.run_to(stop)

    Nothing is kept but sums, so a life may be as long as one likes. ``state_dict`` is everything that the rest of the
    life depends on, except the environment's own state.

    Args:
        env: whose lives these are; fresh, or as it was when the state was taken.
        agent: the network; with ``state_dtype="float64"`` in that precision.
        seed: of the actions.
        greedy: the most likely action in place of a drawn one.
        level: see ``LifeCurves``.
        ablation: what is done to the lives.
    """

    def __init__(
        self,
        env: Environment,
        agent: ActorCritic,
        seed: int = 0,
        greedy: bool = False,
        level: tuple[float, float] | None = (0.0, 1.0),
        ablation: Ablation = Ablation(),
    ) -> None:
        device = agent.token.weight.device
        self.agent, self.greedy, self.ablation = agent, greedy, ablation
        self.lives = Lives(env, agent, torch.Generator(device).manual_seed(seed))
        self.lives.curves = self.curves = LifeCurves(env.num_lives, level)
        self.step = 0

    def run_to(self, stop: int) -> Span:
        """Live up to life step ``stop``.

        Raises:
            NonFinite: the memory, a reward or the policy's output is not finite.
        """
        lives, start = self.lives, self.step
        if start == 0:
            lives.start()
            lives.situation = getattr(lives.env, "privileged", {})
        statistics = lives.statistics
        statistics.begin_span()
        with torch.no_grad():
            previous = self.agent.embed_previous(lives.last)
        while self.step < stop:
            self._reset_memory()
            frozen = self._frozen_memory()
            _, _, previous = lives.act(previous, self.greedy)
            if frozen is not None:
                lives.state = frozen
            self._round_memory()
            self.step += 1
        refuse_broken_memory(self.agent.core, lives.state, statistics.life_step)
        lives.remember(previous)
        episodes = statistics.span_episodes
        mean_return = statistics.span_return_sum / episodes if episodes else None
        return Span(start, stop, statistics.span_reward_rate(), episodes, mean_return, memory_health(lives))

    def _reset_memory(self) -> None:
        every = self.ablation.reset_memory_every
        if every is not None and self.step and self.step % every == 0:
            self.lives.reset = torch.ones_like(self.lives.reset)

    def _frozen_memory(self) -> TensorDict | None:
        """What the memory is before the next step and stays after it, None while it is written."""
        freeze, state, reset = self.ablation.freeze_memory_at, self.lives.state, self.lives.reset
        if freeze is None or self.step < freeze:
            return None
        if not bool(reset.any()):
            return state
        fresh = self.agent.core.initial_state(len(state), device=state.device).detach()
        return state.apply(lambda old, new: torch.where(reset.view(-1, *[1] * (old.dim() - 1)), new, old), fresh)

    def _round_memory(self) -> None:
        dtype = _ROUNDED_TO.get(self.ablation.state_dtype)
        if dtype is not None:
            self.lives.state = self.lives.state.apply(
                lambda leaf: leaf.to(dtype).to(leaf.dtype) if leaf.is_floating_point() else leaf
            )

    def state_dict(self) -> dict[str, Any]:
        """Taken between spans."""
        return {"lives": self.lives.state_dict(), "curves": self.curves.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.lives.load_state_dict(state["lives"])
        self.curves.load_state_dict(state["curves"])
        self.step = state["step"]

    def environment_loaded(self) -> None:
        """To be called after ``load_state_dict`` of this and of the environment: asks it where the lives are."""
        self.lives.situation = getattr(self.lives.env, "privileged", self.lives.situation)


class LearningLife:
    """Lives along which training goes on, segment by segment: what the slow weights add to the fast ones.

    Args:
        trainer: with the weights, the optimiser's state and the frames to begin with.
        level: see ``LifeCurves``.
    """

    def __init__(self, trainer: Trainer, level: tuple[float, float] | None = (0.0, 1.0)) -> None:
        self.trainer = trainer
        trainer.lives.curves = self.curves = LifeCurves(trainer.lives.env.num_lives, level)
        self.step = 0

    def run_to(self, stop: int) -> Span:
        """Live up to the end of the segment in which life step ``stop`` lies.

        Raises:
            NonFinite: see ``Trainer.update``.
        """
        lives, start = self.trainer.lives, self.step
        if start == 0:
            lives.start()
            self.environment_loaded()
        reward, returns, episodes = 0.0, 0.0, 0
        while self.step < stop:
            self.trainer.update()  # of which each is a span of the statistics
            reward += float(lives.statistics.span_reward)
            returns += lives.statistics.span_return_sum
            episodes += lives.statistics.span_episodes
            self.step += self.trainer.config.segment
        rate = reward / ((self.step - start) * lives.env.num_lives)
        mean_return = returns / episodes if episodes else None
        return Span(start, self.step, rate, episodes, mean_return, memory_health(lives))

    def environment_loaded(self) -> None:
        """To be called after ``load_state_dict`` of this and of the environment: asks it where the lives are."""
        self.trainer.lives.situation = getattr(self.trainer.lives.env, "privileged", self.trainer.lives.situation)

    def state_dict(self) -> dict[str, Any]:
        """Taken between spans."""
        return {"trainer": self.trainer.state_dict(), "curves": self.curves.state_dict(), "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self.curves.load_state_dict(state["curves"])
        self.step = state["step"]
