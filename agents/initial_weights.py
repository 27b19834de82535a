"""A pull to the weights that the agent began with: there, it could learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn


class PullToInitial:
    """Adds strength ||theta - theta_0||^2 to the loss: 2 strength (theta - theta_0) to the gradients.

    Regenerative regularisation, or L2 Init (Kumar, Marklund, Van Roy 2023). As in the paper it is part of the loss:
    gradients are clipped with it, and the optimiser scales it as it scales the rest.

    Args:
        parameters: as they are at the beginning.
        strength: 0 or more.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], strength: float) -> None:
        self._parameters = list(parameters)
        self._strength = strength
        self._initial = [parameter.detach().clone() for parameter in self._parameters]

    @torch.no_grad()
    def add_gradients(self) -> None:
        """To be called after ``backward``; weights that no loss reached stay as they are."""
        for parameter, initial in zip(self._parameters, self._initial, strict=True):
            if parameter.grad is not None:
                parameter.grad.add_(parameter - initial, alpha=2 * self._strength)

    def state_dict(self) -> dict[str, Any]:
        return {"initial": self._initial}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for own, stored in zip(self._initial, state["initial"], strict=True):
            own.copy_(stored)
