"""A T-maze whose corridor may be a million steps long: a cue at its start says which way to turn at its end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import Observation, References
from lifelong.envs.batched import Change
from lifelong.envs.open_loop import TimeIndexedEnv
from lifelong.envs.options import check_choice, check_count, check_number
from lifelong.envs.random_streams import Channel, Stream, hashed_uniform, integers
from lifelong.envs.registry import register_env

FORWARD, BACK, LEFT, RIGHT = range(4)  # the actions of mode "walk"


class LongTMazeWorld(NamedTuple):
    """Where the agent stands, in which trial, and what it was told at its start."""

    cue_key: Tensor  # [B] int64: the cue of trial k is a hash of (cue_key, k)
    trial: Tensor  # [B] int64
    position: Tensor  # [B] int64: 0 the start with the cue, 1..N the corridor, N + 1 the junction
    cue: Tensor  # [B] int64: 0 left, 1 right
    distractors: Tensor  # [B, D] float32


@register_env("long_tmaze")
class LongTMaze(TimeIndexedEnv[LongTMazeWorld]):
    """Remember one bit over a corridor of N cells, then the next one, and so on: the endless T-maze.

    At the start a cue, left or right, is shown; then comes a corridor of N cells that look alike, then the junction. A
    turn there earns +1 if it is the cue's, else -1, and ends the trial; the next one begins at the start, with a new
    cue.

    * ``auto``: the agent is moved along the corridor, N + 2 steps a trial; actions (0 left, 1 right) count at the
      junction only. What is seen does not depend on them.
    * ``walk``: the agent walks (0 forward, 1 back, 2 left, 3 right). Every step that is neither forward inside the
      corridor nor a turn at the junction costs ``penalty``; it moves nothing, but for a step back.

    Observation: ``observation`` [B, 3 + D] float32: cue left, cue right (at the start only), junction, and D
    distractors that are -1 or +1 at random at every step.
    Actions: 0..1 (auto) or 0..3 (walk).
    Privileged: ``oracle_action`` int64, ``cue`` int64, ``position`` int64, ``junction`` bool (all [B]).

    Args:
        num_lives, seed, life_steps, first_life, device: see ``TensorEnv``.
        corridor: N.
        mode: ``"auto"`` or ``"walk"``.
        penalty: see ``walk``; None: 1 / (N + 1), so that the shortest way in the wrong direction costs 1.
        distractors: D.
        reset_memory: what the end of a trial is: ``"life"``, a soft reset inside a life without end (memory kept), or
            ``"episode"``, the end of the life (terminated, memory dropped).
    """

    name = "long_tmaze"
    world_type = LongTMazeWorld

    def __init__(
        self,
        num_lives: int,
        seed: int,
        *,
        corridor: int = 100,
        mode: Literal["auto", "walk"] = "auto",
        penalty: float | None = None,
        distractors: int = 0,
        reset_memory: Literal["episode", "life"] = "life",
        life_steps: int | None = None,
        first_life: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.corridor = check_count(self.name, "corridor", corridor, high=2**61)
        self.junction = self.corridor + 1
        self.mode = check_choice(self.name, "mode", mode, ("auto", "walk"))
        self.num_actions = 2 if mode == "auto" else 4
        self.penalty = check_number(self.name, "penalty", 1 / self.junction if penalty is None else penalty, low=0.0)
        self.num_distractors = check_count(self.name, "distractors", distractors, low=0)
        self.can_terminate = check_choice(self.name, "reset_memory", reset_memory, ("episode", "life")) == "episode"
        self.lifelong = not self.can_terminate and life_steps is None
        self.observation_size = 3 + self.num_distractors
        super().__init__(num_lives, seed, life_steps=life_steps, first_life=first_life, device=device)

    @property
    def references(self) -> References:  # type: ignore[override]
        notes = {"memoryless": "closed form: forward, then any turn"}
        random, last_transition = 0.0, 1.0
        notes["last_transition"] = "closed form: the action along the corridor is the cue's"
        if self.mode == "walk":
            last_transition = 0.0
            notes["last_transition"] = "closed form: whatever the cue, the step into the junction is forward"
            idle = 1 + 3 * self.junction + 1.5 * self.junction**2
            random = -self.penalty * idle
            notes["random"] = (
                "closed form: a random walk makes 1 + 3 M + 3/2 M^2 penalised steps in a trial, M = N + 1. "
                "Most of what lies between it and the oracle is walking: read memory from the distance to memoryless"
            )
        return References(
            per="episode", random=random, oracle=1.0, memoryless=0.0, last_transition=last_transition, notes=notes
        )

    @property
    def closed_loop(self) -> str | None:
        if self.mode == "walk":
            return "mode=walk"
        return "reset_memory=episode" if self.can_terminate else super().closed_loop

    def birth_channels(self) -> Mapping[str, Channel]:
        return {"cue_key": Channel(Stream.SCHEDULE), **self.step_channels()}

    def step_channels(self) -> Mapping[str, Channel]:
        return {"distractors": Channel(Stream.NOISE, self.num_distractors)} if self.num_distractors else {}

    def begin(self, draws: Mapping[str, Tensor]) -> LongTMazeWorld:
        cue_key = (draws["cue_key"][:, 0] * 2.0**53).to(torch.int64)
        zeros = torch.zeros_like(cue_key)
        return LongTMazeWorld(cue_key, zeros, zeros, _cue(cue_key, zeros), self._distractors(cue_key, draws))

    def restart(self, world: LongTMazeWorld, draws: Mapping[str, Tensor]) -> LongTMazeWorld:
        return world  # ``advance`` has moved on to the next trial

    def advance(self, world: LongTMazeWorld, action: Tensor, draws: Mapping[str, Tensor]) -> Change[LongTMazeWorld]:
        at_junction = world.position == self.junction
        if self.mode == "auto":
            over, turn, position = at_junction, action, world.position + 1
            toll = torch.zeros_like(world.position, dtype=torch.float32)
        else:
            over, turn = at_junction & (action >= LEFT), action - LEFT
            forward = (action == FORWARD) & ~at_junction
            back = action == BACK
            position = (world.position + forward.to(torch.int64) - back.to(torch.int64)).clamp(min=0)
            toll = torch.where(over | forward, 0.0, -self.penalty)
        reward = torch.where(over, torch.where(turn == world.cue, 1.0, -1.0), toll)
        trial = world.trial + over
        after = self._show(world, trial, position.masked_fill(over, 0), draws)
        return Change(after, reward, terminated=over) if self.can_terminate else Change(after, reward, soft_reset=over)

    def at_time(self, world: LongTMazeWorld, time: Tensor, draws: Mapping[str, Tensor]) -> LongTMazeWorld:
        trial_steps = self.corridor + 2
        return self._show(world, time // trial_steps, time % trial_steps, draws)

    def observe(self, world: LongTMazeWorld) -> Observation:
        start, junction = world.position == 0, world.position == self.junction
        told = torch.stack([start & (world.cue == 0), start & (world.cue == 1), junction], dim=1)
        return {"observation": torch.cat([told.to(torch.float32), world.distractors], dim=1)}

    def describe(self, world: LongTMazeWorld) -> dict[str, Tensor]:
        junction = world.position == self.junction
        oracle = world.cue if self.mode == "auto" else torch.where(junction, LEFT + world.cue, FORWARD)
        return {"oracle_action": oracle, "cue": world.cue, "position": world.position, "junction": junction}

    def _show(
        self, world: LongTMazeWorld, trial: Tensor, position: Tensor, draws: Mapping[str, Tensor]
    ) -> LongTMazeWorld:
        cue = _cue(world.cue_key, trial)
        return LongTMazeWorld(world.cue_key, trial, position, cue, self._distractors(position, draws))

    def _distractors(self, like: Tensor, draws: Mapping[str, Tensor]) -> Tensor:
        if not self.num_distractors:
            return torch.zeros(len(like), 0, device=self.device)
        return torch.where(draws["distractors"] < 0.5, -1.0, 1.0)


def _cue(cue_key: Tensor, trial: Tensor) -> Tensor:
    return integers(hashed_uniform(cue_key, trial), 2)
