"""Proximal policy optimisation (Schulman et al. 2017) over segments of unbroken lives, on TorchRL's ClipPPOLoss.

    L = -E min(rho A, clip(rho, 1 - eps, 1 + eps) A) + c_v (V - V_target)^2 - c_e H,     rho = pi(a | s) / pi_old(a | s)

Minibatches are made of whole lives. The core runs once per minibatch: the actor writes the trunk, and the critic
reads it there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor
from torch.distributions import Distribution
from torchrl.objectives import ClipPPOLoss

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.faults import NonFinite
from lifelong.agents.segment import add_advantages, explained_variance


@dataclass
class PPOConfig:
    """Options of PPO; the config file ``algorithm/ppo.yaml`` explains each."""

    name: str = "ppo"
    segment: int = 128
    epochs: int = 4
    minibatches: int = 2
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-3
    adam_epsilon: float = 1e-5
    weight_decay: float = 0.0
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    clip_value: bool = False
    normalize_advantage: bool = True
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    final_entropy_coefficient: float = 0.01
    max_grad_norm: float = 0.5
    target_kl: float | None = None

    def check(self, num_lives: int) -> None:
        """Raise ValueError, one line, for a value that cannot work."""
        if not 1 <= self.minibatches <= num_lives:
            raise ValueError(f"algorithm.minibatches={self.minibatches}: allowed are 1 to env.num_lives={num_lives}")
        if self.name != "ppo":
            raise ValueError(f"algorithm.name={self.name}: allowed is 'ppo'")
        if self.segment * num_lives < 2 * self.minibatches:
            raise ValueError(f"algorithm.segment={self.segment}: a minibatch needs 2 steps or more")
        for name, low, high in (("gamma", 0, 1), ("gae_lambda", 0, 1), ("clip_epsilon", 0, 1)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: allowed are {low} to {high}")
        for name in ("segment", "epochs"):
            if getattr(self, name) < 1:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: allowed are 1 and more")
        for name in ("learning_rate", "final_learning_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be above 0 and at most 1")
        for name in ("adam_epsilon", "max_grad_norm"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be above 0 and finite")
        for name in ("weight_decay", "value_coefficient", "entropy_coefficient", "final_entropy_coefficient"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be 0 or more and finite")
        if self.target_kl is not None and not 0 < self.target_kl < math.inf:
            raise ValueError(f"algorithm.target_kl={self.target_kl}: must be above 0, or null")


class PPO:
    """One optimiser and one loss over an ActorCritic.

    ``update`` improves the agent on one segment. With unchanged weights the ratio is 1: what the agent computed when
    acting is what the update computes again. ``train/ratio_deviation`` is the largest |rho - 1| of the first
    minibatch, before any step.
    """

    def __init__(self, agent: ActorCritic, config: PPOConfig, generator: torch.Generator) -> None:
        self.agent = agent
        self.config = config
        self.generator = generator
        self.updates = 0
        decayed = [weight for weight in agent.parameters() if weight.dim() > 1]
        others = [weight for weight in agent.parameters() if weight.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.learning_rate,
            eps=config.adam_epsilon,
        )
        self.actor = _Actor(agent)
        self.loss = ClipPPOLoss(
            self.actor,
            _Critic(agent),
            clip_epsilon=config.clip_epsilon,
            clip_value=config.clip_value,
            entropy_bonus=True,
            entropy_coeff=config.entropy_coefficient,
            critic_coeff=config.value_coefficient,
            loss_critic_type="l2",
            log_explained_variance=False,
            functional=False,
        )
        self.loss.set_keys(
            action=("steps", "action"),
            sample_log_prob=("steps", "action_log_prob"),
            advantage=("steps", "advantage"),
            value_target=("steps", "value_target"),
            value=("steps", "state_value"),
        )

    def update(self, segment: TensorDict, progress: float = 0.0) -> dict[str, float]:
        """Improve the agent on ``segment``; ``progress`` in [0, 1] moves the schedules. Returns what is logged.

        Raises:
            NonFinite: a loss or gradient is not finite; no step is taken with it.
        """
        config = self.config
        learning_rate, entropy = self._schedule(progress)
        add_advantages(segment, config.gamma, config.gae_lambda)
        sums: dict[str, float] = {}
        count, deviation, stop = 0, 0.0, False
        for _ in range(config.epochs):
            order = torch.randperm(segment.shape[0], generator=self.generator)
            for lives in order.tensor_split(config.minibatches):
                batch = segment[lives]
                if config.normalize_advantage:
                    batch["steps", "advantage"] = _standardize(batch["steps", "advantage"])
                losses = self.loss(batch)
                if count == 0:
                    deviation = self._ratio_deviation(batch)
                total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
                self.optimizer.zero_grad(set_to_none=True)
                total.backward()
                grad_norm = torch.nn.utils.clip_grad_norm_(self.agent.parameters(), config.max_grad_norm)
                values = torch.stack([losses[name].detach() for name in _LOGGED] + [grad_norm]).tolist()
                self._refuse_non_finite(dict(zip((*_LOGGED, "grad_norm"), values, strict=True)))
                self.optimizer.step()
                for name, value in zip((*_LOGGED, "grad_norm"), values, strict=True):
                    sums[name] = sums.get(name, 0.0) + value
                count += 1
                kl = values[_LOGGED.index("kl_approx")]
                stop = config.target_kl is not None and kl > 1.5 * config.target_kl
                if stop:
                    break
            if stop:
                break
        if not all(bool(weight.isfinite().all()) for weight in self.agent.parameters()):
            raise NonFinite(
                f"update {self.updates}: the weights are not finite after its last step; learning_rate is too high"
            )
        self.updates += 1
        mean = {name: total / count for name, total in sums.items()}
        return {
            "train/policy_loss": mean["loss_objective"],
            "train/value_loss": mean["loss_critic"],
            "train/entropy": mean["entropy"],
            "train/approx_kl": mean["kl_approx"],
            "train/clip_fraction": mean["clip_fraction"],
            "train/grad_norm": mean["grad_norm"],
            "train/explained_variance": float(explained_variance(segment)),
            "train/ratio_deviation": deviation,
            "train/learning_rate": learning_rate,
            "train/entropy_coefficient": entropy,
            "train/minibatch_steps": float(count),
        }

    def _schedule(self, progress: float) -> tuple[float, float]:
        """Linear from the first to the final value; a constant where they are equal."""
        config = self.config
        progress = min(max(progress, 0.0), 1.0)
        learning_rate = config.learning_rate + progress * (config.final_learning_rate - config.learning_rate)
        entropy = config.entropy_coefficient + progress * (
            config.final_entropy_coefficient - config.entropy_coefficient
        )
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.loss.entropy_coeff.fill_(entropy)
        return learning_rate, entropy

    @torch.no_grad()
    def _ratio_deviation(self, batch: TensorDict) -> float:
        assert self.actor.distribution is not None
        log_prob = self.actor.distribution.log_prob(batch["steps", "action"])
        return float((log_prob - batch["steps", "action_log_prob"]).exp().sub(1).abs().max())

    def _refuse_non_finite(self, values: dict[str, float]) -> None:
        broken = [name for name, value in values.items() if value != value or value in (float("inf"), float("-inf"))]
        if broken:
            self.optimizer.zero_grad(set_to_none=True)
            raise NonFinite(f"update {self.updates}: {', '.join(broken)} not finite; no step was taken with it")

    def state_dict(self) -> dict[str, Any]:
        return {
            "optimizer": self.optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]


def _standardize(advantage: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the minibatch."""
    return (advantage - advantage.mean()) / (advantage.std() + 1e-8)


_LOGGED = ("loss_objective", "loss_critic", "loss_entropy", "entropy", "kl_approx", "clip_fraction")


class _Actor(TensorDictModuleBase):
    """The policy as ClipPPOLoss wants it: ``get_dist`` runs the trunk over a segment and leaves it there for the
    critic.
    """

    in_keys = ["steps", "memory"]  # noqa: RUF012 - tensordict's protocol
    out_keys = ["trunk"]  # noqa: RUF012

    def __init__(self, agent: ActorCritic) -> None:
        super().__init__()
        self.agent = agent
        self.distribution: Distribution | None = None

    def get_dist(self, tensordict: TensorDict) -> Distribution:
        trunk, parameters = self.agent.sequence(tensordict["steps"], tensordict["memory"])
        if not bool(parameters.isfinite().all()):
            raise NonFinite("the policy's output is not finite in the update; learning_rate may be too high")
        tensordict["trunk"] = trunk
        self.distribution = self.agent.action_head.distribution(parameters)
        return self.distribution


class _Critic(TensorDictModuleBase):
    """The value head alone, reading the trunk that the actor left."""

    in_keys = ["trunk"]  # noqa: RUF012
    out_keys = [("steps", "state_value")]  # noqa: RUF012

    def __init__(self, agent: ActorCritic) -> None:
        super().__init__()
        self.value = agent.value

    def forward(self, tensordict: TensorDict) -> TensorDict:
        value: Tensor = self.value(tensordict["trunk"])
        tensordict["steps", "state_value"] = value
        return tensordict
