"""Action heads: from the policy's last layer to a distribution, for each kind of action space.

A head knows how many numbers the network must put out (``parameters_size``), which distribution they stand for, and
how a past action enters the next token (``encode``). Sampling and ``log_prob`` use the same formulas in the rollout
and in the loss.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.distributions import Categorical, Distribution, Independent, Normal
from torch.nn.functional import one_hot
from torchrl.data import Bounded, MultiCategorical, TensorSpec, Unbounded
from torchrl.data import Categorical as CategoricalSpec


def draw(probabilities: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index for each row of probabilities [..., n]: the first to arrive of n waits, exponential with these rates.

    What ``torch.multinomial`` does, number for number, but for its checks, which take as long again: the rows must be
    finite (``ActorCritic.step`` sees to that), and with a sum above 0.
    """
    waits = torch.empty_like(probabilities).exponential_(generator=generator)
    return (probabilities / waits).argmax(-1)


class ActionHead(nn.Module, ABC):
    """Base of the heads.

    Attributes:
        parameters_size: width of the network's output.
        encoding_size: width of an encoded action.
        empty: the action that stands before the first one of a life (its encoding is masked out anyway), per life.
    """

    parameters_size: int
    encoding_size: int
    empty: Tensor

    @abstractmethod
    def distribution(self, parameters: Tensor) -> Distribution:
        """The policy's distribution over actions, batch shape that of ``parameters`` without its last dimension."""

    @abstractmethod
    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Draw actions; returns them and their log-probabilities."""

    @abstractmethod
    def mode(self, parameters: Tensor) -> Tensor:
        """The most likely action."""

    @abstractmethod
    def encode(self, action: Tensor) -> Tensor:
        """A past action as floats for the next token: [..., encoding_size]."""


class DiscreteHead(ActionHead):
    """n actions, int64 [...] from 0 to n - 1, which is not checked: pi(a) = softmax(parameters)_a."""

    actions: Tensor

    def __init__(self, count: int) -> None:
        super().__init__()
        self.parameters_size = self.encoding_size = self.count = count
        self.register_buffer("empty", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("actions", torch.arange(count), persistent=False)

    def distribution(self, parameters: Tensor) -> Distribution:
        return Categorical(logits=parameters, validate_args=False)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        log_probs = parameters.log_softmax(-1)
        action = draw(log_probs.exp(), generator)
        return action, log_probs.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def mode(self, parameters: Tensor) -> Tensor:
        return parameters.argmax(-1)

    def encode(self, action: Tensor) -> Tensor:
        return (action.unsqueeze(-1) == self.actions).float()  # as one_hot, which looks at the data first


class MultiCategoricalDistribution(Distribution):
    """Independent categorical choices, int64 [..., n]: log pi(a) = sum_i log softmax(parameters_i)_{a_i}."""

    arg_constraints: dict = {}  # noqa: RUF012 - the name and type that torch.distributions prescribes

    def __init__(self, parameters: Tensor, counts: list[int]) -> None:
        self.parts = [Categorical(logits=part, validate_args=False) for part in parameters.split(counts, dim=-1)]
        super().__init__(parameters.shape[:-1], torch.Size([len(counts)]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        pairs = zip(self.parts, value.unbind(-1), strict=True)
        return torch.stack([part.log_prob(choice) for part, choice in pairs], -1).sum(-1)

    def entropy(self) -> Tensor:
        return torch.stack([part.entropy() for part in self.parts], -1).sum(-1)


class MultiDiscreteHead(ActionHead):
    """n independent choices among counts[i] each, int64 [..., n]."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__()
        self.counts = counts
        self.parameters_size = self.encoding_size = sum(counts)
        self.register_buffer("empty", torch.zeros(len(counts), dtype=torch.int64), persistent=False)

    def distribution(self, parameters: Tensor) -> Distribution:
        return MultiCategoricalDistribution(parameters, self.counts)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        action = torch.stack([draw(part.softmax(-1), generator) for part in parameters.split(self.counts, -1)], -1)
        return action, self.distribution(parameters).log_prob(action)

    def mode(self, parameters: Tensor) -> Tensor:
        return torch.stack([part.argmax(-1) for part in parameters.split(self.counts, -1)], -1)

    def encode(self, action: Tensor) -> Tensor:
        choices = zip(action.unbind(-1), self.counts, strict=True)
        return torch.cat([one_hot(choice, count) for choice, count in choices], -1).float()


class ContinuousHead(ActionHead):
    """A Gaussian with a learned, state-independent spread: a ~ N(centre + half_range * mean, (half_range *
    exp(log_std))^2).

    Actions are in the environment's own units; where a bound is infinite, centre is 0 and half_range 1. The
    environment clips what falls outside its bounds; the log-probability is that of the unclipped sample.
    """

    low: Tensor
    high: Tensor
    centre: Tensor
    half_range: Tensor

    def __init__(self, low: Tensor, high: Tensor, initial_log_std: float = -0.5) -> None:
        super().__init__()
        bounded = torch.isfinite(low) & torch.isfinite(high) & (low < high)
        centre = torch.where(bounded, (low + high) / 2, torch.zeros_like(low))
        half_range = torch.where(bounded, (high - low) / 2, torch.ones_like(low))
        for name, value in {"low": low, "high": high, "centre": centre, "half_range": half_range}.items():
            self.register_buffer(name, value.float(), persistent=False)
        self.parameters_size = self.encoding_size = low.numel()
        self.register_buffer("empty", self.centre.clone(), persistent=False)
        self.log_std = nn.Parameter(torch.full((low.numel(),), initial_log_std))

    def distribution(self, parameters: Tensor) -> Distribution:
        mean = self.centre + self.half_range * parameters
        spread = (self.half_range * self.log_std.exp()).expand_as(mean)
        return Independent(Normal(mean, spread, validate_args=False), 1, validate_args=False)

    def sample(self, parameters: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        distribution = self.distribution(parameters)
        noise = torch.randn(parameters.shape, generator=generator, device=parameters.device, dtype=parameters.dtype)
        action = distribution.mean + distribution.stddev * noise
        return action, distribution.log_prob(action)

    def mode(self, parameters: Tensor) -> Tensor:
        return self.centre + self.half_range * parameters

    def encode(self, action: Tensor) -> Tensor:
        clipped = action.maximum(self.low).minimum(self.high)
        return (clipped - self.centre) / self.half_range


def make_action_head(spec: TensorSpec) -> ActionHead:
    """The head for an action spec: Categorical, MultiCategorical, or Bounded / Unbounded of one dimension.

    Raises:
        ValueError: another kind of spec; the message says which are served.
    """
    if isinstance(spec, MultiCategorical):
        return MultiDiscreteHead([int(count) for count in spec.nvec.flatten()])
    if isinstance(spec, CategoricalSpec):
        return DiscreteHead(int(spec.n))
    if isinstance(spec, Bounded) and spec.dtype.is_floating_point and len(spec.shape) == 1:
        return ContinuousHead(spec.low, spec.high)
    if isinstance(spec, Unbounded) and spec.dtype.is_floating_point and len(spec.shape) == 1:
        bound = torch.full(spec.shape, torch.inf)
        return ContinuousHead(-bound, bound)
    raise ValueError(
        f"action space {type(spec).__name__} of shape {list(spec.shape)} and type {spec.dtype} is not served; "
        "served: Categorical, MultiCategorical, and one-dimensional Bounded or Unbounded floats"
    )
