"""Gated Transformer-XL: relative attention over the inputs of the last steps, with gates in place of residuals."""

from __future__ import annotations

import math

import torch
from tensordict import TensorDict
from torch import Tensor, nn

from lifelong.memory.attention_cache import AttentionStack, ShiftCache, Timeline
from lifelong.memory.learned_reset import ResetState
from lifelong.memory.option_checks import check_at_least
from lifelong.memory.registry import register_core


class GRUGate(nn.Module):
    """Gate in place of a residual connection (Parisotto et al. 2020, section 3.2, GRU-type gating):

        r = sigmoid(W_r y + U_r x),  z = sigmoid(W_z y + U_z x - b),  c = tanh(W_c y + U_c (r x))
        g(x, y) = (1 - z) x + z c

    x is the stream, y what the submodule made of it. b begins at ``bias``; 2 keeps the layer near the identity.
    """

    def __init__(self, dim: int, bias: float) -> None:
        super().__init__()
        self.of_made = nn.Linear(dim, 3 * dim, bias=False)  # W_r, W_z, W_c
        self.of_stream = nn.Linear(dim, 2 * dim, bias=False)  # U_r, U_z
        self.of_reset_stream = nn.Linear(dim, dim, bias=False)  # U_c
        self.bias = nn.Parameter(torch.full((dim,), float(bias)))

    def forward(self, stream: Tensor, made: Tensor) -> Tensor:
        made_r, made_z, made_c = self.of_made(made).chunk(3, -1)
        stream_r, stream_z = self.of_stream(stream).chunk(2, -1)
        reset, update = (made_r + stream_r).sigmoid(), (made_z + stream_z - self.bias).sigmoid()
        candidate = (made_c + self.of_reset_stream(reset * stream)).tanh()
        return torch.lerp(stream, candidate, update)


class GTrXLLayer(nn.Module):
    """One layer. With x_t the input, M the inputs of the last n steps of the life, LN a LayerNorm of its own each:

        e_j = LN(x_j) for the steps of M and the present one
        s_tj = (W_q e_t + u) . W_k e_j + (W_q e_t + w) . W_p p(t - j)    per head, / sqrt(D)
        a_t = W_o sum_j softmax_j(s_tj) W_v e_j
        b_t = gate_1(x_t, relu(a_t)),   y_t = gate_2(b_t, relu(W_2 relu(W_1 LN(b_t))))

    p(d) is the sinusoidal code of the lag d = 0 .. n, and u, w are learned per head (Transformer-XL: Dai et al. 2019,
    section 3.3). LayerNorm inside the submodules, relu and gates: Parisotto et al. 2020, equations 7 to 11 ("identity
    map reordering").

    State: ``inputs`` [B, n, dim], newest last.
    """

    lags: Tensor

    def __init__(
        self,
        dim: int,
        memory_steps: int,
        heads: int,
        head_dim: int,
        feed_forward: float,
        gate_bias: float,
        reset_state: str,
    ) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim
        self.reset_state = ResetState(reset_state, {"inputs": (memory_steps, dim)})
        self.attention_norm, self.feed_forward_norm = nn.LayerNorm(dim), nn.LayerNorm(dim)
        width = heads * head_dim
        self.query = nn.Linear(dim, width, bias=False)
        self.key_value = nn.Linear(dim, 2 * width, bias=False)
        self.lag_key = nn.Linear(dim, width, bias=False)
        self.content_bias = nn.Parameter(torch.zeros(heads, head_dim))
        self.lag_bias = nn.Parameter(torch.zeros(heads, head_dim))
        self.output_projection = nn.Linear(width, dim, bias=False)
        hidden = int(feed_forward * dim)
        self.widen, self.narrow = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.attention_gate, self.feed_forward_gate = GRUGate(dim, gate_bias), GRUGate(dim, gate_bias)
        self.register_buffer("lags", sinusoids(memory_steps + 1, dim), persistent=False)

    def initial_state(self, batch_size: int, device: torch.device | str, dtype: torch.dtype) -> TensorDict:
        return TensorDict(self.reset_state.initial(batch_size, self.query.weight, device, dtype), [batch_size])

    def forward(
        self, inputs: Tensor, state: TensorDict, cache: ShiftCache, reset: Tensor | None
    ) -> tuple[Tensor, TensorDict]:
        """[B, T, dim] -> [B, T, dim]."""
        learned, held = self.reset_state.get("inputs"), state.get("inputs")
        attended = self._attend(inputs, cache.extend(held, inputs, learned), cache)
        stream = self.attention_gate(inputs, attended.relu())
        made = self.narrow(self.widen(self.feed_forward_norm(stream)).relu()).relu()
        new_state = TensorDict({"inputs": cache.store(held, inputs, learned)}, [len(inputs)])
        return self.feed_forward_gate(stream, made), new_state

    def _attend(self, inputs: Tensor, extended: Tensor, cache: ShiftCache) -> Tensor:
        per_head = (self.heads, self.head_dim)
        query = self.query(self.attention_norm(inputs)).unflatten(-1, per_head)
        key, value = self.key_value(self.attention_norm(extended)).unflatten(-1, (2, *per_head)).unbind(-3)
        lag_key = self.lag_key(self.lags.to(query.dtype)).unflatten(-1, per_head)
        of_content = torch.einsum("bthd,bnhd->bhtn", query + self.content_bias, key)
        of_lags = torch.einsum("bthd,lhd->bhtl", query + self.lag_bias, lag_key)
        lag = cache.distance.clamp(0, len(lag_key) - 1).unsqueeze(1).expand(-1, self.heads, -1, -1)
        scores = (of_content + of_lags.gather(3, lag)) / math.sqrt(self.head_dim)
        weights = scores.masked_fill(~cache.visible.unsqueeze(1), -torch.inf).softmax(-1)
        return self.output_projection(torch.einsum("bhtn,bnhd->bthd", weights, value).flatten(-2))


def sinusoids(lags: int, dim: int) -> Tensor:
    """[lags, dim]: sin(d w_i), then cos(d w_i), with w_i = 10000^(-2 i / dim) (Vaswani et al. 2017, section 3.5)."""
    rates = 10000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angle = torch.arange(lags, dtype=torch.float64).unsqueeze(1) * rates
    return torch.cat([angle.sin(), angle.cos()], 1)[:, :dim].float()


@register_core("gtrxl")
class GTrXLCore(AttentionStack):
    """Gated Transformer-XL (Parisotto et al. 2020), the softmax memory that agents are usually given.

    Two departures. The paper stops the gradient at its memory; here it passes, so that a sequence may be cut anywhere
    (a rollout cuts it at the start of a segment, in both). And the memory of a new life is empty, or learned, where
    the paper does not say what it is.

    State: ``life_step`` [B] int64, and per layer as ``GTrXLLayer``. With L layers an output depends on the last
    L * memory_steps inputs, and on nothing before them.

    Args:
        dim: width of inputs and outputs.
        memory_steps: steps n whose layer inputs are kept.
        layers: number of layers.
        heads: attention heads per layer.
        head_dim: width of queries, keys and values of a head.
        feed_forward: hidden width of a layer's second half, as a multiple of ``dim``.
        gate_bias: initial b of the gates.
        reset_state: what a life starts with: ``"zero"``, an empty memory, or ``"learned"``, n learned inputs a layer.
    """

    def __init__(
        self,
        dim: int,
        memory_steps: int = 64,
        layers: int = 1,
        heads: int = 4,
        head_dim: int = 32,
        feed_forward: float = 2.0,
        gate_bias: float = 2.0,
        reset_state: str = "zero",
    ) -> None:
        super().__init__(dim)
        check_at_least(1, memory_steps=memory_steps, layers=layers, heads=heads, head_dim=head_dim)
        if int(feed_forward * dim) < 1:
            raise ValueError(f"feed_forward={feed_forward} leaves no hidden unit at dim={dim}")
        self.memory_steps, self.learned = memory_steps, reset_state == "learned"
        sizes = (memory_steps, heads, head_dim, feed_forward, gate_bias, reset_state)
        self._set_layers([GTrXLLayer(dim, *sizes) for _ in range(layers)], 0.0)

    def _cache(self, timeline: Timeline) -> ShiftCache:
        return ShiftCache(timeline, self.memory_steps, self.learned)
