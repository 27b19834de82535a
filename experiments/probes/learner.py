"""The network that the probes train and measure: a core between two linear maps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory import MemoryCore


class Memory(Protocol):
    """What a probe measures. A test may put a dictionary here, or a closed form."""

    def initial_state(self, lives: int) -> TensorDict: ...

    def __call__(self, tokens: Tensor, state: TensorDict) -> tuple[Tensor, TensorDict]:
        """tokens [B, T, F], state [B] -> answers [B, T, A], state."""


class Learner(nn.Module):
    """answers = W_a LayerNorm(core(W_t token))."""

    def __init__(self, core: MemoryCore, token_size: int, answer_size: int) -> None:
        super().__init__()
        self.embed = nn.Linear(token_size, core.dim)
        self.core = core
        self.norm = nn.LayerNorm(core.dim)
        self.read = nn.Linear(core.dim, answer_size)

    def initial_state(self, lives: int) -> TensorDict:
        return self.core.initial_state(lives)

    def forward(self, tokens: Tensor, state: TensorDict) -> tuple[Tensor, TensorDict]:
        outputs, state = self.core(self.embed(tokens), state)
        return self.read(self.norm(outputs)), state


def train(
    learner: Learner,
    batch_loss: Callable[[Learner, torch.Generator], Tensor],
    updates: int,
    learning_rate: float,
    seed: int,
    progress: Callable[[float], None] = lambda loss: None,
) -> float:
    """Adam for a fixed number of updates on fresh batches; the rate warms up over a tenth and falls to zero by cosine.

    Returns the mean loss of the last tenth.

    Raises:
        ArithmeticError: the loss is not finite.
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(learner.parameters(), lr=learning_rate)
    warm = max(1, updates // 10)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda update: min((update + 1) / warm, 0.5 + 0.5 * math.cos(math.pi * update / updates))
    )
    losses = []
    for _ in range(updates):
        loss = batch_loss(learner, generator)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(learner.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            raise ArithmeticError(f"the loss is {losses[-1]} at update {len(losses)}")
        progress(losses[-1])
    return sum(losses[-warm:]) / warm
