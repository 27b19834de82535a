"""Points of the design space that have a name. Each is a choice of defaults: every option of each can be changed.

A class says what is computed and whose idea it is; ``lifelong.memory.design`` says what the options mean. Where a
paper differs in something that is not its idea (convolutions, norms, gates), we keep to our own layer.
"""

from __future__ import annotations

from lifelong.memory.parametric import ParametricCore, named_point


@named_point("gated_delta")
class GatedDelta(ParametricCore):
    """Gated delta rule (Yang, Kautz, Hatamizadeh 2025): the squared error, with a learned decay per head.

        S^- = a S,   S <- S^- + b (v - S^- k) k^T

    A write replaces what the memory answered to its key, and old pairs fade at a pace of their own in every head.
    """


@named_point("linear_attention", objective="dot_product", retention="none")
class LinearAttention(ParametricCore):
    """Linear attention (Katharopoulos et al. 2020), Hebbian: the dot product, nothing erased and nothing forgotten.

        S <- S + b v k^T

    The state is a sum over the whole life and grows at most linearly, |S_t| <= t max|v|. The RMS norm of the read-out
    divides the growth out (in place of the sum of keys that the paper divides by, which may pass through zero for
    keys of either sign): what is read is a direction, in which one write of a life of t steps weighs about 1 / t.
    float32 holds such a sum to about 10^7 steps.
    """


@named_point(
    "mixed_heads",
    heads=["plain", "rotary", "backward", "counting"],
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
    (POPGym's RepeatPrevious); read against the turn, it plays backwards (Autoencode). Heads of one kind have several
    horizons; a single one has their geometric mean, 400 steps.
    """
