"""How operators of the fast-weight family are mapped by `torch.vmap`: the mapped axis joins the axis of lives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor


def fold_lives(operator: Callable[..., tuple[Tensor, ...]], *, start: int, erase_heads: int) -> Callable[..., Any]:
    """A rule for `torch.library.register_vmap`.

    Every tensor that the operator takes or makes has the lives as its first axis, but two: the argument at index
    `start` may share one entry among all lives, and the one at `erase_heads` has an axis of heads alone.
    """

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        if in_dims[erase_heads] is not None:
            raise NotImplementedError("vmap over `erase` is not possible: the heads that erase are fixed for a call")
        query, query_dim = arguments[0], in_dims[0]
        lives = query.shape[0 if query_dim is None else int(query_dim == 0)]
        folded = list(arguments)
        for index, (argument, dim) in enumerate(zip(arguments, in_dims, strict=True)):
            if not isinstance(argument, Tensor) or index == erase_heads:
                continue
            if index == start and dim is None and argument.shape[0] == 1:
                continue
            mapped = argument.expand(info.batch_size, *argument.shape) if dim is None else argument.movedim(dim, 0)
            if index == start:
                mapped = mapped.expand(-1, lives, -1, -1, -1)
            folded[index] = mapped.flatten(0, 1)
        made = operator(*folded)
        return tuple(tensor.unflatten(0, (info.batch_size, lives)) for tensor in made), (0,) * len(made)

    return rule
