"""The one interface behind which every environment stands: a batch of B lives, stepped together.

The conventions, for every environment:

* An *episode* of the world ends in one of three ways. ``terminated``: the life ends, nothing is to be had after it
  (no bootstrap). ``truncated``: the life is cut from outside (bootstrap from the final observation). ``soft_reset``:
  the world starts again *inside* the life (goal reached, cart fallen); the agent keeps its memory and the return
  goes on.
* A life ends exactly where ``terminated | truncated``. The memory is dropped *before* the next step: ``reset[t + 1]
  = terminated[t] | truncated[t]``.
* Environments restart ended lives themselves, in the same step (Gymnasium's SAME_STEP): ``observation`` is then the
  first of the new life, ``final_observation`` the last of the old one.
* Observations are dicts of batched tensors. What the agent may not see (regime, oracle action, ...) is in
  ``privileged``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchrl.data import Composite, TensorSpec

Observation = dict[str, Tensor]


class Step(NamedTuple):
    """What one step of a batch of B lives gives back."""

    observation: Observation  # what the agent sees next: [B, ...]
    reward: Tensor  # [B] float32
    terminated: Tensor  # [B] bool: the life ended, its value is 0
    truncated: Tensor  # [B] bool: the life was cut, its value is that of final_observation
    soft_reset: Tensor  # [B] bool: the world started again inside the life
    final_observation: Observation | None  # [B, ...]; rows hold where terminated | truncated; None if no life ended
    privileged: Mapping[str, Tensor] = {}  # [B, ...]: for metrics and references only, never for the policy


@dataclass(frozen=True)
class References:
    """Reward levels to read a score against; ``None`` where there is no such figure.

    ``per="step"``: mean reward of a step over a life without end. ``per="episode"``: mean return of an episode.
    """

    per: Literal["step", "episode"]
    random: float  # uniform random actions
    oracle: float  # knows everything hidden
    memoryless: float | None = None  # the best policy that sees only the present observation
    last_transition: float | None = None  # the best known policy that sees the step before, too: what, action, reward
    order_free: float | None = None  # the best policy that remembers what it saw, but not which went with which
    ideal_learner: float | None = None  # the best that can be done by learning what is hidden, inside the life
    notes: Mapping[str, str] = field(default_factory=dict)  # of each figure: closed form, or simulation +- s.e.

    def score(self, value: float) -> float:
        """Normalised score: 0 is the random policy and 1 the oracle. ValueError: the oracle earns no more than that."""
        if not self.oracle > self.random:
            raise ValueError(
                f"no score: the oracle earns {self.oracle:g}, no more than random actions, {self.random:g}"
            )
        return (value - self.random) / (self.oracle - self.random)


class BatchedEnv(ABC):
    """A batch of ``num_lives`` environments.

    Attributes:
        name: the registered name, or the Gymnasium id.
        num_lives: B.
        observation_spec: a Composite of the per-life (unbatched) specs, one key per entry of an observation.
        action_spec: per-life: Categorical(n), MultiCategorical(nvec) or Bounded (continuous). Actions are [B] int64,
            [B, n] int64 or [B, n] float32.
        references: reward levels, or None when nothing is known.
        lifelong: True when lives have no end of their own (only reward rates can then be reported, not returns of
            lives).
        state_is_tensors: True when ``state_dict`` holds nothing but tensors, numbers and strings, so that it loads with
            ``weights_only=True``; False when it needs pickle (a Gymnasium environment's inside).
    """

    name: str
    num_lives: int
    observation_spec: Composite
    action_spec: TensorSpec
    references: References | None = None
    lifelong: bool = False
    state_is_tensors: bool = True
    device: torch.device = torch.device("cpu")

    @abstractmethod
    def reset(self) -> Observation:
        """Start all lives anew (from the streams seeded at construction) and return their first observations."""

    @abstractmethod
    def step(self, action: Tensor) -> Step:
        """Act in all lives. Raises EnvironmentFault (index, step) when one of them raises or returns NaN."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Everything that the future of the batch depends on, random generators included."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on bit for bit where ``state_dict`` was taken. The next call is ``step``, not ``reset``."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release what the environments hold."""


class EnvironmentFault(RuntimeError):
    """An environment raised or returned NaN: names the environment's index in the batch and the step."""


class UnsupportedSpace(ValueError):
    """An observation or action space that the project cannot serve: says which, and what is served."""
