"""Rotary labels: keys and queries turned by an angle that grows with the time since the last reset.

A vector of width 2 n is read as n points in the plane, (x_i, x_{i + n}), and point i is turned by p w_i at position p
(Su et al. 2021). With key and query turned alike, k_i . q_j depends on the lag j - i alone, and a key says *when*
besides *what*. How the query of a head is turned says in which order the memory is read:

| turn | key at position p | query at position p | what it is for |
|---|---|---|---|
| none | as it is | as it is | content alone |
| with | p w | p w | the same lag back from now, in the order of writing |
| against | p w | -p w | in the reverse order: a query at p meets the key of position c - p, c from the projections |
| learned | u_p | r_p | rates of its own for keys and queries, learned; both begin as w |

Rates, in radians a step, i = 0 .. n - 1: evenly spaced, w_i = pi (i + 1/2) / n, or w_i = pi / ratio^i. Evenly spaced,
and with points of one length, keys of up to 2 n steps in a row are orthogonal: sum_i cos(w_i d) = sin(pi d) / (2
sin(pi d / 2 n)) is 0 for every lag 0 < d < 2 n, and -n at 2 n. A delta rule under such keys holds the last 2 n values
exactly, each written over the one 2 n steps before it. In geometric steps neighbours in time overlap, and the far past
is blurred.

Exactness. Positions are int64, and p w is reduced to one turn in float64, so that an angle at step 10^7 is good to
10^-8 radians. A learned rate moves while the agent learns, and p w would throw the angles about, the further the
older the life; so the angles u, r themselves are state, and a step adds the rate: u_p = u_{p-1} + w. They are kept in
turns, within [-1/2, 1/2], and carry gradients. A float32 angle alone would be off by 4 10^-2 radians after 10^6 steps,
so what it rounds off is kept beside it and the sum is taken in float64: a step adds 10^-16 turns of error, and an
angle at step 10^7 is good to 10^-6 radians, which is what float32 has for its cosine.

State: ``position`` [B] int64, steps since the last reset, where a head turns with or against; where H' heads turn at
learned rates, ``angle`` [B, 2, H', n], of queries and keys at the next step, in turns, and ``angle_rest``, the same:
what is lacking to the angle, without gradient (always 0 in float64).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from lifelong.memory.resets import clear

TURNS = ["none", "with", "against", "learned"]


class Table(NamedTuple):
    """A turn as two products: x * cos + x' * sin, x' being x with its halves exchanged. [..., 1 or H, 2 n] each."""

    cos: Tensor
    sin: Tensor  # with the sign of each half: the first is subtracted


# Heads that follow one another and turn alike: how many, and by what; None for not at all.
Run = tuple[int, Table | None]


class Turning(NamedTuple):
    """How the queries and keys of all heads are turned at some steps."""

    queries: list[Run]
    keys: list[Run]

    def turn(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """query [..., H, 2 n], key the same, or [..., R, H, 2 n] with R keys a step -> both turned."""
        return _turn_runs(query, self.queries), _turn_runs(key, self.keys)


class Rotary(nn.Module):
    """The angles of H heads, from the time since the last reset.

    Args:
        turns: for each head, one of ``TURNS``.
        width: of keys and queries, even.
        ratio: between neighbouring rates, above 1; None for evenly spaced rates.

    Raises:
        ValueError: an odd width.
    """

    def __init__(self, turns: Sequence[str], width: int, ratio: float | None) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"keys are turned in pairs of entries, so head_dim must be even, not {width}")
        self.turns, points = tuple(turns), width // 2
        # No buffer: `module.float()` would round it.
        self._rates = _rates(points, ratio)
        self._query_runs = _runs(self.turns)
        self._key_runs = _runs(["with" if turn == "against" else turn for turn in turns])
        learned = self.turns.count("learned")
        self._counts = "with" in turns or "against" in turns
        if learned:
            self.rates = nn.Parameter(self._rates.float().expand(2, learned, points).clone())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the floating-point tensors of one life's state."""
        return dict.fromkeys(("angle", "angle_rest"), tuple(self.rates.shape)) if "learned" in self.turns else {}

    def counters(self) -> list[str]:
        """Names of the int64 tensors of the state."""
        return ["position"] if self._counts else []

    def forward(
        self, state: Mapping[str, Tensor], steps: int, reset: Tensor | None, dtype: torch.dtype
    ) -> tuple[Turning, dict[str, Tensor]]:
        """How the next T ``steps`` are turned, and the state after them. reset [B, T] bool or None."""
        position = angle = None
        new = {}
        if self._counts:
            position = positions(state["position"], steps, reset)
            new["position"] = position[:, -1] + 1
        if "learned" in self.turns:
            start = _exact(state)
            count = positions(torch.zeros(len(start), dtype=torch.int64, device=start.device), steps, reset)
            turns = start.unsqueeze(1).expand(-1, steps, -1, -1, -1)
            if reset is not None:
                turns = clear(turns.flatten(0, 1), reset.cumsum(1).flatten() > 0).view_as(turns)
            turns = _wrap(turns + count[..., None, None, None] * self.rates.double())
            angle = turns.to(dtype)
            new.update(self._next(turns[:, -1], state["angle"].dtype))
        return self._turning(position, angle, dtype), new

    def step(
        self, state: Mapping[str, Tensor], reset: Tensor | None, dtype: torch.dtype
    ) -> tuple[Turning, dict[str, Tensor]]:
        """How the next step is turned, and the state after it. reset [B] bool or None."""
        position = angle = None
        new = {}
        if self._counts:
            position = clear(state["position"], reset)
            new["position"] = position + 1
        if "learned" in self.turns:
            turns = clear(_exact(state), reset)
            angle = turns.to(dtype)
            new.update(self._next(turns, state["angle"].dtype))
        return self._turning(position, angle, dtype), new

    def _next(self, turns: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
        """The angles a step after ``turns`` [B, 2, H', n] float64, as they are kept in ``dtype``."""
        exact = _wrap(turns + self.rates.double())
        angle = exact.to(dtype)
        return {"angle": angle, "angle_rest": (exact.detach() - angle.detach().double()).to(dtype)}

    def _turning(self, position: Tensor | None, angle: Tensor | None, dtype: torch.dtype) -> Turning:
        """position [...] int64, angle [..., 2, H', n] in turns."""
        fixed: dict[str, Table | None] = {"none": None}
        if position is not None:
            turns = _wrap(position.unsqueeze(-1) * self._rates.to(position.device)).to(dtype)
            table = _table(turns.unsqueeze(-2))
            fixed.update({"with": table, "against": Table(table.cos, -table.sin)})
        runs: list[list[Run]] = []
        for which, kinds in enumerate((self._query_runs, self._key_runs)):
            first = 0
            made: list[Run] = []
            for turn, count in kinds:
                if turn == "learned":
                    assert angle is not None
                    made.append((count, _table(angle[..., which, first : first + count, :])))
                    first += count
                else:
                    made.append((count, fixed[turn]))
            runs.append(made)
        return Turning(*runs)


def _runs(turns: Sequence[str]) -> list[tuple[str, int]]:
    """["none", "with", "with"] -> [("none", 1), ("with", 2)]."""
    return [(turn, len(list(heads))) for turn, heads in groupby(turns)]


def _rates(points: int, ratio: float | None) -> Tensor:
    """Turns a step of each point, [n] float64."""
    index = torch.arange(points, dtype=torch.float64)
    return 0.5 * (index + 0.5) / points if ratio is None else 0.5 / ratio**index


def positions(start: Tensor, steps: int, reset: Tensor | None) -> Tensor:
    """Steps since the last reset, [B, T] int64, where ``start`` [B] is that of the first step if it is not reset."""
    time = torch.arange(steps, device=start.device)
    if reset is None:
        return start.unsqueeze(1) + time
    last = torch.where(reset, time, -1).cummax(1).values
    return torch.where(last >= 0, time - last, start.unsqueeze(1) + time)


def _exact(state: Mapping[str, Tensor]) -> Tensor:
    """The learned angles of a state, float64."""
    return state["angle"].double() + state["angle_rest"].double()


def _wrap(turns: Tensor) -> Tensor:
    """Whole turns taken off: within [-1/2, 1/2]."""
    return turns - turns.detach().round()


def _table(turns: Tensor) -> Table:
    angle = 2.0 * math.pi * turns
    cos, sin = angle.cos(), angle.sin()
    return Table(torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1))


def _turn_runs(vectors: Tensor, runs: list[Run]) -> Tensor:
    parts = vectors.split([count for count, _ in runs], -2) if len(runs) > 1 else [vectors]
    turned = [part if table is None else _turn(part, *table) for part, (_, table) in zip(parts, runs, strict=True)]
    return torch.cat(turned, -2) if len(turned) > 1 else turned[0]


def _turn(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    if vectors.dim() > cos.dim():
        cos, sin = cos.unsqueeze(-3), sin.unsqueeze(-3)
    if not torch.is_grad_enabled():
        return _turned(vectors, cos, sin)  # `apply` alone takes longer than the products of a step
    turned: Tensor = _Turn.apply(vectors, cos, sin)
    return turned


def _turned(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return (vectors * cos).addcmul_(_exchanged(vectors), sin)


def _exchanged(vectors: Tensor) -> Tensor:
    """(x_i, x_{i + n}) -> (x_{i + n}, x_i)."""
    return vectors.roll(vectors.shape[-1] // 2, -1)


class _Turn(torch.autograd.Function):
    # Written out because autograd's own keeps and adds buffers of the size of the vectors for every product.
    generate_vmap_rule = True

    @staticmethod
    def forward(vectors: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return _turned(vectors, cos, sin)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        vectors, cos, sin = ctx.saved_tensors
        back = _turned(gradient, cos, -sin)
        if not ctx.needs_input_grad[1]:
            return back, None, None
        of_cos, of_sin = gradient * vectors, gradient * _exchanged(vectors)
        return back, of_cos.sum_to_size(cos.shape), of_sin.sum_to_size(sin.shape)
