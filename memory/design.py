"""The design space of parametric cores, as words: one option for each choice, and which choices go together."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from lifelong.kernels import implementation_names
from lifelong.memory.labels import LabelDesign
from lifelong.memory.layer_options import LayerOptions
from lifelong.memory.learned_reset import RESET_STATES
from lifelong.memory.option_checks import check_above, check_at_least, check_between, check_horizons, check_word
from lifelong.memory.rule_layer import spread_horizons

OBJECTIVES = ["dot_product", "squared_error", "windowed_squared_error", "huber", "power"]
RETENTIONS = ["none", "constant", "scalar", "per_channel", "pull"]
OPTIMISERS = ["gradient", "implicit", "momentum"]
WRITE_GATES = ["sigmoid", "exponential"]


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


@dataclass(frozen=True, kw_only=True)
class Design(LayerOptions):
    """Every choice that a parametric core is composed of. With x a token, S a matrix per head, S_0 its reset state:

        h = ShortConvolution(LayerNorm(x))
        q = turn(unit(phi_q(W_q h))),  k = turn(unit(phi_k(W_k h))),  v = W_v h          labels
        S^- = retention(S),  b = write_rate_max sigmoid(w_b . h + c_b)
        S   = S^- + b error(v, S^- k) k^T                                                objective and optimiser
        y = x + W_o (norm(S q) * gate(W_g h))                                            read-out; read after write

    Beside the options of ``LayerOptions``:

    heads:            memories per layer; or a list of ``HEAD_KINDS``, "rotary*2" for two of them
    value_dim:        width of the values of a head; None for ``head_dim``
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
    write_rate:       b at first, below write_rate_max where the gate is a sigmoid
    write_rate_max:   above 1 a write overshoots: 2 lets S^- - b S^- k k^T turn a sign (Grazzi et al. 2025)
    write_gate:       sigmoid, or exponential: b = exp(w_b . h + c_b), normalised by what was written (mLSTM)
    momentum:         m at first
    reset_state:      S_0: zero, or learned
    implementation:   of the kernel; auto, or a name that ``lifelong.kernels`` knows

    Raises:
        ValueError: a value out of its range, an unknown word, or words that have no implementation together.
    """

    heads: int | list[str] = 4  # type: ignore[assignment]  # a list too, unlike other layers
    value_dim: int | None = None
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
    reset_state: str = "zero"
    implementation: str = "auto"

    def __post_init__(self) -> None:
        if not isinstance(self.heads, int) and not _spelled_out(list(self.heads)):
            raise ValueError("heads must name at least one head")
        super().__post_init__()
        _check_words(self)
        _check_numbers(self)
        _check_combination(self)

    @property
    def head_count(self) -> int:
        return len(self.kinds)

    @property
    def counting(self) -> int:
        return sum(kind.counts for kind in self.kinds)

    def labels(self, value_dim: int) -> LabelDesign:
        return replace(super().labels(value_dim), pairs=self.pairs)

    @property
    def kinds(self) -> list[HeadKind]:
        """One kind for each head; those that count come last."""
        if isinstance(self.heads, int):
            return [HEAD_KINDS["plain"]] * self.heads
        kinds = [HEAD_KINDS[word] for word in _spelled_out(self.heads)]
        return sorted(kinds, key=lambda kind: kind.counts)

    @property
    def turns(self) -> tuple[str, ...]:
        return tuple(self.turn if kind.turn is None else kind.turn for kind in self.kinds)

    @property
    def erases(self) -> list[bool]:
        """Whether each head subtracts what its memory answers before it writes."""
        return [self.objective != "dot_product" and not kind.counts for kind in self.kinds]

    def horizons(self, width: int = 1) -> Tensor:
        """Initial horizons [H * width]: of heads, or of the ``width`` channels of each."""
        kinds = self.kinds
        horizons = torch.empty(len(kinds), width, dtype=torch.float64)
        for kind in set(kinds):
            same = [head for head, other in enumerate(kinds) if other == kind]
            if kind.counts:
                horizons[same] = self.counting_horizon
            elif width > 1:
                horizons[same] = spread_horizons(width, self.horizon_min, self.horizon_max)
            else:
                horizons[same, 0] = spread_horizons(len(same), self.horizon_min, self.horizon_max)
        return horizons.flatten()


def _spelled_out(heads: list[str]) -> list[str]:
    """["plain", "rotary*2"] -> ["plain", "rotary", "rotary"]."""
    words: list[str] = []
    for entry in heads:
        word, star, count = str(entry).partition("*")
        check_word("each of heads", word, list(HEAD_KINDS))
        if star and not (count.isdecimal() and int(count) > 0):
            raise ValueError(f"{entry!r} in heads: after the star comes how many, as in 'rotary*2'")
        words += [word] * (int(count) if star else 1)
    return words


def _check_words(design: Design) -> None:
    for option, known in (
        ("objective", OBJECTIVES),
        ("retention", RETENTIONS),
        ("optimiser", OPTIMISERS),
        ("write_gate", WRITE_GATES),
        ("reset_state", RESET_STATES),
        ("implementation", ["auto", *implementation_names()]),
    ):
        check_word(option, getattr(design, option), known)


def _check_numbers(design: Design) -> None:
    check_at_least(1, value_dim=design.value_dim, pairs=design.pairs, window=design.window, power=design.power)
    if not 0.0 < design.write_rate_max <= 2.0:
        raise ValueError(f"write_rate_max must lie above 0 and be 2 at most, not {design.write_rate_max}")
    if design.write_gate == "exponential":
        check_above(0, write_rate=design.write_rate)
    else:
        check_between(0, design.write_rate_max, "; the limit is write_rate_max", write_rate=design.write_rate)
    check_between(0, 1, momentum=design.momentum)
    check_horizons(design.horizon_min, design.horizon_max)
    check_above(1, counting_horizon=design.counting_horizon)
    check_above(0, huber_threshold=design.huber_threshold)


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
        ("optimiser", "implicit", "closed_loop", True, "optimiser=gradient"),
        ("optimiser", "implicit", "heads", "counting", "optimiser=gradient"),
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
