"""One training on several processes: every rank lives its share of the lives, and all take the same steps.

    torchrun --nproc-per-node 2 -m lifelong.experiments.cli train env.num_lives=64

Rank r of W has the lives [r B / W, (r + 1) B / W) of B. What concerns all lives is drawn by every rank from generators
of the same seed (the noise of actions, the minibatches), and of it each takes its part. A minibatch of n lives, n_r of
them of rank r, has the gradient

    g = sum_r (n_r / n) g_r

and means over the minibatch are such sums too. So W ranks do what one process does with B lives, but for the order in
which floats are added. The weights are the same to the bit on all ranks, and with them all decisions.

``Group`` is a process alone, to which every exchange is the identity; ``Ranks`` is one of several. Small things go over
gloo; gradients too, unless they are on CUDA: those go over NCCL. A rank that fails leaves, and closes its connections;
the others find them closed and leave as well (over NCCL, where nothing closes, ``torchrun`` ends them).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn

T = TypeVar("T")
# How long a rank may keep the others waiting: a checkpoint of all lives on a slow disk, an environment that pauses.
_PATIENCE = timedelta(minutes=30)


class RankLost(RuntimeError):
    """Another rank has left; if it could, it has said why."""


class Group:
    """A process that trains alone."""

    rank = 0
    world = 1

    def gather(self, value: T) -> list[T]:
        """``value`` of all ranks, in their order. It is pickled."""
        return [value]

    def spread(self, rows: Tensor) -> Tensor:
        """[B / W, ...] of this rank's lives as [B, ...] of all, zero where they are others'."""
        return rows

    def own(self, rows: Tensor) -> Tensor:
        """This rank's part of [B, ...]."""
        return rows

    def own_lives(self, lives: Tensor) -> tuple[Tensor, float]:
        """Those of ``lives`` [n], indices into all, that are this rank's, as indices into its own, and their share n_r
        / n. Where there are none, one life that counts for nothing, so that there is a graph to go through.
        """
        return lives, 1.0

    def mean(self, values: Tensor, counted: bool = True) -> Tensor:
        """Over all elements of ``values`` on all ranks that say ``counted``."""
        return values.mean()

    def var(self, values: Tensor, counted: bool = True) -> Tensor:
        """Unbiased; over the same."""
        return values.var()

    def std(self, values: Tensor, counted: bool = True) -> Tensor:
        return values.std()

    def add_gradients(self, parameters: Sequence[nn.Parameter], logged: Tensor) -> Tensor:
        """Put the sum over ranks in place of each gradient; returns the sum of ``logged`` [n]."""
        return logged

    def copy_weights(self, module: nn.Module) -> None:
        """Give all ranks the weights and buffers of rank 0."""


class Ranks(Group):
    """One of the W processes of ``torch.distributed``'s default group, which must have been begun.

    Args:
        lives: B, of all ranks together.

    Raises:
        ValueError: B cannot be divided by W.
    """

    def __init__(self, lives: int) -> None:
        self.rank, self.world = distributed.get_rank(), distributed.get_world_size()
        if lives % self.world:
            raise ValueError(f"env.num_lives={lives}: must be a multiple of the number of ranks, {self.world}")
        self.lives = lives
        size = lives // self.world
        self.first, self.end = self.rank * size, (self.rank + 1) * size

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world
        with _others_there():
            distributed.all_gather_object(found, value)
        return found

    def spread(self, rows: Tensor) -> Tensor:
        whole = rows.new_zeros(self.lives, *rows.shape[1:])
        whole[self.first : self.end] = rows
        return whole

    def own(self, rows: Tensor) -> Tensor:
        return rows[self.first : self.end]

    def own_lives(self, lives: Tensor) -> tuple[Tensor, float]:
        own = lives[(lives >= self.first) & (lives < self.end)] - self.first
        return (own, len(own) / len(lives)) if len(own) else (torch.zeros(1, dtype=torch.int64), 0.0)

    def mean(self, values: Tensor, counted: bool = True) -> Tensor:
        count, total, _ = self._moments(values, counted)
        return (total / count).to(values)

    def var(self, values: Tensor, counted: bool = True) -> Tensor:
        count, total, square = self._moments(values, counted)
        return ((square - total * total / count) / (count - 1)).clamp_min(0).to(values)

    def std(self, values: Tensor, counted: bool = True) -> Tensor:
        return self.var(values, counted).sqrt()

    def _moments(self, values: Tensor, counted: bool) -> Tensor:
        """Count, sum and sum of squares: in float64, of which float32 values leave enough digits."""
        exact = values.detach().double()
        own = torch.stack([torch.tensor(values.numel()).to(exact), exact.sum(), exact.square().sum()]).cpu()
        return self._sum(own if counted else torch.zeros_like(own))

    def add_gradients(self, parameters: Sequence[nn.Parameter], logged: Tensor) -> Tensor:
        # Whether there is a gradient goes along: the optimiser leaves weights alone that have none on any rank.
        known = logged.new_tensor([parameter.grad is not None for parameter in parameters])
        parts = [parameter.grad if parameter.grad is not None else parameter * 0.0 for parameter in parameters]
        sizes = [parameter.numel() for parameter in parameters]
        flat = self._sum(torch.cat([*(part.detach().flatten() for part in parts), known, logged]))
        *gradients, known, logged = flat.split([*sizes, len(known), len(logged)])
        for parameter, gradient, count in zip(parameters, gradients, known.tolist(), strict=True):
            parameter.grad = gradient.view_as(parameter) if count else None
        return logged

    def copy_weights(self, module: nn.Module) -> None:
        with _others_there():
            for tensor in module.state_dict().values():
                distributed.broadcast(tensor, 0)

    def _sum(self, tensor: Tensor) -> Tensor:
        with _others_there():
            distributed.all_reduce(tensor)
        return tensor


@contextmanager
def _others_there() -> Iterator[None]:
    """An exchange that fails does so because a rank has left."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost("another rank has left") from error


ALONE = Group()


def launched_by_torchrun() -> bool:
    """Whether this process is one of several that ``torchrun`` began."""
    return distributed.is_torchelastic_launched() and int(os.environ["WORLD_SIZE"]) > 1


def local_rank() -> int:
    """The number of this process on its machine, and of the GPU that it should take."""
    return int(os.environ["LOCAL_RANK"])


@contextmanager
def join(device: torch.device, lives: int) -> Iterator[Group]:
    """The group that this process is in: of the ranks that ``torchrun`` began, or alone.

    Args:
        device: of the weights.
        lives: B, of all ranks together.

    Raises:
        ValueError: B cannot be divided by the number of ranks.
    """
    if not launched_by_torchrun():
        yield ALONE
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)  # "cuda" in an environment's options is this one
    distributed.init_process_group(backend, timeout=_PATIENCE)
    try:
        yield Ranks(lives)
    finally:
        distributed.destroy_process_group()
