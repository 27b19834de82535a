"""What can be reached on the goal memory by remembering where each goal was."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from lifelong.envs.drift_torus import MOVES, oracle_rate


def sweep_action(agent: Tensor, size: int) -> Tensor:
    """The move [B] of a walk through all cells of the torus in turn, from the ``agent``'s cell [B, 2] alone.

    It goes along +column through a row (action 0) and changes to the next (action 2) where column + row = -1 modulo n:
    a cycle through all n^2 cells, so that from any of them a goal elsewhere takes n^2 / 2 steps on average.
    """
    return torch.where((agent.sum(1) + 1).remainder(size) == 0, 2, 0)


def approach_action(offset: Tensor, size: int) -> Tensor:
    """The move [B] on a shortest way to the cell that lies ``offset`` [B, 2] (not zero) away: first along the columns,
    ahead where both ways around are as long."""
    ahead = offset.remainder(size)
    in_column = ahead[:, 0] == 0
    distance = torch.where(in_column, ahead[:, 1], ahead[:, 0])
    return 2 * in_column + (2 * distance > size)


@lru_cache(maxsize=64)
def revisiting_rate(size: int, relocation: float) -> float:
    """Goals per step, once all goals have been reached, of one who goes where the goal was last and, if it is not
    there, on through all cells in turn.

    1 / ((1 - r) mean distance + r T), where T is the mean time to a goal that has moved: over all cells s of the start
    and g of the goal (g uniform over the cells but the remembered one, s over the cells but g), the time at which the
    way from s to the remembered cell, and then the sweep (counted from that cell), first comes to g.
    """
    stayed = 1 / oracle_rate(size)
    return 1 / ((1 - relocation) * stayed + relocation * _time_to_a_moved_goal(size))


@lru_cache(maxsize=64)
def _time_to_a_moved_goal(size: int) -> float:
    moves = torch.tensor(MOVES)
    # Cells are counted from the remembered one, which is 0, and every start is walked from at once.
    agent = torch.cartesian_prod(torch.arange(size), torch.arange(size))  # [n^2, 2]
    starts = torch.arange(size**2)
    first = torch.full((size**2, size**2), -1)  # [start, cell]: when it first comes there
    first[starts, starts] = 0
    searching = (agent == 0).all(1)
    for time in range(1, size**2 + 2 * size):
        action = torch.where(searching, sweep_action(agent, size), approach_action(-agent, size))
        agent = (agent + moves[action]).remainder(size)
        searching = searching | (agent == 0).all(1)
        cell = agent[:, 0] * size + agent[:, 1]
        first[starts, cell] = torch.where(first[starts, cell] < 0, time, first[starts, cell])
    goals = first[:, 1:].double()  # any cell but the remembered one; a start in the goal's cell adds 0
    return float(goals.sum()) / ((size**2 - 1) * (size**2 - 1))
