"""Key-value pairs are shown, then the keys are queried: the value that went with a key must be recalled."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.associative_recall_references import order_free_return, order_free_return_with_feedback
from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change, TensorEnv
from lifelong.envs.last_transition import echo_one_value, measure_with_last_transition
from lifelong.envs.measurement import Estimate
from lifelong.envs.options import check_choice, check_count
from lifelong.envs.random_streams import Channel, Stream, integers
from lifelong.envs.registry import register_env

_PAIRS_OF_EXACT_FEEDBACK = 6  # beyond, the dynamic programme takes longer than a figure in a note is worth
_PAIRS_OF_REFERENCES = 32  # beyond, exact counting and simulation take longer than a second


class AssociativeRecallWorld(NamedTuple):
    """The pairs of one episode and how far it has come."""

    keys: Tensor  # [B, n] int64: distinct keys, in the order of showing
    values: Tensor  # [B, n] int64: the value of each
    query_order: Tensor  # [B, n] int64: a permutation of 0..n-1, the order of asking
    position: Tensor  # [B] int64: 0..n-1 shows, n..2n-1 queries, 2n over


@register_env("associative_recall")
class AssociativeRecall(TensorEnv[AssociativeRecallWorld]):
    """Associative recall (multi-query): what goes with what, out of n pairs, each shown once and asked for once.

    An episode has 2n steps. In the first n, distinct keys out of the vocabulary are shown, each with a value that is
    uniform over V and independent of the others; actions earn nothing. In the other n, each of these keys is shown once
    more, in random order and without its value; the action is the answer, and earns 1/n if right and -1/n if wrong. The
    return is in [-1, 1].

    Observation: ``observation`` [B, 2 + keys + V] float32, three one-hot codes side by side: operation (show, query),
    key, value (all zero at a query). Actions: 0..V-1.
    Privileged: ``oracle_action`` int64, ``query`` bool, ``age`` int64, the steps since the key was shown (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        pairs: n.
        values: V.
        keys: size of the key vocabulary, at least n; None: 2n.
        reset_memory: what the end of an episode is: ``"episode"``, the end of the life (terminated, memory dropped), or
            ``"life"``, a soft reset inside a life without end (memory kept).
    """

    name = "associative_recall"
    world_type = AssociativeRecallWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        pairs: int = 4,
        values: int = 4,
        keys: int | None = None,
        reset_memory: Literal["episode", "life"] = "episode",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.pairs = check_count(self.name, "pairs", pairs)
        self.values = self.num_actions = check_count(self.name, "values", values, low=2)
        self.keys = check_count(self.name, "keys", 2 * pairs if keys is None else keys)
        if self.keys < pairs:
            raise ValueError(
                f"{self.name}: keys={keys} are too few for pairs={pairs} distinct keys; allowed: {pairs} or more"
            )
        self.can_terminate = check_choice(self.name, "reset_memory", reset_memory, ("episode", "life")) == "episode"
        self.observation_size = 2 + self.keys + self.values
        self.lifelong = not self.can_terminate and life_steps is None
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)

    @property
    def references(self) -> References:  # type: ignore[override]
        return _references(self.pairs, self.values)

    def birth_channels(self) -> Mapping[str, Channel]:
        return {
            "keys": Channel(Stream.WORLD, self.keys),
            "values": Channel(Stream.WORLD, self.pairs),
            "query_order": Channel(Stream.WORLD, self.pairs),
        }

    def step_channels(self) -> Mapping[str, Channel]:
        return {}

    def begin(self, draws: Mapping[str, Tensor]) -> AssociativeRecallWorld:
        keys = draws["keys"].argsort(dim=1, stable=True)[:, : self.pairs]
        query_order = draws["query_order"].argsort(dim=1, stable=True)
        position = torch.zeros_like(keys[:, 0])
        return AssociativeRecallWorld(keys, integers(draws["values"], self.values), query_order, position)

    def advance(
        self, world: AssociativeRecallWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[AssociativeRecallWorld]:
        right = torch.where(action == self._value(world), 1 / self.pairs, -1 / self.pairs)
        reward = torch.where(world.position >= self.pairs, right, 0.0).to(torch.float32)
        position = world.position + 1
        over = position == 2 * self.pairs
        world = world._replace(position=position)
        return Change(world, reward, terminated=over) if self.can_terminate else Change(world, reward, soft_reset=over)

    def observe(self, world: AssociativeRecallWorld) -> Observation:
        query = (world.position >= self.pairs).to(torch.int64)
        key = world.keys.gather(1, self._item(world)[:, None])[:, 0]
        entries = torch.stack([query, 2 + key, 2 + self.keys + self._value(world)], dim=1)
        present = (world.position < 2 * self.pairs).to(torch.float32)  # after the last query nothing is shown
        weights = torch.stack([present, present, present * (1 - query)], dim=1)
        blank = torch.zeros(self.num_lives, self.observation_size, device=self.device)
        return {"observation": blank.scatter_(1, entries, weights)}

    def describe(self, world: AssociativeRecallWorld) -> dict[str, Tensor]:
        return {
            "oracle_action": self._value(world),
            "query": world.position >= self.pairs,
            "age": world.position - self._item(world),
        }

    def _item(self, world: AssociativeRecallWorld) -> Tensor:
        """Index [B] into the pairs of the one shown or asked for."""
        asked = world.query_order.gather(1, (world.position - self.pairs).clamp(0, self.pairs - 1)[:, None])[:, 0]
        return torch.where(world.position < self.pairs, world.position, asked)

    def _value(self, world: AssociativeRecallWorld) -> Tensor:
        return world.values.gather(1, self._item(world)[:, None])[:, 0]


@lru_cache(maxsize=64)
def _references(pairs: int, values: int) -> References:
    notes = {"memoryless": "closed form: the values are uniform and independent of all that a query shows"}
    order_free = last_transition = None
    if pairs <= _PAIRS_OF_REFERENCES and values <= _PAIRS_OF_REFERENCES:
        order_free = order_free_return(pairs, values)
        notes["order_free"] = "closed form: answer the value shown most often, 2 E[max multinomial(n, 1/V)] / n - 1"
        echo = echo_return(pairs, values)
        last_transition = echo.mean
        notes["last_transition"] = (
            f"actions hand on one value to answer with: simulation, standard error {echo.standard_error:.5f}"
        )
    if pairs <= _PAIRS_OF_EXACT_FEEDBACK:
        best = order_free_return_with_feedback(pairs, values)
        notes["order_free_with_feedback"] = f"{best:.4f}, exact: as order_free, but also uses which answers were right"
    return References(
        per="episode",
        random=2 / values - 1,
        oracle=1.0,
        memoryless=2 / values - 1,
        last_transition=last_transition,
        order_free=order_free,
        notes=notes,
    )


# `python benchmarks/stored_references.py --only associative_recall`, by (pairs, values).
_STORED_ECHO_RETURNS = {(4, 4): Estimate(-0.01877, 0.00055), (32, 16): Estimate(-0.77016, 0.00033)}


def echo_return(pairs: int, values: int) -> Estimate:
    """Mean return of ``echo_one_value`` (stored for the configs of that name, else about a second)."""
    stored = _STORED_ECHO_RETURNS.get((pairs, values))
    return simulate_echo_return(pairs, values) if stored is None else stored


def simulate_echo_return(pairs: int, values: int, lives: int = 1024, episodes: int = 4, seed: int = 0) -> Estimate:
    """Simulate it on ``lives`` lives of ``episodes`` episodes each."""
    env = AssociativeRecall(lives, seed, pairs=pairs, values=values, keys=pairs)
    return measure_with_last_transition(env, echo_one_value(env), 2 * pairs * episodes, "episode")
