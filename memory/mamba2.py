"""Mamba-2: a selective state space model whose decay is one number per head, run by the fast-weight kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.kernels import FastWeightOutput, fast_weight_attention, fast_weight_step
from lifelong.memory.health import report_write
from lifelong.memory.layered import LayeredCore, MemoryLayer
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core
from lifelong.memory.short_convolution import ShortConvolution

_STEP_FLOOR = 1.0e-4


class Mamba2Layer(MemoryLayer):
    """See ``Mamba2Core``."""

    def __init__(
        self,
        dim: int,
        heads: int,
        head_dim: int,
        state_dim: int,
        groups: int,
        convolution_taps: int,
        step_range: tuple[float, float],
        decay_range: tuple[float, float],
        reset_state: str,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim, self.groups = heads, head_dim, groups
        inner, pointers = heads * head_dim, groups * state_dim
        self.norm = nn.LayerNorm(dim)
        self._widths = [inner, pointers, pointers]  # x, B, C: what passes through the convolution
        self.projection = nn.Linear(dim, inner + sum(self._widths) + heads, bias=False)
        self.convolution = ShortConvolution(sum(self._widths), convolution_taps) if convolution_taps else None
        steps = torch.empty(heads).uniform_(math.log(step_range[0]), math.log(step_range[1])).exp().clamp_(_STEP_FLOOR)
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus of it is the step
        self.log_decay_rate = nn.Parameter(torch.empty(heads).uniform_(*decay_range).log())  # A = -exp(.)
        self.skip = nn.Parameter(torch.ones(heads))  # D
        self.read_norm = nn.RMSNorm(inner, eps=1.0e-5)
        self.output_projection = nn.Linear(inner, dim, bias=False)
        self.reset_state = ResetState(reset_state, {"fast_weights": (heads, head_dim, state_dim)})
        tail = {} if self.convolution is None else {"tail": (convolution_taps - 1, sum(self._widths))}
        self._tail_state = ResetState("zero", tail)

    def initial_state(
        self, batch_size: int, device: torch.device | str | None, dtype: torch.dtype | None
    ) -> TensorDict:
        state = super().initial_state(batch_size, device, dtype)
        return state.update(self._tail_state.initial(batch_size, self.step_bias, device, dtype))

    def forward(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        convolution = None if self.convolution is None else self.convolution.forward
        return self._run(fast_weight_attention, convolution, inputs, state, reset)

    def step(self, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
        convolution = None if self.convolution is None else self.convolution.step
        return self._run(fast_weight_step, convolution, inputs, state, reset)

    def _run(
        self,
        operation: Callable[..., FastWeightOutput],
        convolution: Callable[[Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]] | None,
        inputs: Tensor,
        state: TensorDict,
        reset: Tensor | None,
    ) -> tuple[Tensor, TensorDict]:
        new_state = TensorDict({}, [len(inputs)])
        gate, mixed, step = self.projection(self.norm(inputs)).split(
            [self._widths[0], sum(self._widths), self.heads], -1
        )
        if convolution is not None:
            mixed, new_state["tail"] = convolution(mixed, state.get("tail"), reset)
        value, key, query = nn.functional.silu(mixed).split(self._widths, -1)
        value = value.unflatten(-1, (self.heads, self.head_dim))
        step = nn.functional.softplus(step + self.step_bias)
        log_decay = -step * self.log_decay_rate.exp()
        memory = operation(
            self._per_head(query),
            self._per_head(key),
            value,
            step,
            log_decay,
            None,  # no momentum
            False,  # nothing is erased
            reset,
            state.get("fast_weights"),
            reset_state=self.reset_state.get("fast_weights"),
        )
        new_state["fast_weights"] = memory.state
        report_write(self._per_head(key), value, log_decay, state.get("fast_weights"), new_state["fast_weights"])
        read = (memory.output + self.skip.unsqueeze(-1) * value).flatten(-2)
        return inputs + self.output_projection(self.read_norm(read * nn.functional.silu(gate))), new_state

    def _per_head(self, pointers: Tensor) -> Tensor:
        """[..., groups * N] -> [..., heads, N]: the heads of a group share theirs."""
        return pointers.unflatten(-1, (self.groups, -1)).repeat_interleave(self.heads // self.groups, -2)


@register_core("mamba2")
class Mamba2Core(LayeredCore):
    """Mamba-2 (Dao and Gu 2024, sect. 3 and 7.1), in its residual block. With u = LayerNorm(x), per head:

        z, v, k, q, d = W u,   (v, k, q) = silu(ShortConvolution(v, k, q))
        step = softplus(d + c),   a = exp(-exp(A) step)
        S <- a S + step v k^T,   o = S q + D v                           k, q are called B, C by the authors
        y = x + W_o RMSNorm(o * silu(z))

    That is linear attention with write rate ``step`` and a decay tied to it (sect. 3 and 4 of the paper), and so the
    kernels of ``lifelong.kernels`` run it. The norm is over all heads at once, as the authors have it for one group.

    Initialisation: exp(A) uniform on [decay_min, decay_max], step log-uniform on [step_min, step_max], D = 1; a head
    remembers about 1 / (exp(A) step) steps.

    State: per layer ``fast_weights`` [B, heads, head_dim, state_dim] and, with convolution, ``tail`` [B, taps - 1, W]
    (zero at the start of a life, also where the fast weights are learned).

    Args:
        dim: width of inputs and outputs.
        layers: number of layers.
        heads: number of memories per layer.
        head_dim: width of the values of a head (P).
        state_dim: width of the keys and queries (N).
        groups: number of sets of keys and queries, shared by heads; it divides ``heads``.
        convolution_taps: window of the short causal convolution, 2 or more; 0 for none.
        feed_forward: hidden width of the feed-forward block behind each layer, as a multiple of ``dim``; 0 for none.
        step_min, step_max: smallest and largest step initially.
        decay_min, decay_max: smallest and largest exp(A) initially.
        reset_state: what a life starts with, ``"zero"`` or ``"learned"``.
    """

    matrices = ("fast_weights",)

    def __init__(
        self,
        dim: int,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        state_dim: int = 32,
        groups: int = 1,
        convolution_taps: int = 4,
        feed_forward: float = 0.0,
        step_min: float = 0.001,
        step_max: float = 0.1,
        decay_min: float = 1.0,
        decay_max: float = 16.0,
        reset_state: str = "zero",
    ) -> None:
        check_at_least(1, heads=heads, head_dim=head_dim, state_dim=state_dim, groups=groups)
        if heads % groups:
            raise ValueError(f"groups must divide heads={heads}, not {groups}")
        for name, low, high in (("step", step_min, step_max), ("decay", decay_min, decay_max)):
            if not 0 < low <= high:
                raise ValueError(f"{name}s need 0 < {name}_min <= {name}_max, not {low} and {high}")
        steps, decays = (step_min, step_max), (decay_min, decay_max)
        super().__init__(
            dim,
            layers,
            feed_forward,
            lambda: Mamba2Layer(dim, heads, head_dim, state_dim, groups, convolution_taps, steps, decays, reset_state),
        )
