"""Inputs that the tests of all implementations share, and how results are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels import FastWeightOutput, MomentumState, fast_weight_attention, fast_weight_step

OVER_TIME = ("query", "key", "value", "write_rate", "log_decay", "momentum", "erase_key", "reset")


@dataclass(frozen=True)
class Inputs:
    """The arguments of one call of `fast_weight_attention`."""

    query: Tensor
    key: Tensor
    value: Tensor
    write_rate: Tensor
    log_decay: Tensor | None = None
    momentum: Tensor | None = None
    reset: Tensor | None = None
    weights: Tensor | None = None
    running: Tensor | None = None
    erase_key: Tensor | None = None
    reset_state: Tensor | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return self.query.shape[1]

    def keywords(self) -> dict[str, Any]:
        keywords = {name: getattr(self, name) for name in (*OVER_TIME, "reset_state")}
        return keywords | self.options

    def state(self) -> Any:
        return self.weights if self.running is None else MomentumState(self.weights, self.running)

    def between(self, start: int, stop: int, state: Any) -> Inputs:
        """Steps start to stop - 1, from the given state."""
        weights, running = state if isinstance(state, MomentumState) else (state, None)
        cut = {name: getattr(self, name)[:, start:stop] for name in OVER_TIME if getattr(self, name) is not None}
        return replace(self, weights=weights, running=running, **cut)

    def to(self, dtype: torch.dtype) -> Inputs:
        return self._map(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor)

    def with_gradients(self) -> Inputs:
        return self._map(lambda t: t.detach().clone().requires_grad_() if t.is_floating_point() else t)

    def floating(self) -> dict[str, Tensor]:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: t for name, t in named.items() if isinstance(t, Tensor) and t.is_floating_point()}

    def _map(self, function: Callable[[Tensor], Tensor]) -> Inputs:
        named = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{name: function(t) for name, t in named.items() if isinstance(t, Tensor)})

    def run(self, implementation: str) -> FastWeightOutput:
        return fast_weight_attention(initial_state=self.state(), implementation=implementation, **self.keywords())

    def fold(self, implementation: str) -> FastWeightOutput:
        """The same as a fold of single steps."""
        state, outputs, surprises = self.state(), [], []
        for t in range(self.length):
            token = {name: value[:, t] if name in OVER_TIME and value is not None else value
                     for name, value in self.keywords().items()}  # fmt: skip
            output, state, surprise = fast_weight_step(state=state, implementation=implementation, **token)
            outputs.append(output)
            surprises.append(surprise)
        return FastWeightOutput(torch.stack(outputs, 1), state, torch.stack(surprises, 1))


def make_inputs(
    lives: int = 2,
    length: int = 21,
    heads: int = 2,
    key_width: int = 8,
    value_width: int = 5,
    *,
    decay: str | None = "scalar",
    momentum: bool = False,
    reset_rate: float = 0.15,
    keys: str = "random",
    rate: float | None = None,
    learned_reset: bool = False,
    erase_key: bool = False,
    seed: int = 0,
    **options: Any,
) -> Inputs:
    """float64 inputs; decay None, "scalar" or "channel"; keys "random", "alike" or "same"; rate None: random."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    scalars, states = (lives, length, heads), (lives, heads, value_width, key_width)
    noise = normal(*scalars, key_width)
    if keys != "random":
        noise = normal(lives, 1, heads, key_width) + {"alike": 0.1, "same": 0.0}[keys] * noise
    log_decay = None
    if decay is not None:
        log_decay = -normal(*scalars, *([key_width] if decay == "channel" else [])).abs()
    return Inputs(
        query=normal(*scalars, key_width),
        key=torch.nn.functional.normalize(noise, dim=-1),
        value=normal(*scalars, value_width),
        write_rate=normal(*scalars).sigmoid() if rate is None else torch.full(scalars, rate, dtype=torch.float64),
        log_decay=log_decay,
        momentum=normal(*scalars).sigmoid() if momentum else None,
        reset=torch.rand(lives, length, generator=generator) < reset_rate if reset_rate else None,
        weights=normal(*states),
        running=normal(*states) if momentum else None,
        erase_key=torch.nn.functional.normalize(normal(*scalars, key_width), dim=-1) if erase_key else None,
        reset_state=normal(*states[1:]) if learned_reset else None,
        options=options,
    )


def flatten(result: FastWeightOutput) -> dict[str, Tensor]:
    """Everything that a call returns, by name."""
    state = result.state if isinstance(result.state, MomentumState) else (result.state,)
    return {"output": result.output, "surprise": result.surprise} | dict(
        zip(("weights", "running"), state, strict=False)
    )


def gradients(inputs: Inputs, run: Callable[[Inputs], FastWeightOutput], seed: int = 1) -> dict[str, Tensor]:
    """Gradients of a random linear function of everything returned, in everything that floats."""
    inputs = inputs.with_gradients()
    generator = torch.Generator().manual_seed(seed)
    loss = sum(
        (tensor * torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)).sum()
        for tensor in flatten(run(inputs)).values()
    )
    named = inputs.floating()
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(named[name]) if grad is None else grad for name, grad in zip(named, found, strict=True)
    }


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float) -> None:
    """Relative errors, in the Euclidean norm, of named tensors."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        error = (actual[name].double() - tensor.double()).norm()
        assert error <= tolerance * tensor.double().norm() + 1e-30, f"{name}: {error / tensor.norm():.2e} > {tolerance}"
