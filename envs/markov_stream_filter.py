"""The exact Bayes filter on the Markov stream: what can be predicted once the cycles of all regimes are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lifelong.envs.measurement import Estimate, estimate

if TYPE_CHECKING:
    from lifelong.envs.markov_stream import MarkovStream


class MarkovFilter:
    """Posterior of (regime, hidden symbol), given all symbols seen (the forward algorithm; Rabiner 1989).

    A belief is [B, M, S] float64; an update costs O(M S) per life.

    Args:
        successor: [B, M, S] int64, the cycles.
        noise: probability that a uniform symbol is seen in place of the hidden one.
    """

    def __init__(self, successor: Tensor, noise: float) -> None:
        self.successor, self.noise = successor, noise

    def begin(self, shown: Tensor) -> Tensor:
        """The belief after the first symbol [B] int64 is seen."""
        return self._see(torch.ones_like(self.successor, dtype=torch.float64), shown)

    def move(self, belief: Tensor) -> Tensor:
        """The belief of (regime, next hidden symbol), before the regime may change and the symbol is seen."""
        return torch.zeros_like(belief).scatter_(2, self.successor, belief)

    def predict(self, belief: Tensor) -> Tensor:
        """The next symbol that is most probable [B] int64."""
        return self.move(belief).sum(1).argmax(1)

    def update(self, belief: Tensor, shown: Tensor, hazard: Tensor | float) -> Tensor:
        """The belief after the next symbol ``shown`` [B]; ``hazard`` of another regime, a number or [B, 1, 1]."""
        moved = self.move(belief)
        others = moved.sum(1, keepdim=True) - moved
        return self._see((1 - hazard) * moved + hazard * others / (belief.shape[1] - 1), shown)

    def _see(self, belief: Tensor, shown: Tensor) -> Tensor:
        symbols = belief.shape[2]
        likelihood = torch.full_like(belief[:, 0], self.noise / symbols)
        likelihood = likelihood.scatter_add(1, shown[:, None], torch.full_like(likelihood[:, :1], 1 - self.noise))
        belief = belief * likelihood[:, None]
        return belief / belief.sum((1, 2), keepdim=True)


def tell_regime(belief: Tensor, regime: Tensor) -> Tensor:
    """The belief of one who is told the ``regime`` [B] int64."""
    known = torch.nn.functional.one_hot(regime, belief.shape[1]).to(belief.dtype)[:, :, None]
    belief = belief * known
    return belief / belief.sum((1, 2), keepdim=True)


def simulate_filter(env: MarkovStream, hazard: float, noise: float, signal: str, steps: int, burn_in: int) -> Estimate:
    """Share of right predictions of the filter.

    Args:
        env: a new Markov stream that pays at every step, with this hazard and noise, without ``life_steps``.
        hazard, noise: its options.
        signal: what the filter is told: ``hidden``, ``flag`` (that the regime changed), ``cue`` or ``always`` (to
            which).
        steps, burn_in: steps that count, after steps that do not.
    """
    shown = env.reset()["observation"][:, : env.symbols].argmax(1)
    markov = MarkovFilter(env.state.world.successor, noise)
    belief = markov.begin(shown)
    if signal in ("cue", "always"):
        belief = tell_regime(belief, env.privileged["regime"])
    total = torch.zeros(env.num_lives, dtype=torch.float64, device=env.device)
    for t in range(burn_in + steps):
        step = env.step(markov.predict(belief))
        shown = step.observation["observation"][:, : env.symbols].argmax(1)
        chance = hazard if signal == "hidden" else step.privileged["changed"].double()[:, None, None]
        belief = markov.update(belief, shown, chance)
        if signal in ("cue", "always"):
            belief = tell_regime(belief, step.privileged["regime"])
        if t >= burn_in:
            total += step.reward
    return estimate(total / steps)
