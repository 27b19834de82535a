"""Segments before the present one: how far back gradients reach, and states computed again by the present weights.

The state stored at a segment's start was computed by older weights. With a history of K segments the update starts K
segments earlier, from the state stored there, and runs up to the present: what is remembered at the segment's start is
of the present weights (burn-in, Kapturowski et al. 2019), and, with gradients, what was written then learns from what
is asked now. Losses are of the present segment alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.agents.actor_critic import ActorCritic

_READ = ("observation", "action", "reset", "soft_reset", ("next", "reward"))


class History:
    """The latest ``length`` segments of all lives."""

    def __init__(self, length: int) -> None:
        self._segments: deque[TensorDict] = deque(maxlen=length)

    def extend(self, segment: TensorDict) -> TensorDict:
        """``segment`` with what came before it under ``history``, if anything did; and it is kept for the next."""
        joined = segment
        if self._segments:
            steps = torch.cat([each["steps"] for each in self._segments], 1)
            before = TensorDict({"steps": steps, "memory": self._segments[0]["memory"]}, segment.batch_size)
            joined = segment.copy().set("history", before)
        if self._segments.maxlen:
            kept = TensorDict(
                {"steps": segment["steps"].select(*_READ), "memory": segment["memory"]}, segment.batch_size
            )
            self._segments.append(kept.clone())
        return joined

    def state_dict(self) -> dict[str, Any]:
        return {"segments": [segment.to_dict() for segment in self._segments]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._segments.clear()
        for kept in state["segments"]:
            steps = kept["steps"]
            lives, length = steps["reset"].shape
            segment = TensorDict({"steps": TensorDict.from_dict(steps, batch_size=[lives, length])}, [lives])
            segment["memory"] = TensorDict.from_dict(kept["memory"], batch_size=[lives])
            self._segments.append(segment)


def with_history(agent: ActorCritic, batch: TensorDict, gradient: bool) -> tuple[Tensor, Tensor]:
    """Trunk and policy's parameters of ``batch``'s own steps, [B, T, ...], run from the start of its history."""
    if "history" not in batch.keys():  # noqa: SIM118 - a TensorDict
        return agent.sequence(batch["steps"], batch["memory"])
    before, steps = batch["history"], batch["steps"]
    if gradient:
        joined = torch.cat([before["steps"], steps.select(*_READ)], 1)
        trunk, parameters = agent.sequence(joined, before["memory"])
        length = steps.shape[1]
        return trunk[:, -length:], parameters[:, -length:]
    with torch.no_grad():
        state = agent.remember(before["steps"], before["memory"])
    memory = batch["memory"].copy().set("core", state)
    return agent.sequence(steps, memory)
