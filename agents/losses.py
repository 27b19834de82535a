"""The losses of the algorithms, on TorchRL's modules, with one run of the core per minibatch.

A loss is called with a minibatch of whole lives (see ``lifelong.agents.segment``), whose ``steps`` hold ``advantage``
and ``value_target``; it returns TorchRL's TensorDict of terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torch.distributions import Distribution
from torchrl.objectives import A2CLoss, ClipPPOLoss
from torchrl.objectives.value.functional import vtrace_advantage_estimate

from lifelong.agents.actor_critic import ActorCritic
from lifelong.agents.distributed import ALONE, Group
from lifelong.agents.faults import NonFinite
from lifelong.agents.history import with_history
from lifelong.agents.segment import standardize

if TYPE_CHECKING:
    from lifelong.agents.algorithm import AlgorithmConfig

# What is logged of a loss, where it has it.
LOGGED = ("loss_objective", "loss_critic", "loss_entropy", "entropy", "kl_approx", "clip_fraction")
_KEYS = {
    "action": ("steps", "action"),
    "sample_log_prob": ("steps", "action_log_prob"),
    "advantage": ("steps", "advantage"),
    "value_target": ("steps", "value_target"),
    "value": ("steps", "state_value"),
}


class Loss:
    """PPO's or A2C's.

    Args:
        agent: the network.
        config: the algorithm's options.
        group: the ranks over which minibatches lie.
    """

    def __init__(self, agent: ActorCritic, config: AlgorithmConfig, group: Group = ALONE) -> None:
        self.config = config
        self.group = group
        self.actor = Actor(agent, config.history_gradient)
        self.module: Any = _module(self.actor, agent, config)

    def __call__(self, batch: TensorDict, counted: bool = True) -> TensorDict:
        """The terms of this process's part of a minibatch; if it is not ``counted``, nothing is learned from it."""
        if self.config.normalize_advantage:
            batch["steps", "advantage"] = standardize(batch["steps", "advantage"], self.group, counted)
        return self.module(batch)

    def set_entropy_coefficient(self, value: float) -> None:
        self.module.entropy_coeff.fill_(value)


class VTraceLoss(Loss):
    """A2C's, with advantages and targets by V-trace (Espeholt et al. 2018) for the minibatch's own weights.

        delta_t = rho_t (r_t + gamma V_{t+1} - V_t)
        G_t     = V_t + delta_t + gamma c_t (G_{t+1} - V_{t+1})
        A_t     = rho_t (r_t + gamma G_{t+1} - V_t),     rho_t = min(rho_clip, pi / mu), c_t = min(trace_clip, pi / mu)

    V_{t+1} is of the present weights too, but where a life was truncated and at the segment's end, where it is the
    one stored at collection.
    """

    def __call__(self, batch: TensorDict, counted: bool = True) -> TensorDict:
        config, steps = self.config, batch["steps"]
        distribution = self.actor.get_dist(batch)
        with torch.no_grad():
            value = self.actor.agent.value(self.actor.trunk)
            following = steps["next", "state_value"].clone()
            inside = ~steps["next", "done"][:, :-1]
            following[:, :-1] = torch.where(inside, value[:, 1:], following[:, :-1])
            advantage, target = vtrace_advantage_estimate(
                config.gamma,
                distribution.log_prob(steps["action"]).unsqueeze(-1),
                steps["action_log_prob"].unsqueeze(-1),
                value,
                following,
                steps["next", "learned_reward"],
                steps["next", "done"],
                steps["next", "terminated"],
                rho_thresh=config.rho_clip,
                c_thresh=config.trace_clip,
            )
        batch["steps", "value_target"] = target
        if config.normalize_advantage:
            advantage = standardize(advantage, self.group, counted)
        batch["steps", "advantage"] = advantage
        with self.actor.as_it_is():
            return self.module(batch)


def make_loss(agent: ActorCritic, config: AlgorithmConfig, group: Group = ALONE) -> Loss:
    """The loss of ``config.name``."""
    return VTraceLoss(agent, config, group) if config.name == "vtrace" else Loss(agent, config, group)


def _module(actor: Actor, agent: ActorCritic, config: AlgorithmConfig) -> Any:
    shared = {
        "entropy_bonus": True,
        "entropy_coeff": config.entropy_coefficient,
        "critic_coeff": config.value_coefficient,
        "loss_critic_type": "l2",
        "functional": False,
    }
    critic = Critic(actor, agent.value)
    if config.name == "ppo":
        module = ClipPPOLoss(
            actor,
            critic,
            clip_epsilon=config.clip_epsilon,
            clip_value=config.clip_value,
            log_explained_variance=False,
            **shared,
        )
    else:
        module = A2CLoss(actor, critic, **shared)
    module.set_keys(**_KEYS)
    return module


class Actor(TensorDictModuleBase):
    """The policy as TorchRL's losses want it: ``get_dist`` runs the trunk over a segment and keeps it."""

    in_keys = ["steps", "memory", "history"]  # noqa: RUF012 - tensordict's protocol
    out_keys = ["trunk"]  # noqa: RUF012
    dist_sample_keys = [_KEYS["action"]]  # noqa: RUF012
    log_prob_keys = [_KEYS["sample_log_prob"]]  # noqa: RUF012

    def __init__(self, agent: ActorCritic, history_gradient: bool) -> None:
        super().__init__()
        self.agent = agent
        self.history_gradient = history_gradient
        self.trunk: Tensor = torch.empty(0)
        self.distribution: Distribution | None = None
        self._keep = False

    def get_dist(self, tensordict: TensorDict) -> Distribution:
        if self._keep:
            assert self.distribution is not None
            return self.distribution
        trunk, parameters = with_history(self.agent, tensordict, self.history_gradient)
        if not bool(parameters.isfinite().all()):
            raise NonFinite("the policy's output is not finite in the update; learning_rate may be too high")
        self.trunk = trunk
        self.distribution = self.agent.action_head.distribution(parameters)
        return self.distribution

    @contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Inside, ``get_dist`` hands out what it found last."""
        self._keep = True
        try:
            yield
        finally:
            self._keep = False


class Critic(TensorDictModuleBase):
    """The value head alone, reading the trunk that the actor left."""

    in_keys = ["steps"]  # noqa: RUF012
    out_keys = [("steps", "state_value")]  # noqa: RUF012

    def __init__(self, actor: Actor, value: nn.Module) -> None:
        super().__init__()
        self.value = value
        self._actor = [actor]  # in a list: not a submodule, its weights are counted once

    def forward(self, tensordict: TensorDict) -> TensorDict:
        value: Tensor = self.value(self._actor[0].trunk)
        tensordict["steps", "state_value"] = value
        return tensordict
