"""Predict the next symbol of a stream whose hidden rules recur; the pay may stay away for a long time."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change
from lifelong.envs.markov_stream_filter import simulate_filter
from lifelong.envs.measurement import Estimate
from lifelong.envs.open_loop import OpenLoopEnv, repeat_in_time
from lifelong.envs.options import check_count, check_number, check_probability
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env
from lifelong.envs.schedules import Markov
from lifelong.envs.signalling import Signal


class MarkovStreamWorld(NamedTuple):
    """The rules of this life, which of them holds, and where the chain is."""

    successor: Tensor  # [B, M, S] int64: the symbol that follows each symbol under each regime; fixed at birth
    regime: Tensor  # [B, 1] float64: 0..M-1
    symbol: Tensor  # [B] int64: the state of the chain, hidden behind the noise
    shown: Tensor  # [B] int64: the symbol seen
    phase: Tensor  # [B] int64: steps since the present stretch without pay began
    steps_since_change: Tensor  # [B] int64: 0 at the first step under a regime
    changed: Tensor  # [B] bool: the regime is another one than a step ago


@register_env("markov_stream")
class MarkovStream(OpenLoopEnv[MarkovStreamWorld]):
    """What follows what must be learned from the stream itself, kept while another rule holds, and used when it pays.

    A life has M regimes; each orders the S symbols in a cycle of its own, uniformly random. At every step the hidden
    symbol moves on to its successor under the present regime; then, with probability ``hazard``, another regime takes
    over, uniformly. The hidden symbol is seen with probability 1 - ``noise``, else a uniform one. The action is the
    prediction of what will be seen next, and earns 1 if right and 0 if wrong.

    With ``unpaid_steps``, stretches of so many steps in which nothing is earned take turns with stretches of
    ``paid_steps``: what the reward does not ask for must be learned all the same.

    Observation: ``observation`` [B, S + 1 + width of the signal] float32: the symbol seen, one-hot; 1 if this
    prediction is paid, else 0; the signal.
    Actions: 0..S-1.
    Privileged: ``oracle_action`` int64, ``regime`` int64, ``steps_since_change`` int64, ``changed`` bool, ``paid`` bool
    (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        symbols: S, at least 3.
        regimes: M, at least 2.
        hazard: probability per step that another regime takes over.
        noise: probability that a uniform symbol is seen in place of the hidden one.
        unpaid_steps: length of a stretch without pay; 0: there is none.
        paid_steps: length of the stretches between them.
        signal: what is told of the regime, see ``Signal``; its code is the regime's number, one-hot.
    """

    name = "markov_stream"
    world_type = MarkovStreamWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        symbols: int = 8,
        regimes: int = 4,
        hazard: float = 0.005,
        noise: float = 0.1,
        unpaid_steps: int = 0,
        paid_steps: int = 100,
        signal: str = "hidden",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.symbols = self.num_actions = check_count(self.name, "symbols", symbols, low=3)
        self.regimes = check_count(self.name, "regimes", regimes, low=2)
        self.hazard = check_probability(self.name, "hazard", hazard)
        self.noise = check_number(self.name, "noise", noise, low=0.0, below=1.0)
        self.unpaid_steps = check_count(self.name, "unpaid_steps", unpaid_steps, low=0, high=2**52)
        self.paid_steps = check_count(self.name, "paid_steps", paid_steps, high=2**52)
        self.signal = Signal(self.name, signal, code_size=self.regimes)
        self._schedule = Markov(self.regimes, self.hazard)
        self.observation_size = self.symbols + 1 + self.signal.width
        self.lifelong = life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)

    @property
    def paid_share(self) -> float:
        """Share of the steps whose prediction is paid."""
        return self.paid_steps / (self.unpaid_steps + self.paid_steps)

    @property
    def references(self) -> References:  # type: ignore[override]
        symbols, noise, share = self.symbols, self.noise, self.paid_share
        ideal = None
        notes = {
            "oracle": "closed form: the successor is seen with probability 1 - noise + noise / S",
            "memoryless": "closed form: any symbol but the one seen, (1 - noise) (1 - noise / S) / (S - 1) + noise / S",
        }
        if self.life_steps is None:
            learner = filter_rate(symbols, self.regimes, self.hazard, noise, self.signal.kind)
            ideal = share * learner.mean
            notes["ideal_learner"] = (
                "the exact Bayes filter over regime and symbol, the cycles being known, as they are in the end: "
                f"simulation, standard error {share * learner.standard_error:.5f}"
            )
        return References(
            per="step",
            random=share / symbols,
            oracle=share * (1 - noise + noise / symbols),
            memoryless=share * ((1 - noise) * (1 - noise / symbols) / (symbols - 1) + noise / symbols),
            ideal_learner=ideal,
            notes=notes,
        )

    def birth_channels(self) -> Mapping[str, Channel]:
        return {
            "cycle": Channel(Stream.SCHEDULE, self.regimes * self.symbols),
            "regime": Channel(Stream.SCHEDULE),
            "phase": Channel(Stream.SCHEDULE),
            "symbol": Channel(Stream.WORLD),
            "noise": Channel(Stream.NOISE, 2),
        }

    def step_channels(self) -> Mapping[str, Channel]:
        return {"regime": Channel(Stream.SCHEDULE, 2), "noise": Channel(Stream.NOISE, 2)}

    def begin(self, draws: Mapping[str, Tensor]) -> MarkovStreamWorld:
        order = draws["cycle"].unflatten(1, (self.regimes, self.symbols)).argsort(dim=2, stable=True)
        successor = torch.empty_like(order).scatter_(2, order, order.roll(-1, dims=2))
        symbol = integers(draws["symbol"][:, 0], self.symbols)
        return MarkovStreamWorld(
            successor=successor,
            regime=self._schedule.begin(draws["regime"]),
            symbol=symbol,
            shown=self._seen(symbol, draws),
            phase=integers(draws["phase"][:, 0], self.unpaid_steps + self.paid_steps),
            steps_since_change=torch.zeros_like(symbol),
            changed=torch.zeros_like(symbol, dtype=torch.bool),
        )

    def advance(
        self, world: MarkovStreamWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[MarkovStreamWorld]:
        symbol = self._next_symbol(world)
        regime = self._schedule.advance(world.regime, draws["regime"])
        changed = (regime != world.regime)[:, 0]
        after = MarkovStreamWorld(
            successor=world.successor,
            regime=regime,
            symbol=symbol,
            shown=self._seen(symbol, draws),
            phase=(world.phase + 1).remainder(self.unpaid_steps + self.paid_steps),
            steps_since_change=(world.steps_since_change + 1).masked_fill(changed, 0),
            changed=changed,
        )
        right = (action == after.shown) & self._paid(world)
        return Change(after, right.to(torch.float32))

    def unroll(self, world: MarkovStreamWorld, time: Tensor, draws: Mapping[str, Tensor]) -> MarkovStreamWorld:
        steps = len(time)
        shift = self._schedule.shift(draws["regime"]).reshape(steps, -1, 1)  # [T, B, 1]
        regime = (world.regime + shift.cumsum(0)).remainder(self.regimes)
        changed = shift[..., 0] != 0
        ahead = torch.arange(1, steps + 1, device=self.device)[:, None]  # [T, 1]
        last_change = torch.where(changed, ahead, 0).cummax(0).values
        since = torch.where(last_change > 0, ahead - last_change, world.steps_since_change + ahead)

        before = torch.cat([world.regime[None], regime[:-1]]).to(torch.int64)  # the regimes under which it moves on
        lives = torch.arange(self.num_lives, device=self.device)
        moved = _compose(world.successor[lives, before[..., 0]])  # [T, B, S]: where each symbol has come to
        symbol = moved.gather(2, world.symbol.expand(steps, -1)[..., None])[..., 0].flatten()
        return MarkovStreamWorld(
            successor=repeat_in_time(world.successor, steps),
            regime=regime.flatten(0, 1),
            symbol=symbol,
            shown=self._seen(symbol, draws),
            phase=(world.phase + ahead).remainder(self.unpaid_steps + self.paid_steps).flatten(),
            steps_since_change=since.flatten(),
            changed=changed.flatten(),
        )

    def observe(self, world: MarkovStreamWorld) -> Observation:
        paid = self._paid(world).to(torch.float32)[:, None]
        shown = torch.zeros(len(paid), self.symbols, device=self.device).scatter_(1, world.shown[:, None], 1.0)
        entries = [shown, paid]
        if self.signal.width:
            regime = self._schedule.regime(world.regime)
            code = torch.nn.functional.one_hot(regime, self.regimes).to(torch.float32)
            entries.append(self.signal.entries(world.steps_since_change == 0, code))
        return {"observation": torch.cat(entries, dim=1)}

    def describe(self, world: MarkovStreamWorld) -> dict[str, Tensor]:
        return {
            "oracle_action": self._next_symbol(world),
            "regime": self._schedule.regime(world.regime),
            "steps_since_change": world.steps_since_change,
            "changed": world.changed,
            "paid": self._paid(world),
        }

    def _next_symbol(self, world: MarkovStreamWorld) -> Tensor:
        entry = self._schedule.regime(world.regime) * self.symbols + world.symbol
        return world.successor.flatten(1).gather(1, entry[:, None])[:, 0]

    def _seen(self, symbol: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        noise = draws["noise"]
        return torch.where(noise[:, 0] < self.noise, integers(noise[:, 1], self.symbols), symbol)

    def _paid(self, world: MarkovStreamWorld) -> Tensor:
        return world.phase >= self.unpaid_steps


def _compose(maps: Tensor) -> Tensor:
    """What the first 1, 2, ..., T of ``maps`` [T, ..., S] int64 do one after the other (a scan in log2 T rounds)."""
    span = 1
    while span < len(maps):
        maps = torch.cat([maps[:span], maps[span:].gather(-1, maps[:-span])])
        span *= 2
    return maps


# `python benchmarks/stored_references.py`: 2048 lives of 500 + 1000 steps.
_FILTER_RATE_OF_DEFAULTS = Estimate(mean=0.90244, standard_error=0.00022)


@lru_cache(maxsize=64)
def filter_rate(symbols: int, regimes: int, hazard: float, noise: float, signal: str) -> Estimate:
    """Share of right predictions of the filter (stored for the default options, else a second of simulation)."""
    if (symbols, regimes, hazard, noise, signal) == (8, 4, 0.005, 0.1, "hidden"):
        return _FILTER_RATE_OF_DEFAULTS
    return simulate_filter_rate(symbols, regimes, hazard, noise, signal)


def simulate_filter_rate(
    symbols: int,
    regimes: int,
    hazard: float,
    noise: float,
    signal: str,
    lives: int = 256,
    steps: int = 500,
    burn_in: int = 300,
    seed: int = 0,
) -> Estimate:
    """Simulate the filter on ``lives`` lives, ``steps`` steps each after ``burn_in``."""
    env = MarkovStream(lives, seed, symbols=symbols, regimes=regimes, hazard=hazard, noise=noise)
    return simulate_filter(env, hazard, noise, signal, steps, burn_in)
