"""What the cores with softmax attention share: where a step stands in its life, what it sees, and how it is kept.

A cache is used by three operations, the same for every tensor that is kept per step: ``extend`` puts what is cached
in front of what the call brings, [B, N, ...]; ``visible`` [B, T, N] says which of these N each step sees; ``store``
gives the cache after the call, [B, C, ...].
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.core import LifeTooLong, MemoryCore
from lifelong.memory.feed_forward import FeedForward
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.resets import clear, segments
from lifelong.memory.rotary import positions


class Timeline(NamedTuple):
    """Where the steps of a [B, T] call stand in their lives."""

    held: Tensor  # [B] int64, steps lived before the call
    position: Tensor  # [B, T] int64, steps since the last reset; 0 at a reset
    life: Tensor  # [B, T] int64, resets so far in this call; 0 is the life that came in

    @classmethod
    def of(cls, held: Tensor, reset: Tensor | None, steps: int) -> Timeline:
        """From the step counter [B] and the resets [B, T]."""
        position = positions(held, steps, reset)
        return cls(held, position, torch.zeros_like(position) if reset is None else segments(reset))

    @property
    def life_step(self) -> Tensor:
        """[B] int64, the step counter after the call."""
        return self.position[:, -1] + 1

    def of_last_life(self) -> Tensor:
        """[B, T] bool: the steps of the life that goes on after the call."""
        return self.life == self.life[:, -1:]

    def distance(self, cached: Tensor) -> Tensor:
        """[B, T, C + T] int64: how many steps each key lies back, for keys cached at the positions [B, C]."""
        return self.position.unsqueeze(2) - torch.cat([cached, self.position], 1).unsqueeze(1)

    def same_life(self, cached: Tensor) -> Tensor:
        """[B, T, C + T] bool: whether a key is of the step's own life; ``cached`` [B, C]: the slots that hold one."""
        of_keys = torch.cat([cached.long() - 1, self.life], 1)  # an empty slot is of life -1, which nobody lives
        return of_keys.unsqueeze(1) == self.life.unsqueeze(2)


class FullCache:
    """All steps of a life, in order: slot p holds the step at position p.

    Args:
        timeline: of the call.
        capacity: number of slots C.

    Raises:
        LifeTooLong: a life does not fit; names the first such life and its step.
    """

    def __init__(self, timeline: Timeline, capacity: int) -> None:
        over = timeline.position >= capacity
        if bool(over.any()):
            life, time = over.nonzero()[0].tolist()
            raise LifeTooLong(
                f"life {life} does not fit: its step {int(timeline.position[life, time]) + 1:,} is one more than the "
                f"capacity of {capacity:,} steps; attention over the whole life needs a state that grows with it "
                f"(give a larger capacity, or a memory of constant size)"
            )
        self.timeline = timeline
        # Slots that no row of the batch has filled are left out: a young life is cheaper than an old one.
        self.used = int(timeline.held.max())
        slots = torch.arange(self.used, device=timeline.held.device).expand(len(timeline.held), self.used)
        filled = slots < timeline.held.unsqueeze(1)
        self.visible = timeline.same_life(filled) & (timeline.distance(slots) >= 0)

    def extend(self, cached: Tensor, new: Tensor) -> Tensor:
        return torch.cat([cached[:, : self.used], new], 1)

    def store(self, cached: Tensor, new: Tensor) -> Tensor:
        ended = self.timeline.life[:, -1] > 0
        life, time = self.timeline.of_last_life().nonzero(as_tuple=True)
        return clear(cached, ended).index_put((life, self.timeline.position[life, time]), new[life, time])


class ShiftCache:
    """The last ``slots`` steps of a life, newest last; each step sees those before it and itself.

    A life begins with an empty cache or, if ``started``, with ``initial`` [C, ...] in the place of the steps before
    its first: step 0 sees all C of them, step C none. Where a life begins inside a call, they are keys of their own,
    in front of the cached ones.

    Args:
        timeline: of the call.
        slots: number of slots C.
        started: see above.
    """

    def __init__(self, timeline: Timeline, slots: int, started: bool = False) -> None:
        self.timeline, self.slots = timeline, slots
        self._slot = torch.arange(slots, device=timeline.held.device)
        position = timeline.held.unsqueeze(1) - slots + self._slot
        self.distance = timeline.distance(position)
        same_life = timeline.same_life(torch.ones_like(position, dtype=torch.bool) if started else position >= 0)
        self._begins = started and bool(timeline.life.any())
        if self._begins:
            before = timeline.position.unsqueeze(2) + slots - self._slot
            self.distance = torch.cat([before, self.distance], 2)
            same_life = torch.cat([(timeline.life > 0).unsqueeze(2).expand_as(before), same_life], 2)
        self.visible = same_life & (self.distance >= 0) & (self.distance <= slots)

    def extend(self, cached: Tensor, new: Tensor, initial: Tensor | None = None) -> Tensor:
        if initial is None or not self._begins:
            return torch.cat([cached, new], 1)
        return torch.cat([initial.expand_as(cached), cached, new], 1)

    def store(self, cached: Tensor, new: Tensor, initial: Tensor | None = None) -> Tensor:
        continues = (self.timeline.life[:, -1:] == 0).expand(-1, self.slots)
        kept = torch.cat([continues, self.timeline.of_last_life()], 1)[:, -self.slots :]
        kept = kept.view(*kept.shape, *[1] * (new.dim() - 2))
        last = torch.cat([cached, new], 1)[:, -self.slots :]
        if initial is None or not self._begins:
            return last.masked_fill(~kept, 0.0)
        place = (self.timeline.life_step.unsqueeze(1) + self._slot).clamp(max=self.slots - 1)
        return torch.where(kept, last, initial[place])


class AttentionStack(MemoryCore):
    """Layers over one step counter, each followed by a feed-forward block if there are any.

    State: ``life_step`` [B] int64, the steps lived since the last reset, and a TensorDict per layer, ``layer_0``, ...
    """

    layers: nn.ModuleList
    feed_forward: nn.ModuleList

    @abstractmethod
    def _cache(self, timeline: Timeline) -> Any:
        """What the layers need to know of a call, worked out once for all of them."""

    def _set_layers(self, layers: list[nn.Module], feed_forward: float) -> None:
        check_at_least(0, feed_forward=feed_forward)
        self.layers = nn.ModuleList(layers)
        self.feed_forward = nn.ModuleList(FeedForward(self.dim, feed_forward) for _ in layers if feed_forward)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> TensorDict:
        like = next(self.parameters())
        device, dtype = device or like.device, dtype or like.dtype
        state = TensorDict({"life_step": torch.zeros(batch_size, dtype=torch.int64, device=device)}, [batch_size])
        for index, layer in enumerate(self.layers):
            state[f"layer_{index}"] = layer.initial_state(batch_size, device, dtype)  # type: ignore[operator]
        return state

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        timeline = Timeline.of(state.get("life_step"), reset, inputs.shape[1])
        cache = self._cache(timeline)
        outputs, new_state = inputs, TensorDict({"life_step": timeline.life_step}, [len(inputs)])
        for index, layer in enumerate(self.layers):
            outputs, new_state[f"layer_{index}"] = layer(outputs, state.get(f"layer_{index}"), cache, reset)
            if self.feed_forward:
                outputs = self.feed_forward[index](outputs)
        return outputs, new_state

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None = None) -> tuple[Tensor, TensorDict]:
        outputs, state = self.forward(inputs.unsqueeze(1), state, None if reset is None else reset.unsqueeze(1))
        return outputs.squeeze(1), state
