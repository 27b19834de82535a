"""The design space of parametric cores, as words: one option for each choice, and which choices go together."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels import implementation_names
from lifelong.memory.feature_maps import FEATURE_MAPS
from lifelong.memory.learned_reset import RESET_STATES
from lifelong.memory.registry import did_you_mean
from lifelong.memory.rotary import TURNS
from lifelong.memory.word_hints import elsewhere

OBJECTIVES = ["dot_product", "squared_error", "windowed_squared_error", "huber", "power"]
RETENTIONS = ["none", "constant", "scalar", "per_channel", "pull"]
OPTIMISERS = ["gradient", "implicit", "momentum"]
WRITE_GATES = ["sigmoid", "exponential"]
READ_NORMS = ["rms", "none"]
READ_GATES = ["silu", "sigmoid", "none"]


@dataclass(frozen=True)
class HeadKind:
    """What one head does unlike the others.

    turn:   one of ``TURNS``; None for the core's own ``turn``
    counts: nothing is erased, next to nothing is forgotten, and what is read is not normalised, so that it says how
            often a key was written
    """

    turn: str | None = None
    counts: bool = False


HEAD_KINDS = {
    "plain": HeadKind(),
    "rotary": HeadKind("with"),
    "backward": HeadKind("against"),
    "learned": HeadKind("learned"),
    "counting": HeadKind("none", counts=True),
}


@dataclass(frozen=True)
class Design:
    """Every choice that a parametric core is composed of. With x a token, S a matrix per head, S_0 its reset state:

        h = ShortConvolution(LayerNorm(x))
        q = turn(unit(phi_q(W_q h))),  k = turn(unit(phi_k(W_k h))),  v = W_v h          labels
        S^- = retention(S),  b = write_rate_max sigmoid(w_b . h + c_b)
        S   = S^- + b error(v, S^- k) k^T                                                objective and optimiser
        y = x + W_o (norm(S q) * gate(W_g h))                                            read-out; read after write

    layers:           fast-weight layers
    heads:            memories per layer; or a list of ``HEAD_KINDS``, "rotary*2" for two of them
    head_dim:         width of queries and keys of a head
    value_dim:        width of the values of a head; None for ``head_dim``
    convolution_taps: window of the short causal convolution in front of the projections, 2 or more; 0 for none
    key_map:          phi_k, one of ``FEATURE_MAPS``
    query_map:        phi_q; None for key_map, but identity beside silu
    map_order:        size of dpfp, polynomial and random_fourier (``lifelong.memory.feature_maps``)
    unit_keys:        unit(z) = z / |z|; if false, queries are left as they are and keys are divided by sqrt(width)
    turn:             how keys and queries are turned by the time since the last reset (``lifelong.memory.rotary``)
    turn_ratio:       between neighbouring rates of turning, above 1; None for evenly spaced rates, under which keys
                      of head_dim steps in a row are orthogonal
    pairs:            keys and values that a token writes, one after the other
    objective:        dot_product             error = v              the Hebb rule, a step on -<v, S k>
                      squared_error           error = e = v - S^- k  the delta rule, a step on |S k - v|^2 / 2
                      windowed_squared_error  the same for the latest ``window`` pairs, oldest first, at every token
                      huber                   error = e min(1, huber_threshold / |e|)
                      power                   error = sign(e) |e|^(power - 1), a step on sum |e|^power / power
    window:           pairs that windowed_squared_error writes
    huber_threshold:  length to which errors are cut
    power:            exponent p of the l_p objective, 1 or more
    closed_loop:      whether e = v - d S k, before the decay, and the query is q - D d k, with d, D learned (Comba)
    retention:        none         S^- = S
                      constant     S^- = a S, a fixed for a head
                      scalar       S^- = a S, a = sigmoid(w_a . h + c_a)
                      per_channel  S^- = S diag(a), a in R^K likewise
                      pull         S^- = S_0 + a (S - S_0), a as scalar, S_0 learned
    horizon_min:      horizon 1 / (1 - a) of the fastest head (channel of a head, if per_channel), in steps, at first
    horizon_max:      horizon of the slowest; the others are spread geometrically, heads of each kind by themselves
    counting_horizon: horizon of the heads that count
    optimiser:        gradient  as above
                      implicit  S = argmin |S - S^-|^2 + b |S k - v|^2, that is b / (1 + b |k|^2) in place of b
                      momentum  M = m M + b e k^T,  S = S^- + M,  m = sigmoid(w_m . h + c_m), e before the decay
    write_rate:       b at first, below write_rate_max
    write_rate_max:   above 1 a write overshoots: 2 lets S^- - b S^- k k^T turn a sign (Grazzi et al. 2025)
    write_gate:       sigmoid, or exponential: b = exp(w_b . h + c_b), normalised by what was written (mLSTM)
    momentum:         m at first
    read_norm:        rms, or none
    read_gate:        silu, sigmoid, or none
    reset_state:      S_0: zero, or learned
    feed_forward:     hidden width of the feed-forward block behind each layer, as a multiple of dim; 0 for none
    implementation:   of the kernel; auto, or a name that ``lifelong.kernels`` knows

    Raises:
        ValueError: a value out of its range, an unknown word, or words that have no implementation together.
    """

    layers: int = 1
    heads: int | list[str] = 4
    head_dim: int = 32
    value_dim: int | None = None
    convolution_taps: int = 4
    key_map: str = "silu"
    query_map: str | None = None
    map_order: int = 2
    unit_keys: bool = True
    turn: str = "none"
    turn_ratio: float | None = None
    pairs: int = 1
    objective: str = "squared_error"
    window: int = 3
    huber_threshold: float = 1.0
    power: float = 1.5
    closed_loop: bool = False
    retention: str = "scalar"
    horizon_min: float = 32.0
    horizon_max: float = 1.0e5
    counting_horizon: float = 1.6e5
    optimiser: str = "gradient"
    write_rate: float = 0.5
    write_rate_max: float = 1.0
    write_gate: str = "sigmoid"
    momentum: float = 0.5
    read_norm: str = "rms"
    read_gate: str = "silu"
    reset_state: str = "zero"
    feed_forward: float = 0.0
    implementation: str = "auto"

    def __post_init__(self) -> None:
        _check_words(self)
        _check_numbers(self)
        _check_combination(self)

    @property
    def kinds(self) -> list[HeadKind]:
        """One kind for each head; those that count come last."""
        if isinstance(self.heads, int):
            return [HEAD_KINDS["plain"]] * self.heads
        kinds = [HEAD_KINDS[word] for word in _spelled_out(self.heads)]
        return sorted(kinds, key=lambda kind: kind.counts)

    @property
    def turns(self) -> tuple[str, ...]:
        """How each head turns."""
        return tuple(self.turn if kind.turn is None else kind.turn for kind in self.kinds)

    @property
    def erases(self) -> list[bool]:
        """Whether each head subtracts what its memory answers before it writes."""
        return [self.objective != "dot_product" and not kind.counts for kind in self.kinds]

    def horizons(self, width: int = 1) -> Tensor:
        """Initial horizons [H * width]: of heads, or of the ``width`` channels of each."""
        kinds = self.kinds
        horizons = torch.empty(len(kinds), width)
        for kind in set(kinds):
            same = [head for head, other in enumerate(kinds) if other == kind]
            if kind.counts:
                horizons[same] = self.counting_horizon
            elif width > 1:
                horizons[same] = spread_horizons(width, self.horizon_min, self.horizon_max)
            else:
                horizons[same, 0] = spread_horizons(len(same), self.horizon_min, self.horizon_max)
        return horizons.flatten()


def spread_horizons(count: int, shortest: float, longest: float) -> Tensor:
    """``shortest * (longest / shortest) ** (i / (n - 1))`` for i < n; the geometric mean for one."""
    place = torch.linspace(0.0, 1.0, count, dtype=torch.float64) if count > 1 else torch.tensor([0.5])
    return (shortest * (longest / shortest) ** place).float()


def check_word(option: str, word: object, known: list[str]) -> None:
    """Raise the ValueError that names the option, what it takes, and a core that has the word, or the nearest word."""
    if word not in known:
        hint = elsewhere(option, word) or did_you_mean(word, known)
        raise ValueError(f"{option} must be one of {', '.join(known)}, not {word!r}{hint}")


def _spelled_out(heads: list[str]) -> list[str]:
    """["plain", "rotary*2"] -> ["plain", "rotary", "rotary"]."""
    words: list[str] = []
    for entry in heads:
        word, star, count = str(entry).partition("*")
        check_word("each of heads", word, list(HEAD_KINDS))
        if star and not (count.isdigit() and int(count) > 0):
            raise ValueError(f"{entry!r} in heads: after the star comes how many, as in 'rotary*2'")
        words += [word] * (int(count) if star else 1)
    return words


def _check_words(design: Design) -> None:
    for option, known in (
        ("key_map", FEATURE_MAPS),
        ("turn", TURNS),
        ("objective", OBJECTIVES),
        ("retention", RETENTIONS),
        ("optimiser", OPTIMISERS),
        ("write_gate", WRITE_GATES),
        ("read_norm", READ_NORMS),
        ("read_gate", READ_GATES),
        ("reset_state", RESET_STATES),
        ("implementation", ["auto", *implementation_names()]),
    ):
        check_word(option, getattr(design, option), known)
    if design.query_map is not None:
        check_word("query_map", design.query_map, FEATURE_MAPS)
    if not isinstance(design.heads, int) and not _spelled_out(list(design.heads)):
        raise ValueError("heads must name at least one head")


def _check_numbers(design: Design) -> None:
    values: dict[str, Any] = asdict(design)
    if design.value_dim is None:
        values["value_dim"] = design.head_dim
    if not isinstance(design.heads, int):
        values["heads"] = len(design.kinds)
    for name in ("layers", "heads", "head_dim", "value_dim", "map_order", "pairs", "window"):
        if values[name] < 1:
            raise ValueError(f"{name} must be 1 or more, not {values[name]}")
    if design.convolution_taps < 0 or design.convolution_taps == 1:
        raise ValueError(f"convolution_taps must be 0 (no convolution) or 2 or more, not {design.convolution_taps}")
    if not design.feed_forward >= 0:
        raise ValueError(f"feed_forward must be 0 (none) or more, not {design.feed_forward}")
    if not 0.0 < design.write_rate_max <= 2.0:
        raise ValueError(f"write_rate_max must lie above 0 and be 2 at most, not {design.write_rate_max}")
    if not 0.0 < design.write_rate < design.write_rate_max:
        raise ValueError(
            f"write_rate must lie between 0 and {design.write_rate_max:g}, not {design.write_rate}; the limit is "
            "write_rate_max"
        )
    if not 0.0 < design.momentum < 1.0:
        raise ValueError(f"momentum must lie between 0 and 1, not {design.momentum}")
    if not 1.0 < design.horizon_min <= design.horizon_max:
        raise ValueError(
            f"horizons need 1 < horizon_min <= horizon_max, not {design.horizon_min} and {design.horizon_max}"
        )
    for name, least in (("turn_ratio", 1.0), ("counting_horizon", 1.0), ("huber_threshold", 0.0)):
        if values[name] is not None and not values[name] > least:
            raise ValueError(f"{name} must lie above {least:g}, not {values[name]}")
    if not design.power >= 1.0:
        raise ValueError(f"power must be 1 or more, not {design.power}")


def _check_combination(design: Design) -> None:
    """Refuse, by name, what no kernel computes; name the nearest that one does."""
    chosen = {name: value for name, value in asdict(design).items() if name != "heads"}
    chosen["heads"] = "counting" if any(kind.counts for kind in design.kinds) else None
    windowed, several = "windowed_squared_error", list(range(2, design.pairs + 1))
    # option, its values, another option, its values, what to change for the nearest that works
    exclusive: list[tuple[str, Any, str, Any, str]] = [
        ("pairs", several, "objective", windowed, "pairs=1"),
        ("optimiser", "implicit", "objective", "dot_product", "optimiser=gradient (the same for a linear objective)"),
        ("optimiser", "implicit", "objective", ["huber", "power"], "objective=squared_error"),
        ("optimiser", "momentum", "pairs", several, "pairs=1"),
        ("optimiser", "momentum", "objective", windowed, "objective=squared_error"),
        ("closed_loop", True, "pairs", several, "pairs=1"),
        ("closed_loop", True, "objective", windowed, "objective=squared_error"),
        ("closed_loop", True, "objective", "dot_product", "objective=squared_error"),
        ("heads", "counting", "objective", ["huber", "power"], "objective=squared_error"),
        (
            "write_gate",
            "exponential",
            "objective",
            [word for word in OBJECTIVES if word != "dot_product"],
            "objective=dot_product",
        ),
        ("write_gate", "exponential", "optimiser", "momentum", "optimiser=gradient"),
        ("write_gate", "exponential", "retention", ["per_channel", "pull"], "retention=scalar"),
        ("write_gate", "exponential", "pairs", several, "pairs=1"),
        ("write_gate", "exponential", "heads", "counting", "heads without counting"),
        ("retention", "pull", "reset_state", "learned", "reset_state=zero (a reset goes to what it pulls to)"),
    ]
    for option, values, other, others, nearest in exclusive:
        if _is(chosen[option], values) and _is(chosen[other], others):
            raise ValueError(
                f"{option}={_written(chosen[option])} has no implementation together with "
                f"{other}={_written(chosen[other])}; the nearest that has one: {nearest}"
            )


def _is(value: object, wanted: Any) -> bool:
    return value in wanted if isinstance(wanted, list) else value == wanted


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
