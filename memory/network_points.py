"""Network memories that have a name. Each is a choice of defaults: every option of each can be changed.

A class says what is computed and whose idea it is; ``lifelong.memory.network_memory`` says what the options mean.
"""

from __future__ import annotations

from lifelong.memory.network_memory import NetworkCore, NetworkDesign
from lifelong.memory.registry import register_design


@register_design("ttt_linear", NetworkDesign)
class TTTLinear(NetworkCore):
    """TTT-Linear (Sun et al. 2024, section 2.7): a matrix behind a layer norm and a residual.

        f(x; W) = x + layer_norm(W x + w),   W <- W - b grad 1/2 |f(k; W) - v|^2,   reads f(q; W)

    W_0, norm and rate are learned, and the gradient is that of a mini-batch, at its start. Because of the norm only the
    direction of W x matters: writes move it less and less as W grows, and nothing runs away. Unlike the paper, ours
    scales keys to unit length, sums the gradients of a mini-batch (theirs divides that of pair i by i), and takes
    mini-batches of 4 steps in place of 16.
    """


@register_design("ttt_mlp", NetworkDesign, model="mlp", head_dim=16)
class TTTMLP(NetworkCore):
    """TTT-MLP (Sun et al. 2024, section 2.7): as ``ttt_linear``, with two layers.

        f(x; W) = x + layer_norm(W2 gelu(W1 x + w1) + w2)

    The hidden layer is 2 heads wide, 4 in the paper (hidden=4).
    """


@register_design("titans_mlp", NetworkDesign, model="mlp", head_dim=16, optimiser="momentum", retention="pull")
class TitansMLP(NetworkCore):
    """Titans (Behrouz, Zhong, Mirrokni 2025, equations 9 to 14) with a memory of two layers.

        M <- m M - b grad 1/2 |f(k; W) - v|^2,   W <- W_0 + a (W - W_0) + M,   reads f(q; W)

    Momentum m, rate b and decay a are gates of the token: what is surprising is written, and a surprise lasts. Two
    things are not as the paper has them, and an option each takes them back: weights are pulled to where a life began
    in place of zero, where two layers have no gradient left (retention=scalar), and f has the norm of ``ttt_mlp``,
    without which nothing bounds a step of two layers (inner_norm=false).
    """


@register_design(
    "atlas",
    NetworkDesign,
    model="mlp",
    head_dim=16,
    objective="windowed_squared_error",
    optimiser="muon",
    retention="pull",
    write_rate=0.3,
)
class Atlas(NetworkCore):
    """ATLAS (Behrouz et al. 2025): the Omega rule, trained by Muon.

        M <- m M - sum_{s = t - window + 1}^t g_s grad 1/2 |f(k_s; W) - v_s|^2
        W <- W_0 + a (W - W_0),   at the end of a chunk + b NewtonSchulz(M),   reads f(q; W)

    A step learns a window of pairs, so that the memory fits a context and not a token, and all directions of a step
    have the same length, so that rare ones are learned as fast as common ones. The length of a write is b whatever the
    error was: ours gates it by the token, but it is never zero. A chunk is read when it is over, except with chunk=1.
    Newton-Schulz multiplies what is small by 3.4 an iteration, rounding errors too: with short chunks and narrow
    matrices, gradients of the step and of the sequence agree to 4e-5 in float32 only (to 1e-10 in float64, from
    ``head_dim`` 4 on).
    The paper's polynomial keys are key_map=polynomial with inner_norm=false; retention and norm as ``titans_mlp``.
    """
