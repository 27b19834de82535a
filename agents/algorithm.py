"""How the slow weights learn from a segment: PPO, A2C and V-trace over unbroken lives, on TorchRL's losses.

With rho = pi(a | s) / mu(a | s), mu the policy that acted, H the entropy, and advantages A and value targets G:

    ppo     L = -E min(rho A, clip(rho, 1 - eps, 1 + eps) A)   A, G by generalised advantage estimation, once a segment
    a2c     L = -E log pi(a | s) A                             the same A, G; one pass over the segment
    vtrace  L = -E log pi(a | s) A                             A, G by V-trace, again for every minibatch
    + c_v (V - G)^2 - c_e H

(Schulman et al. 2017; Mnih et al. 2016; Espeholt et al. 2018.) Minibatches are made of whole lives. The core runs once
per minibatch: the actor leaves the trunk, and the critic reads it there.

The objective is discounted, or the average reward: rewards are centred, r - r_bar, and

    r_bar <- r_bar + eta E[r - r_bar + gamma V' - V]

once a segment (Wan, Naik, Sutton 2021). With gamma = 1 that is the differential value of a life without end; below 1,
reward centring (Naik et al. 2024).
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from tensordict import TensorDict

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.continual_backprop import ContinualBackprop
from lifelong.agents.distributed import ALONE, Group
from lifelong.agents.faults import NonFinite
from lifelong.agents.history import History
from lifelong.agents.initial_weights import PullToInitial
from lifelong.agents.losses import LOGGED, Loss, make_loss
from lifelong.agents.plasticity import WeightsBefore, plasticity
from lifelong.agents.reward_scale import RewardScale
from lifelong.agents.segment import add_advantages, explained_variance

ALGORITHMS = ("ppo", "a2c", "vtrace")
OBJECTIVES = ("discounted", "average_reward")


@dataclass
class AlgorithmConfig:
    """Options of all algorithms; the files ``algorithm/{ppo,a2c,vtrace}.yaml`` explain those that each has."""

    name: str = "ppo"
    segment: int = 128
    epochs: int = 4
    minibatches: int = 2
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-3
    adam_epsilon: float = 1e-5
    weight_decay: float = 0.0
    objective: str = "discounted"
    average_reward_rate: float = 0.1
    reward_scale_rate: float | None = None
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    clip_value: bool = False
    rho_clip: float = 1.0
    trace_clip: float = 1.0
    normalize_advantage: bool = True
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.01
    final_entropy_coefficient: float = 0.01
    max_grad_norm: float = 0.5
    target_kl: float | None = None
    history: int = 0
    history_gradient: bool = True
    l2_to_initial: float = 0.0
    continual_backprop: float = 0.0
    continual_backprop_maturity: int = 100
    plasticity_every: int = 10

    def check(self, num_lives: int) -> None:
        """Raise ValueError, one line, for a value that cannot work."""
        if not 1 <= self.minibatches <= num_lives:
            raise ValueError(f"algorithm.minibatches={self.minibatches}: allowed are 1 to env.num_lives={num_lives}")
        for name, value, allowed in (("name", self.name, ALGORITHMS), ("objective", self.objective, OBJECTIVES)):
            if value not in allowed:
                raise ValueError(f"algorithm.{name}={value}: allowed are {', '.join(allowed)}")
        if self.segment * num_lives < 2 * self.minibatches:
            raise ValueError(f"algorithm.segment={self.segment}: a minibatch needs 2 steps or more")
        for name, low, high in (("gamma", 0, 1), ("gae_lambda", 0, 1), ("clip_epsilon", 0, 1)):
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: allowed are {low} to {high}")
        for name in ("average_reward_rate", "reward_scale_rate"):
            rate = getattr(self, name)
            if rate is not None and not 0 < rate <= 1:
                raise ValueError(f"algorithm.{name}={rate}: must be above 0 and at most 1")
        if self.history < 0:
            raise ValueError(f"algorithm.history={self.history}: must be 0 (none) or more segments")
        if self.plasticity_every < 0:
            raise ValueError(f"algorithm.plasticity_every={self.plasticity_every}: must be 0 (never) or more updates")
        if not 0 <= self.continual_backprop < 1:
            raise ValueError(f"algorithm.continual_backprop={self.continual_backprop}: must be 0 (none) to below 1")
        for name in ("segment", "epochs", "continual_backprop_maturity"):
            if getattr(self, name) < 1:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: allowed are 1 and more")
        for name in ("learning_rate", "final_learning_rate"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be above 0 and at most 1")
        for name in ("adam_epsilon", "max_grad_norm", "rho_clip", "trace_clip"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be above 0 and finite")
        for name in (
            *("weight_decay", "value_coefficient", "entropy_coefficient", "final_entropy_coefficient"),
            "l2_to_initial",
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"algorithm.{name}={getattr(self, name)}: must be 0 or more and finite")
        if self.target_kl is not None and not 0 < self.target_kl < math.inf:
            raise ValueError(f"algorithm.target_kl={self.target_kl}: must be above 0, or null")


class Algorithm:
    """One optimiser and one loss over an ActorCritic.

    ``update`` improves the agent on one segment. With unchanged weights the ratio is 1: what the agent computed when
    acting is what the update computes again. ``train/ratio_deviation`` is the largest |rho - 1| of the first
    minibatch, before any step. (With ``history``, states are computed again by the present weights, and it is not.)
    """

    def __init__(
        self, agent: ActorCritic, config: AlgorithmConfig, generator: torch.Generator, group: Group = ALONE
    ) -> None:
        self.agent = agent
        self.config = config
        self.group = group
        self.generator = generator
        self.updates = 0
        decayed = [weight for weight in agent.parameters() if weight.dim() > 1]
        others = [weight for weight in agent.parameters() if weight.dim() <= 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": config.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=config.learning_rate,
            eps=config.adam_epsilon,
            # A fifth of the time for as many small weights. It reads weights, gradients and moments as they lie in
            # memory, so all of them must lie in the same order.
            fused=all(weight.is_contiguous() for weight in agent.parameters()),
        )
        self.loss: Loss = make_loss(agent, config, group)
        self.rewards = RewardScale(config, group)
        self.history = History(config.history)
        self.pull, self.renewal = None, None
        if config.l2_to_initial:
            self.pull = PullToInitial(list(agent.parameters()), config.l2_to_initial)
        if config.continual_backprop:
            rate, maturity = config.continual_backprop, config.continual_backprop_maturity
            self.renewal = ContinualBackprop(agent, self.optimizer, rate, maturity, generator, group)

    def update(self, segment: TensorDict, progress: float = 0.0) -> dict[str, float]:
        """Improve the agent on ``segment``; ``progress`` in [0, 1] moves the schedules. Returns what is logged.

        Raises:
            NonFinite: a loss or gradient is not finite; no step is taken with it.
        """
        config = self.config
        learning_rate, entropy = self._schedule(progress)
        self.rewards.apply(segment)
        add_advantages(segment, config.gamma, config.gae_lambda)
        joined = self.history.extend(segment)
        measured = config.plasticity_every and (self.updates + 1) % config.plasticity_every == 0
        before = WeightsBefore(self.agent) if measured else None
        sums: dict[str, float] = {}
        count, deviation, stop = 0, 0.0, False
        for _ in range(config.epochs):
            order = torch.randperm(segment.shape[0] * self.group.world, generator=self.generator)
            for lives in order.tensor_split(config.minibatches):
                own, share = self.group.own_lives(lives)
                batch = joined[own]
                with self.renewal.watch() if self.renewal else nullcontext():
                    losses = self.loss(batch, counted=share > 0)
                if count == 0 and share > 0:
                    deviation = self._ratio_deviation(batch)
                values = self._step(losses, share)
                for name, value in values.items():
                    sums[name] = sums.get(name, 0.0) + value
                count += 1
                stop = config.target_kl is not None and values.get("kl_approx", 0.0) > 1.5 * config.target_kl
                if stop:
                    break
            if stop:
                break
        if not all(bool(weight.isfinite().all()) for weight in self.agent.parameters()):
            raise NonFinite(
                f"update {self.updates}: the weights are not finite after its last step; learning_rate is too high"
            )
        self.updates += 1
        return {
            **{_TAGS[name]: total / count for name, total in sums.items()},
            **self.rewards.metrics(),
            "train/explained_variance": float(explained_variance(segment, self.group)),
            "train/ratio_deviation": max(self.group.gather(deviation)),
            "train/learning_rate": learning_rate,
            "train/entropy_coefficient": entropy,
            "train/minibatch_steps": float(count),
            **({"train/units_replaced": float(self.renewal.replaced)} if self.renewal else {}),
            **(
                self.group.gather(plasticity(self.agent, segment) | before.update_ratios(self.agent))[0]
                if before
                else {}
            ),
        }

    def _step(self, losses: TensorDict, share: float) -> dict[str, float]:
        """One step down the gradient of the whole minibatch, of which ``losses`` are for this process's ``share``;
        returns what is logged of it.
        """
        total = losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]
        self.optimizer.zero_grad(set_to_none=True)
        (share * total).backward()
        names = [name for name in LOGGED if name in losses.keys()]  # noqa: SIM118 - a TensorDict
        logged = share * torch.stack([losses[name].detach() for name in names])
        logged = self.group.add_gradients(list(self.agent.parameters()), logged)
        if self.pull:
            self.pull.add_gradients()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.agent.parameters(), self.config.max_grad_norm)
        found = [*logged.tolist(), float(grad_norm)]
        values = dict(zip((*names, "grad_norm"), found, strict=True))
        self._refuse_non_finite(values)
        if self.renewal:
            self.renewal.step(share)
        else:
            self.optimizer.step()
        return values

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
        self.loss.set_entropy_coefficient(entropy)
        return learning_rate, entropy

    @torch.no_grad()
    def _ratio_deviation(self, batch: TensorDict) -> float:
        distribution = self.loss.actor.distribution
        assert distribution is not None
        log_prob = distribution.log_prob(batch["steps", "action"])
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
            "rewards": self.rewards.state_dict(),
            "history": self.history.state_dict(),
            **({"pull": self.pull.state_dict()} if self.pull else {}),
            **({"renewal": self.renewal.state_dict()} if self.renewal else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.optimizer.load_state_dict(state["optimizer"])
        self.generator.set_state(state["generator"])
        self.updates = state["updates"]
        self.rewards.load_state_dict(state["rewards"])
        self.history.load_state_dict(state["history"])
        if self.pull:
            self.pull.load_state_dict(state["pull"])
        if self.renewal:
            self.renewal.load_state_dict(state["renewal"])


_TAGS = {
    "loss_objective": "train/policy_loss",
    "loss_critic": "train/value_loss",
    "loss_entropy": "train/entropy_loss",
    "entropy": "train/entropy",
    "kl_approx": "train/approx_kl",
    "clip_fraction": "train/clip_fraction",
    "grad_norm": "train/grad_norm",
}
