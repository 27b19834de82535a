"""What can be reached on the drifting torus: by learning the controls, and without any memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lifelong.envs.measurement import Estimate, estimate

if TYPE_CHECKING:
    from lifelong.envs.batched import TensorEnv


def simulate_elimination_learner(env: TensorEnv[Any], size: int, gears: int, steps: int, burn_in: int) -> Estimate:
    """Goals per step of a learner that notes what each control did, and starts over when one does something else.

    In each gear it takes a control known to lead nearer to the goal; if there is none, one that is not known and could;
    a control is known once it was tried, or when it is the last of its gear.
    """
    lives = torch.arange(env.num_lives, device=env.device)
    known = torch.full((env.num_lives, gears, 4), -1, device=env.device)  # [B, gear, action] -> move
    shown = env.reset()["observation"]
    total = torch.zeros(env.num_lives, dtype=torch.float64, device=env.device)
    for t in range(burn_in + steps):
        goal, gear = _decode(shown, size, gears)
        useful = _useful_moves(goal, size)  # [B, 4]
        row = known[lives, gear]  # [B, 4]
        taken = torch.nn.functional.one_hot(row.clamp(min=0), 4).bool() & (row >= 0)[..., None]
        left = ~taken.any(1)  # [B, move]: moves that no known control makes
        leads = (row >= 0) & useful.gather(1, row.clamp(min=0))
        could = (row < 0) & (useful & left).any(1, keepdim=True)
        preference = leads * 4.0 + could * 2.0 + (row < 0) * 1.0
        action = preference.argmax(1)
        step = env.step(action)
        shown = step.observation["observation"]
        after, _ = _decode(shown, size, gears)
        won = step.reward > 0.5
        made = _move_made(goal, torch.where(won[:, None], 0, after), size)
        held = row.gather(1, action[:, None])[:, 0]
        known_elsewhere = ((row == made[:, None]) & (torch.arange(4, device=env.device) != action[:, None])).any(1)
        contradiction = ((held >= 0) & (held != made)) | ((held < 0) & known_elsewhere)
        known[contradiction] = -1
        known[lives, gear, action] = made
        row = known[lives, gear]
        last = (row >= 0).sum(1) == 3
        remaining = 6 - row.clamp(min=0).sum(1)
        known[lives, gear] = torch.where(last[:, None] & (row < 0), remaining[:, None], row)
        if t >= burn_in:
            total += step.reward
    return estimate(total / steps)


def _decode(shown: Tensor, size: int, gears: int) -> tuple[Tensor, Tensor]:
    """The goal [B, 2] and the gear [B] that an observation shows."""
    goal = torch.stack([shown[:, :size].argmax(1), shown[:, size : 2 * size].argmax(1)], dim=1)
    return goal, shown[:, 2 * size : 2 * size + gears].argmax(1)


def _useful_moves(goal: Tensor, size: int) -> Tensor:
    """[B, 4]: which moves (+x, -x, +y, -y) lead nearer to the goal."""
    ahead = (goal > 0) & (2 * goal <= size)
    behind = (goal > 0) & (2 * goal >= size)
    return torch.stack([ahead[:, 0], behind[:, 0], ahead[:, 1], behind[:, 1]], dim=1)


def _move_made(before: Tensor, after: Tensor, size: int) -> Tensor:
    """The move [B] that took the goal from ``before`` to ``after`` (both relative to the agent, [B, 2])."""
    shift = (before - after).remainder(size)  # 1 for a move ahead, size - 1 for one back
    axis = (shift[:, 0] == 0).to(torch.int64)
    return 2 * axis + (shift.gather(1, axis[:, None])[:, 0] != 1)


class MemorylessTorus:
    """Exact goals per step of policies without memory, pi(action | goal, gear), for any wiring and hazard.

    For each combination c of wirings (24^gears) the relative goal is a Markov chain T_c. With the hazard h, the
    stationary law p_c of (goal, combination) solves p_c (I - (1 - h) T_c) = h / C q, where q = sum_c p_c T_c is a fixed
    point.

    Args:
        size, gears, hazard: options of the torus, with hazard > 0. It solves 24^gears systems of n^2 - 1 equations.
    """

    def __init__(self, size: int, gears: int, hazard: float) -> None:
        self.size, self.gears, self.hazard = size, gears, hazard
        wirings = torch.tensor(list(itertools.permutations(range(4))))
        self._action_of_move = wirings.argsort(dim=1)  # [24, move]
        self._combinations = torch.cartesian_prod(*[torch.arange(24)] * gears).reshape(-1, gears)  # [C, gears]
        cells = [(x, y) for x in range(size) for y in range(size) if (x, y) != (0, 0)]
        index = {cell: i for i, cell in enumerate(cells)}
        self.num_goals = len(cells)
        targets = [
            [index.get(((x - dx) % size, (y - dy) % size), len(cells)) for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))]
            for x, y in cells
        ]
        self._leads = torch.nn.functional.one_hot(torch.tensor(targets), len(cells) + 1).double()  # [goal, move, goal']

    def rate(self, policy: Tensor) -> Tensor:
        """Goals per step (scalar, differentiable) of ``policy`` [gears, n^2 - 1, 4], probabilities of the actions."""
        goals = self.num_goals
        flow = torch.zeros(len(self._combinations), goals, goals + 1, dtype=torch.float64)
        for gear in range(self.gears):
            by_move = policy[gear][:, self._action_of_move]  # [goal, 24, move]
            per_wiring = torch.einsum("gwm,gmn->wgn", by_move, self._leads) / self.gears
            flow = flow + per_wiring[self._combinations[:, gear]]
        reached = flow[..., goals]
        chain = flow[..., :goals] + reached[..., None] / goals  # [C, goal, goal']
        eye = torch.eye(goals, dtype=torch.float64)
        system = (eye - (1 - self.hazard) * chain).transpose(1, 2)
        inverse = torch.linalg.solve(system, eye.expand_as(system)).transpose(1, 2)  # (I - (1 - h) T_c)^-1
        share = self.hazard / len(self._combinations)
        # q = q M; one equation is replaced by the sum of q being 1.
        equations = ((share * inverse @ chain).sum(0) - eye).T
        equations = torch.cat([equations[:-1], torch.ones(1, goals, dtype=torch.float64)])
        right = torch.zeros(goals, dtype=torch.float64)
        right[-1] = 1.0
        law = share * torch.linalg.solve(equations, right) @ inverse  # [C, goal]
        return (law * reached).sum()

    def best(self, starts: int, iterations: int, seed: int = 0) -> tuple[float, Tensor]:
        """The largest rate that gradient ascent (Adam) finds from random starts, and its policy: a lower bound."""
        found: list[tuple[float, Tensor]] = []
        for start in range(starts):
            generator = torch.Generator().manual_seed(seed + start)
            logits = torch.randn(self.gears, self.num_goals, 4, generator=generator, dtype=torch.float64)
            logits.requires_grad_()
            optimiser = torch.optim.Adam([logits], lr=0.1)
            for _ in range(iterations):
                optimiser.zero_grad()
                (-self.rate(logits.softmax(2))).backward()
                optimiser.step()
            policy = logits.detach().softmax(2)
            found.append((float(self.rate(policy)), policy))
        return max(found, key=lambda pair: pair[0])
