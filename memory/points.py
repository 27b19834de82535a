"""Points of the design space that have a name. Each is a choice of defaults: every option of each can be changed.

A class says what is computed and whose idea it is; ``lifelong.memory.design`` says what the options mean. Where a
paper differs in something that is not its idea (convolutions, norms, gates), we keep to our own layer.
"""

from __future__ import annotations

from lifelong.memory.design import Design
from lifelong.memory.parametric import ParametricCore
from lifelong.memory.registry import register_design


@register_design("gated_delta", Design)
class GatedDelta(ParametricCore):
    """Gated delta rule (Yang, Kautz, Hatamizadeh 2025): the squared error, with a learned decay per head.

        S^- = a S,   S <- S^- + b (v - S^- k) k^T

    A write replaces what the memory answered to its key, and old pairs fade at a pace of their own in every head.
    """


@register_design("linear_attention", Design, objective="dot_product", retention="none")
class LinearAttention(ParametricCore):
    """Linear attention (Katharopoulos et al. 2020), Hebbian: the dot product, nothing erased and nothing forgotten.

        S <- S + b v k^T

    The state is a sum over the whole life and grows at most linearly, |S_t| <= t max|v|. The RMS norm of the read-out
    divides the growth out (in place of the sum of keys that the paper divides by, which may pass through zero for
    keys of either sign): what is read is a direction, in which one write of a life of t steps weighs about 1 / t.
    float32 holds such a sum to about 10^7 steps.
    """


@register_design(
    "mixed_heads",
    Design,
    heads=["plain*3", "rotary", "backward", "counting"],
    head_dim=128,
    value_dim=16,
    convolution_taps=0,
    key_map="identity",
    horizon_min=100.0,
    horizon_max=1.6e3,
    read_gate="sigmoid",
)
class MixedHeads(ParametricCore):
    """Heads that differ: content, order, reversed order and number, side by side in one layer. With p the position:

        plain     S <- a S + b (v - a S k) k^T,  read at q               what was bound to this key
        rotary    the same, k and q turned by p w                        what came so many steps ago
        backward  the same, k turned by p w, q by -p w                   what came, in the reverse order
        counting  S <- a S + b v k^T, 0.1 S q not normalised             how often

    Our own trials: turned by their position since the last reset, keys make of fast weights a memory in exact order
    (POPGym's RepeatPrevious); read against the turn, it plays backwards (Autoencode). Keys of ``head_dim`` steps in a
    row are orthogonal (``lifelong.memory.rotary``), so that ``head_dim`` is how far back the order is exact, and
    ``value_dim`` how much is kept of each step. Heads of one kind have several horizons; a single one has their
    geometric mean, 400 steps.
    """


@register_design(
    "retention",
    Design,
    objective="dot_product",
    retention="constant",
    horizon_max=256.0,
    key_map="identity",
    turn="with",
    turn_ratio=1.8,
)
class Retention(ParametricCore):
    """Retentive network (Sun et al. 2023): the Hebb rule with a fixed decay per head, and turned keys and queries.

    S <- a S + b v k^T,  a = 1 - 1/32, 1 - 1/64, ...
    """


@register_design("gla", Design, objective="dot_product", retention="per_channel", key_map="identity")
class GatedLinearAttention(ParametricCore):
    """Gated linear attention (Yang et al. 2024): the Hebb rule with a decay per channel of the keys.

    S <- S diag(a) + b v k^T
    """


@register_design(
    "mlstm",
    Design,
    objective="dot_product",
    write_gate="exponential",
    key_map="identity",
    unit_keys=False,
    read_gate="sigmoid",
)
class MatrixLSTM(ParametricCore):
    """The matrix memory of xLSTM (Beck et al. 2024, eq. 19 to 27): exponential write gates, and a normaliser.

        C <- a C + b v k^T,  n <- a n + b k,  b = exp(w_b . h + c_b),  reads C q / max(|n . q|, 1)

    A token may outweigh everything written before it. State and gates are kept over their largest exponent
    (``log_scale``), which does not show in what is read.
    """


@register_design("delta", Design, retention="none")
class Delta(ParametricCore):
    """Delta rule (Schlag, Irie, Schmidhuber 2021; Widrow and Hoff 1960): a gradient step on the squared error.

        S <- S + b (v - S k) k^T

    Nothing fades: a pair stays until a key like its own is written.
    """


@register_design("kda", Design, retention="per_channel")
class KimiDeltaAttention(ParametricCore):
    """Kimi delta attention (Kimi Team 2025): the delta rule with a decay per channel of the keys.

    S^- = S diag(a),   S <- S^- + b (v - S^- k) k^T
    """


@register_design("delta_product", Design, pairs=2, write_rate_max=2.0)
class DeltaProduct(ParametricCore):
    """Gated DeltaProduct (Siems et al. 2025): several steps of the delta rule a token, each on a pair of its own.

        S <- a S,   then for each pair  S <- S + b (v - S k) k^T,  b in (0, 2)

    A token multiplies the state by a product of generalised Householder matrices, and may so permute or turn it.
    """


@register_design("longhorn", Design, optimiser="implicit", retention="none", unit_keys=False)
class Longhorn(ParametricCore):
    """Longhorn (Liu et al. 2024, eq. 4): the implicit step, stable for keys of any length.

        S <- argmin_S' |S' - S|^2 + b |S' k - v|^2 = S + b / (1 + b |k|^2) (v - S k) k^T

    The paper's own code has a rate per channel and a diagonal approximation; this is the exact step with one rate.
    """


@register_design("comba", Design, closed_loop=True)
class Comba(ParametricCore):
    """Comba (Hu et al. 2025): the gated delta rule as a closed-loop controller.

        e = v - d S k,   S <- a S + b e k^T,   reads S (q - D d k)

    The error is measured before the decay, at a key that is scaled by d = sigmoid(learned, 1 at first); the query is
    corrected by the key with D, learned, 0 at first. One d and one D per head.
    """


@register_design("momentum_delta", Design, optimiser="momentum")
class MomentumDelta(ParametricCore):
    """The linear memory of Titans (Behrouz, Zhong, Mirrokni 2025): gradient descent with momentum and weight decay.

    M <- m M + b (v - S k) k^T,   S <- a S + M
    """


@register_design("huber_delta", Design, objective="huber")
class HuberDelta(ParametricCore):
    """The gated delta rule on the Huber loss (as in MIRAS, Behrouz et al. 2025): no error writes more than its limit.

    S^- = a S,  e = v - S^- k,   S <- S^- + b min(1, threshold / |e|) e k^T
    """


@register_design("omega", Design, objective="windowed_squared_error")
class Omega(ParametricCore):
    """The Omega rule (ATLAS, Behrouz et al. 2025) for a matrix and a small window, one pair after the other.

        S <- a S,   then for the latest c pairs, oldest first,  S <- S + b (v - S k) k^T

    Each pair is written with the rate b of its own token. The paper sums the c gradients at one point; here each step
    sees those before it, which cannot overshoot.
    """
