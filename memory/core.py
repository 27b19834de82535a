"""The contract of a memory core.

One convention everywhere: ``reset[b, t] = True`` means that life b drops its memory *before* step t.

A core is a causal map from a stream of inputs to a stream of outputs with a state of constant size. Three ways of
running it are equal, values and gradients: ``step`` folded over T; one call over [B, T]; calls over any cuts of [B,
T] with the state carried over. `tests/memory/test_contract.py` holds every registered core to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.health import measure


class LifeTooLong(ValueError):
    """A life has outgrown a memory that forgets nothing and has a fixed size: says which life, and at which step."""


class MemoryCore(nn.Module, ABC):
    """Base class of all memory cores.

    A core has no hidden state: what it remembers is in the TensorDict that it is given and hands back. Its parameters
    are the slow weights; they fix the dtype (float32, or float64 after ``core.double()``) and the device of
    everything it computes.

    Attributes:
        dim: width D of inputs and outputs.
        config_name: the word that chooses the core in a config; ``register_core`` sets it.
        matrices: names of the tensors of the state that are matrices [B, ..., V, K] in which the memory lies: those of
            which ``health`` takes the effective rank.
        lacks: options that other cores have and this one cannot, each with the reason.
    """

    dim: int
    config_name: ClassVar[str] = ""
    matrices: ClassVar[tuple[str, ...]] = ()
    lacks: ClassVar[Mapping[str, str]] = {}

    def __init__(self, dim: int) -> None:
        super().__init__()
        if dim < 1:
            raise ValueError(f"a memory core needs dim >= 1, not {dim}")
        self.dim = dim

    @abstractmethod
    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        """Run over a sequence.

        Args:
            inputs: [B, T, D], T >= 1.
            state: as ``initial_state`` or an earlier call returned it, batch [B]. It is never changed in place.
            reset: [B, T] bool, or None for no reset.

        Returns:
            outputs [B, T, D] and the state after step T.
        """

    @abstractmethod
    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        """Run one step: inputs [B, D], reset [B] bool or None. Equal to ``forward`` with T = 1."""

    @abstractmethod
    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        """The state before the first step of a life.

        A (possibly nested) TensorDict of fixed-shape tensors, batch [batch_size] first. Device and dtype are those of
        the parameters unless given; counters are int64 whatever the dtype.
        """

    def state_bytes(self) -> int:
        """Bytes of state that one life needs."""
        return sum(leaf.numel() * leaf.element_size() for leaf in self.initial_state(1).values(True, True))

    def state_bytes_at(self, life_step: int) -> int:
        """Bytes of state that a life needs after ``life_step`` steps: the same at any age, unless the state grows."""
        return self.state_bytes()

    @torch.no_grad()
    def health(self, state: TensorDict, inputs: Tensor | None = None, reset: Tensor | None = None) -> dict[str, float]:
        """How the memory is; means over lives, heads and layers, unless they say otherwise. It changes nothing.

        Read off the state (absent for a core without one):
            state_norm, state_max, state_non_finite   see ``lifelong.memory.health.state_health``
            effective_rank    of ``matrices``, exp of the entropy of their normalised singular values

        Watched in one step on ``inputs`` [B, D], if given, after what ``reset`` [B] drops:
            write_size        |S_t - a S_{t-1}| / |S_t| of a memory that learns pairs (of all that it is made of: both
                              layers of a network, both moments of a regression); of any other state
                              |s_t - s_{t-1}| / |s_t|
            surprise_before   |v - f(k; a S_{t-1})|, what the memory answers to its own key before the write, of a
                              memory that learns pairs; S k for a matrix
            surprise_after    |v - f(k; S_t)|
            decay_horizon     1 / (1 - a) in steps, geometric mean; absent where nothing decays
        """
        return measure(self.step, self.matrices, self.restarted(state, reset), inputs)

    def restarted(self, state: TensorDict, reset: Tensor | None) -> TensorDict:
        """The state, batch [B], with the lives of ``reset`` [B] at their start."""
        if reset is None:
            return state
        fresh = self.initial_state(len(state), device=state.device)
        restarted: TensorDict = state.apply(
            lambda old, new: torch.where(reset.view(-1, *[1] * (old.dim() - 1)), new, old), fresh
        )
        return restarted

    def check_state(self, state: TensorDict) -> None:
        """Refuse a state, batch [B], whose tensors differ in name or shape from those of this core with its options.

        Raises:
            ValueError: names the core and the tensors that differ.
        """
        found, wanted = _layout(state), _layout(self.initial_state(1))
        if found != wanted:
            lacking, foreign = (
                ", ".join(f"{name} {list(shape)}" for name, shape in a if (name, shape) not in b) or "nothing"
                for a, b in ((wanted, found), (found, wanted))
            )
            raise ValueError(
                f"this state is not one of {self.config_name or type(self).__name__} with its options: it lacks "
                f"{lacking}, and what it has instead is {foreign}"
            )

    def _zeros(self, *shape: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros on the device and in the dtype of the parameters, unless others are asked for."""
        like = next(self.parameters(), None)
        if like is not None:
            device, dtype = device or like.device, dtype or like.dtype
        return torch.zeros(shape, device=device, dtype=dtype)


def _layout(state: TensorDict) -> list[tuple[str, tuple[int, ...]]]:
    """The dotted names and shapes of one life's tensors, by name."""
    leaves = state.items(include_nested=True, leaves_only=True)
    return sorted((".".join(key) if isinstance(key, tuple) else key, tuple(leaf.shape[1:])) for key, leaf in leaves)
