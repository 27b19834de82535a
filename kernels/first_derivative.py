"""What hand-written gradients share: whether one may be asked for, and an error where one is differentiated again."""

from __future__ import annotations

from collections.abc import Callable
from inspect import Parameter, Signature
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


class FirstDerivative(torch.autograd.Function):
    """A base for the gradients that `backward` of another function returns; `forward` computes them.

    `once_differentiable` is no substitute: it hangs its error on detached tensors, which autograd prunes when the
    inputs of a second derivative are named (`torch.autograd.grad`, `torch.func.grad`): the answer is a silent zero.
    """

    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise NotImplementedError(
            'no second derivative is written out here; implementation="reference" has all of them'
        )


def may_be_differentiated() -> bool:
    """Whether a derivative may be asked for, by reverse or forward mode or by a transform of torch.func."""
    return (
        torch.is_grad_enabled()
        or forward_ad._current_level >= 0
        or torch._C._functorch.peek_interpreter_stack() is not None
    )


def refuse_compiled_forward_mode() -> None:
    """Raise where torch.compile would trace through a hand-written function and lose the tangents."""
    if torch.compiler.is_compiling() and forward_ad._current_level >= 0:
        raise NotImplementedError('no forward-mode derivative is written out here; implementation="reference" has it')


def takes(count: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a `forward(*arguments)` the signature of `count` positional parameters.

    Where no input asks for a gradient, torch.compile counts them to tell whether `forward` wants a context before them.
    """

    def signed(forward: Callable[..., Any]) -> Callable[..., Any]:
        names = (Parameter(f"argument_{index}", Parameter.POSITIONAL_ONLY) for index in range(count))
        forward.__signature__ = Signature(list(names))  # type: ignore[attr-defined]
        return forward

    return signed
