"""The agent's network: encoder, token, memory core, policy and value heads.

The token that the core sees at step t holds the whole last transition and the present observation:

    x_t = silu(W [ e(o_t), e(o_{t-1}), a_{t-1}, symlog(r_{t-1}), soft_reset_{t-1}, first_t ])

with e the encoder, and everything of t - 1 set to zero where ``reset[t]`` (the first step of a life, marked by
first_t). Without o_{t-1} a memory that writes one pair per token cannot bind "in this context, that action paid";
the rest is what RL^2 feeds back.

Two ways to run it give the same numbers: ``step`` on plain tensors (the rollout), and ``sequence`` over [B, T] (the
update).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn
from torch.nn.functional import silu
from torchrl.data import Composite, TensorSpec

from lifelong.agents.actions import make_action_head
from lifelong.agents.distributed import ALONE, Group
from lifelong.agents.encoder import Observation, ObservationEncoder
from lifelong.agents.faults import NonFinite
from lifelong.memory import MemoryCore


class Previous(NamedTuple):
    """The last transition, as the next token needs it."""

    embedding: Tensor  # [B, D]: e(o_{t-1})
    action: Tensor  # [B, ...]
    reward: Tensor  # [B]
    soft_reset: Tensor  # [B] bool


class PolicyStep(NamedTuple):
    """What one step of the policy gives back."""

    action: Tensor  # [B, ...]
    log_prob: Tensor  # [B]
    trunk: Tensor  # [B, D]: what the critic reads
    state: TensorDict  # of the memory, after this step
    embedding: Tensor  # [B, D]: e(o_t), for the next token


class ActorCritic(nn.Module):
    """Recurrent actor and critic on one trunk.

    Args:
        observation_spec, action_spec: of one life, as a batched environment states them.
        core: the memory.
        encoder_layers, encoder_grid: see ObservationEncoder.
        head_width: width of the hidden layer of each head; 0 for linear heads.
        layer_norm: normalise the hidden layers of encoder and heads before their nonlinearity.
    """

    def __init__(
        self,
        observation_spec: Composite,
        action_spec: TensorSpec,
        core: MemoryCore,
        encoder_layers: int = 1,
        encoder_grid: str = "planes",
        head_width: int = 64,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.observation_spec = observation_spec
        self.dim = core.dim
        self.encoder = ObservationEncoder(observation_spec, core.dim, encoder_layers, encoder_grid, layer_norm)
        self.action_head = make_action_head(action_spec)
        self.token = nn.Linear(2 * core.dim + self.action_head.encoding_size + 3, core.dim)
        with torch.no_grad():
            # Each part of the transition enters with the same weight: embeddings of norm sqrt(D), an action, a number.
            self.token.weight.normal_(std=0.15)
            self.token.weight[:, : 2 * core.dim] *= core.dim**-0.5
            self.token.bias.zero_()
        self.core = core
        self.trunk_norm = nn.LayerNorm(core.dim)
        self.policy = _make_head(core.dim, head_width, self.action_head.parameters_size, 0.01, layer_norm)
        self.value = _make_head(core.dim, head_width, 1, 1.0, layer_norm)

    def initial_previous(self, batch_size: int) -> TensorDict:
        """The transition before the first one, batch [B]; its content is masked out by ``reset``."""
        device = self.token.weight.device
        observation = self.observation_spec.zero().expand(batch_size).to(device).clone()
        return TensorDict(
            {
                "observation": TensorDict(dict(observation.items()), [batch_size]),
                "action": self.action_head.empty.expand(batch_size, *self.action_head.empty.shape).clone(),
                "reward": torch.zeros(batch_size, device=device),
                "soft_reset": torch.zeros(batch_size, dtype=torch.bool, device=device),
            },
            [batch_size],
        )

    def embed_previous(self, previous: TensorDict) -> Previous:
        """The stored transition, its observation encoded with the present weights."""
        embedding = self.encoder(dict(previous["observation"].items()))
        return Previous(embedding, previous["action"], previous["reward"], previous["soft_reset"])

    def step(
        self,
        observation: Observation,
        reset: Tensor,
        state: TensorDict,
        previous: Previous,
        generator: torch.Generator | None = None,
        greedy: bool = False,
        group: Group = ALONE,
    ) -> PolicyStep:
        """Act once in B lives: observation [B, ...], reset [B] bool (drops the memory before this step).

        The lives are this process's in ``group``; the noise is drawn for those of all.
        """
        embedding = self.encoder(observation)
        outputs, state = self.core.step(self._make_token(embedding, previous, reset), state, reset)
        trunk = self.trunk_norm(outputs)
        parameters = self.policy(trunk)
        if not math.isfinite(float(parameters.sum())):
            raise NonFinite("the policy's output is not finite: weights or memory have overflowed")
        if greedy:
            action = self.action_head.mode(parameters)
            log_prob = self.action_head.distribution(parameters).log_prob(action)
        else:
            action, log_prob = map(group.own, self.action_head.sample(group.spread(parameters), generator))
        return PolicyStep(action, log_prob, trunk, state, embedding)

    def peek_value(self, observation: Observation, reset: Tensor, state: TensorDict, previous: Previous) -> Tensor:
        """V of an observation that is not acted on (a final one, or the first of the next segment): [B]."""
        outputs, _ = self.core.step(self.peek_token(observation, reset, previous), state, reset)
        return self.value(self.trunk_norm(outputs)).squeeze(-1)

    def peek_token(self, observation: Observation, reset: Tensor, previous: Previous) -> Tensor:
        """What the core sees at a step, [B, D]."""
        return self._make_token(self.encoder(observation), previous, reset)

    def sequence(self, steps: TensorDict, memory: TensorDict) -> tuple[Tensor, Tensor]:
        """Run over a segment again, as the update does.

        Args:
            steps: [B, T] with ``observation``, ``action``, ``reset``, ``soft_reset`` and ``("next", "reward")``.
            memory: [B] as it was before the first step: ``core`` and ``previous``.

        Returns:
            the trunk [B, T, D] (the critic's input) and the policy's parameters [B, T, P].
        """
        outputs, _ = self._run(steps, memory)
        trunk = self.trunk_norm(outputs)
        return trunk, self.policy(trunk)

    def remember(self, steps: TensorDict, memory: TensorDict) -> TensorDict:
        """The core's state after a segment, batch [B], as the present weights have it; arguments as in ``sequence``."""
        _, state = self._run(steps, memory)
        return state

    def _run(self, steps: TensorDict, memory: TensorDict) -> tuple[Tensor, TensorDict]:
        previous = memory["previous"]
        observation = {
            key: torch.cat([previous["observation", key].unsqueeze(1), value], 1)
            for key, value in steps["observation"].items()
        }
        embedding = self.encoder(observation)  # [B, T + 1, D]: one encoding serves as o_t and, one later, as o_{t-1}
        before = Previous(
            embedding[:, :-1],
            _shift(previous["action"], steps["action"]),
            _shift(previous["reward"], steps["next", "reward"].squeeze(-1)),
            _shift(previous["soft_reset"], steps["soft_reset"]),
        )
        token = self._make_token(embedding[:, 1:], before, steps["reset"])
        return self.core(token, memory["core"], steps["reset"])

    def _make_token(self, embedding: Tensor, previous: Previous, reset: Tensor) -> Tensor:
        reward = previous.reward
        flags = torch.stack([reward.sign() * reward.abs().log1p(), previous.soft_reset.to(reward.dtype)], -1)
        past = torch.cat([previous.embedding, self.action_head.encode(previous.action), flags], -1)
        past = past.masked_fill(reset.unsqueeze(-1), 0.0)
        return silu(self.token(torch.cat([embedding, past, reset.unsqueeze(-1).to(reward.dtype)], -1)))


def _shift(first: Tensor, values: Tensor) -> Tensor:
    """[B, ...] and [B, T, ...] -> [B, T, ...] one step later, the last one dropped."""
    return torch.cat([first.unsqueeze(1), values[:, :-1]], 1)


def _make_head(dim: int, width: int, size: int, gain: float, layer_norm: bool) -> nn.Module:
    last = nn.Linear(width or dim, size)
    nn.init.orthogonal_(last.weight, gain)
    nn.init.zeros_(last.bias)
    if not width:
        return last
    norms = [nn.LayerNorm(width)] if layer_norm else []
    return nn.Sequential(nn.Linear(dim, width), *norms, nn.SiLU(), last)
