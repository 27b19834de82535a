"""Retention by decade: keys are re-bound every 10^g steps, for ever, and asked for in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change
from lifelong.envs.open_loop import TimeIndexedEnv
from lifelong.envs.options import check_count, check_flag, check_list, check_number
from lifelong.envs.random_streams import Channel, Stream, hashed_uniform, integers
from lifelong.envs.registry import register_env

WRITE, QUERY, FILLER = 0, 1, 2


class RecallStreamWorld(NamedTuple):
    """What was fixed at birth, and what the present step shows."""

    order: Tensor  # [B, N] int64: the keys in the order in which they are introduced
    introduction: Tensor  # [B, N] int64: the step at which each key is introduced
    phase: Tensor  # [B, N] int64: key k is re-bound where (time - N - phase) is a multiple of its period
    value_key: Tensor  # [B] int64: the value of key k in its e-th binding is a hash of (value_key, k, e)
    operation: Tensor  # [B] int64: WRITE, QUERY or FILLER
    key: Tensor  # [B] int64: 0..N-1, or N.. for a filler key
    value: Tensor  # [B] int64: the value bound to the key (for a filler: a random one)
    age: Tensor  # [B] int64: steps since this binding of the key was shown
    time: Tensor  # [B] int64: life step


@register_env("recall_stream")
class RecallStream(TimeIndexedEnv[RecallStreamWorld]):
    """How far back does a memory reach, in decades of steps, when it must go on writing all the time?

    There are G groups of keys; each key of group g is bound to a new value, uniform over V, every T_g = base^g steps.
    Such a write shows key and value. A life begins with N steps that introduce every key once. At every step without a
    write, a key is queried (a uniform group, then a uniform key of it), or, with probability ``filler``, a key of no
    consequence is shown with a random value. At a query the action is the answer: right +1, wrong -1 / (V - 1), so that
    guessing earns 0.

    Writes never fall on the same step: each key of group 1 has a residue modulo ``base`` of its own, and each further
    group has one, in which its keys are spread evenly, at random phases.

    Observation: ``observation`` [B, 3 + code + V] float32, one-hot codes side by side: operation (write, query,
    filler), key, value (zero at a query). The key's code is one-hot over N (and the fillers), or with ``conjunctive``
    two one-hot codes (a, b)
    of about the square root of that size: a key is then known by the pair only.
    Actions: 0..V-1.
    Privileged: ``oracle_action`` int64, ``query`` bool, ``age`` int64, steps since the binding was shown, ``group``
    int64, 0..G-1 (G for fillers) (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        keys_per_group: k_1, ..., k_G. At most base - G + 1 in the first group, base^(g-1) in group g.
        base: T_g = base^g.
        values: V.
        filler: probability that a step without a write shows a filler in place of a query.
        filler_keys: how many filler keys there are.
        conjunctive: keys are shown as pairs of codes.
    """

    name = "recall_stream"
    world_type = RecallStreamWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        keys_per_group: Sequence[int] = (2, 4, 4),
        base: int = 10,
        values: int = 4,
        filler: float = 0.0,
        filler_keys: int = 16,
        conjunctive: bool = False,
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.base = check_count(self.name, "base", base, low=2)
        self.keys_per_group = self._check_groups(keys_per_group)
        self.values = self.num_actions = check_count(self.name, "values", values, low=2)
        self.filler = check_number(self.name, "filler", filler, low=0.0, below=1.0)
        self.filler_keys = check_count(self.name, "filler_keys", filler_keys)
        self.conjunctive = check_flag(self.name, "conjunctive", conjunctive)
        self.lifelong = life_steps is None
        self.num_keys = sum(self.keys_per_group)
        shown_keys = self.num_keys + (self.filler_keys if self.filler > 0 else 0)
        self.side = next(side for side in range(1, shown_keys + 1) if side * side >= shown_keys)
        self.key_size = 2 * self.side if self.conjunctive else shown_keys
        self.observation_size = 3 + self.key_size + self.values
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)

        sizes = torch.tensor(self.keys_per_group, dtype=torch.int64)
        self._group_size = sizes.to(self.device)  # [G]
        self._group_start = (sizes.cumsum(0) - sizes).to(self.device)  # [G]
        self._group_of_key = torch.arange(len(sizes)).repeat_interleave(sizes).to(self.device)  # [N]
        self._period = torch.tensor(self.periods).repeat_interleave(sizes).to(self.device)  # [N]

    def _check_groups(self, keys_per_group: Sequence[int]) -> tuple[int, ...]:
        groups = tuple(check_list(self.name, "keys_per_group", keys_per_group))
        if not groups:
            raise ValueError(f"{self.name}: keys_per_group={list(groups)} is empty; allowed: one group or more")
        for g, size in enumerate(groups, start=1):
            most = self.base - len(groups) + 1 if g == 1 else self.base ** (g - 1)
            check_count(self.name, f"keys_per_group (group {g})", size, low=1, high=most)
        if sum(size * self.base ** (len(groups) - g) for g, size in enumerate(groups, start=1)) == self.base ** len(
            groups
        ):
            raise ValueError(
                f"{self.name}: keys_per_group={list(groups)} with base={self.base} leaves no step for a query; "
                "allowed: fewer keys"
            )
        if self.base ** len(groups) >= 2**62:
            raise ValueError(f"{self.name}: the period {self.base}^{len(groups)} is too long; allowed: below 2^62")
        return groups

    @property
    def periods(self) -> list[int]:
        """T_1, ..., T_G."""
        return [self.base**g for g in range(1, len(self.keys_per_group) + 1)]

    @property
    def query_rate(self) -> float:
        """Queries per step, after the introduction."""
        writes = sum(size / period for size, period in zip(self.keys_per_group, self.periods, strict=True))
        return (1 - writes) * (1 - self.filler)

    @property
    def references(self) -> References:  # type: ignore[override]
        return References(
            per="step",
            random=0.0,
            oracle=self.query_rate,
            memoryless=0.0,
            last_transition=self.query_rate / (len(self.keys_per_group) * min(self.keys_per_group)),
            notes={
                "oracle": "closed form: queries per step, (1 - sum_g k_g / T_g) (1 - filler), after the introduction",
                "memoryless": "closed form: values are uniform and independent of all that a query shows",
                "last_transition": "closed form: actions hand on one key's value, of the smallest group, 1 / (G k_g)",
                "window": (
                    "a memory of the last W steps scores about (1/G) sum_g min(1, W / (T_g - 1)), an approximation "
                    "for large bases (up to 0.06 off for base 4): see window_score"
                ),
            },
        )

    def window_score(self, window: int) -> float:
        """Normalised score of a perfect memory of the last ``window`` steps, (1/G) sum_g min(1, W / (T_g - 1)).

        The age of what is asked for is taken as uniform over 1..T_g - 1, as if the other writes were spread evenly:
        an approximation, up to 0.06 off for base 4 and within 0.003 for the default options.
        """
        return sum(min(1.0, window / (period - 1)) for period in self.periods) / len(self.periods)

    def birth_channels(self) -> Mapping[str, Channel]:
        return {
            "order": Channel(Stream.SCHEDULE, self.num_keys),
            "residue": Channel(Stream.SCHEDULE, self.base),
            "jitter": Channel(Stream.SCHEDULE, self.num_keys),
            "value_key": Channel(Stream.SCHEDULE),
        }

    def step_channels(self) -> Mapping[str, Channel]:
        query = {"query": Channel(Stream.WORLD, 2)}
        return query | {"filler": Channel(Stream.WORLD, 3)} if self.filler > 0 else query

    def begin(self, draws: Mapping[str, Tensor]) -> RecallStreamWorld:
        order = draws["order"].argsort(dim=1, stable=True)
        residues = draws["residue"].argsort(dim=1, stable=True)  # [B, base]: a random order of the residues
        # A key of group 1 has a residue of its own; a later group shares one, where its keys divide the T_g / base
        # slots of a period into equal parts, and each takes a random slot of its part.
        key = torch.arange(self.num_keys, device=self.device)
        first = self._group_of_key == 0
        lane = torch.where(first, key, self._group_of_key + (self.keys_per_group[0] - 1))
        slots = self._period // self.base
        parts = self._group_size[self._group_of_key].masked_fill(first, 1)
        part = (key - self._group_start[self._group_of_key]).masked_fill(first, 0)
        low, high = part * slots // parts, (part + 1) * slots // parts
        slot = low + (draws["jitter"] * (high - low)).to(torch.int64)
        phase = residues[:, lane] + self.base * slot
        value_key = (draws["value_key"][:, 0] * 2.0**53).to(torch.int64)
        zeros = torch.zeros_like(value_key)
        born = RecallStreamWorld(order, order.argsort(dim=1), phase, value_key, zeros, zeros, zeros, zeros, zeros)
        return born._replace(key=order[:, 0], value=self._value(born, order[:, 0], zeros))

    def advance(
        self, world: RecallStreamWorld, action: Tensor, draws: Mapping[str, Tensor]
    ) -> Change[RecallStreamWorld]:
        answer = torch.where(action == world.value, 1.0, -1 / (self.values - 1))
        reward = torch.where(world.operation == QUERY, answer, 0.0)
        return Change(self.at_time(world, world.time + 1, draws), reward)

    def at_time(self, world: RecallStreamWorld, time: Tensor, draws: Mapping[str, Tensor]) -> RecallStreamWorld:
        since = (time - self.num_keys)[:, None]  # time since the introduction; negative inside it
        due = (since - world.phase).remainder(self._period) == 0  # [B, N], at most one of them
        introduced = world.order.gather(1, time.clamp(max=self.num_keys - 1)[:, None])[:, 0]
        write, rebound = due.max(dim=1)
        group = integers(draws["query"][:, 0], len(self.keys_per_group))
        queried = self._group_start[group] + (draws["query"][:, 1] * self._group_size[group]).to(torch.int64)
        introducing = time < self.num_keys
        operation = torch.where(write | introducing, WRITE, QUERY)
        key = torch.where(introducing, introduced, torch.where(write, rebound, queried))

        passed = since[:, 0] - world.phase.gather(1, key[:, None])[:, 0]  # since the first re-binding of the key
        period = self._period[key]
        binding = torch.where(introducing, 0, passed.div(period, rounding_mode="floor") + 1)
        since_introduction = time - world.introduction.gather(1, key[:, None])[:, 0]
        age = torch.where(binding == 0, since_introduction, passed.remainder(period))
        value = self._value(world, key, binding)
        if self.filler > 0:
            is_filler = (operation == QUERY) & (draws["filler"][:, 0] < self.filler)
            operation = operation.masked_fill(is_filler, FILLER)
            key = torch.where(is_filler, self.num_keys + integers(draws["filler"][:, 1], self.filler_keys), key)
            value = torch.where(is_filler, integers(draws["filler"][:, 2], self.values), value)
            age = age.masked_fill(is_filler, 0)
        return world._replace(operation=operation, key=key, value=value, age=age, time=time)

    def observe(self, world: RecallStreamWorld) -> Observation:
        value = 3 + self.key_size + world.value
        if self.conjunctive:
            codes = [3 + world.key // self.side, 3 + self.side + world.key % self.side]
        else:
            codes = [3 + world.key]
        entries = torch.stack([world.operation, *codes, value], dim=1)
        weights = torch.ones_like(entries, dtype=torch.float32)
        weights[:, -1] = (world.operation != QUERY).to(torch.float32)
        blank = torch.zeros(len(entries), self.observation_size, device=entries.device)
        return {"observation": blank.scatter_(1, entries, weights)}

    def describe(self, world: RecallStreamWorld) -> dict[str, Tensor]:
        filler = world.operation == FILLER
        group = self._group_of_key[world.key.clamp(max=self.num_keys - 1)]
        return {
            "oracle_action": world.value,
            "query": world.operation == QUERY,
            "age": world.age,
            "group": group.masked_fill(filler, len(self.keys_per_group)),
        }

    def _value(self, world: RecallStreamWorld, key: Tensor, binding: Tensor) -> Tensor:
        """The value [B] that ``key`` [B] has in its ``binding``-th binding (0: the introduction)."""
        return integers(hashed_uniform(world.value_key, key, binding), self.values)
