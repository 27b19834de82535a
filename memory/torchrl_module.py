"""``MemoryModule``: any memory core as a TensorDict module, for other people's TorchRL code.

It keeps the conventions of ``torchrl.modules.LSTMModule``, and departs from them in one point: a missing state or
``is_init`` is an error. (LSTMModule goes on with zeros, and an environment without a primer then trains an agent
without memory.)
"""

from __future__ import annotations

from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase, dispatch
from tensordict.utils import unravel_key_list
from torch import Tensor
from torchrl.data import Unbounded
from torchrl.envs.transforms import TensorDictPrimer
from torchrl.modules.tensordict_module.rnn import recurrent_mode

from lifelong.memory.core import MemoryCore
from lifelong.memory.pieces import run_pieces

_IS_INIT = "is_init"


class MemoryModule(TensorDictModuleBase):
    """Run a memory core on a TensorDict, in steps while acting and over sequences while learning.

    *Step mode* (the default; what a collector calls): batch ``[*B]``. Where ``is_init``, the core drops its memory
    first.

    *Recurrent mode* (inside ``torchrl.modules.set_recurrent_mode(True)``, which TorchRL's losses enter by themselves
    and GAE does not; or ``default_recurrent_mode=True``): batch ``[*B, T]``, time last. The state stored at the first
    step, *and at every step where* ``is_init``, is loaded. As a collector stores the primer's zeros there, this
    equals a reset (zeros stand for the state of a new life, also where that is learned or is not zero). Outputs and
    gradients are those of the steps. Of the states written, those at the ends of trajectories hold; the others are
    zeros that keep the shape.

    GAE over a value network with memory wants ``deactivate_vmap=True``, as with TorchRL's own modules.

    Keys: ``in_keys = [x, *states, "is_init"]``, ``out_keys = [y, *(("next", *state) for state in states)]``. With
    ``in_key`` the states are found under ``("memory", ...)``, nested as the core nests them.

    Args:
        core: the memory core, or any module with its contract.
        in_key: key of x ``[..., D]``; or
        in_keys: the keys of x and of every leaf of ``core.initial_state(1)``, in the order of its ``keys(True, True)``.
        out_key: key of y ``[..., D]``; or
        out_keys: the keys of y and of every new state.
        default_recurrent_mode: the mode where no ``set_recurrent_mode`` is in force.

    Raises:
        ValueError: the keys do not fit the core.
        RuntimeError: when run without a state or ``is_init``; it says which transform the environment lacks.

    Example:
        >>> memory = MemoryModule(make_core("gated_delta", 64), in_key="embedding", out_key="features")
        >>> env = TransformedEnv(env, Compose(InitTracker(), memory.make_tensordict_primer()))
    """

    def __init__(
        self,
        core: MemoryCore,
        *,
        in_key: NestedKey | None = None,
        in_keys: list[NestedKey] | None = None,
        out_key: NestedKey | None = None,
        out_keys: list[NestedKey] | None = None,
        default_recurrent_mode: bool = False,
    ) -> None:
        super().__init__()
        if (in_key is None) == (in_keys is None) or (out_key is None) == (out_keys is None):
            raise ValueError("MemoryModule takes either in_key or in_keys, and either out_key or out_keys")
        self.core = core
        initial = core.initial_state(1)
        self._leaves = [_as_tuple(leaf) for leaf in initial.keys(True, True)]
        self._specs = [(initial.get(leaf).shape[1:], initial.get(leaf).dtype) for leaf in self._leaves]
        states = [("memory", *leaf) for leaf in self._leaves]
        read = unravel_key_list(list(in_keys) if in_keys is not None else [in_key, *states])
        if read[-1] == _IS_INIT:
            read.pop()
        write = unravel_key_list(list(out_keys) if out_keys is not None else [out_key, *map(_next, read[1:])])
        for name, keys in (("in_keys", read), ("out_keys", write)):
            if len(keys) != 1 + len(self._leaves):
                raise ValueError(
                    f"MemoryModule needs {1 + len(self._leaves)} {name} for this core, one for the value and one for "
                    f"each of {[_name(leaf) for leaf in self._leaves]}, not {keys}"
                )
        self.in_keys, self.out_keys = [*read, _IS_INIT], write
        self.state_keys: list[NestedKey] = read[1:]
        self._default_recurrent_mode = default_recurrent_mode

    @property
    def recurrent_mode(self) -> bool:
        """Whether a call takes [*B, T]: what ``set_recurrent_mode`` says, or else ``default_recurrent_mode``."""
        mode = recurrent_mode()
        return self._default_recurrent_mode if mode is None else bool(mode)

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that gives an environment the state: zeros at the start of a life, handed on by every step.

        Raises:
            RuntimeError: a new state's key is not ``("next", *state key)``, so that no environment would hand it on.
        """
        for state, new in zip(self.state_keys, self.out_keys[1:], strict=True):
            if _as_tuple(new) != _as_tuple(_next(state)):
                raise RuntimeError(
                    f"an environment hands on ('next', *key) as key, so the state {_name(state)} must be written to "
                    f"{_next(state)}, not to {new}"
                )
        primers = {
            key: Unbounded(shape=shape, dtype=dtype)
            for key, (shape, dtype) in zip(self.state_keys, self._specs, strict=True)
        }
        return TensorDictPrimer(primers, expand_specs=True)

    @dispatch
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Read ``in_keys``, write ``out_keys``, hand the TensorDict back."""
        batch = tensordict.batch_size
        if not self.recurrent_mode:
            inputs, state, is_init = self._read(tensordict, (batch.numel(),))
            outputs, new = self.core.step(inputs, state, is_init)
            self._write(tensordict, outputs, [new.get(leaf) for leaf in self._leaves])
            return tensordict
        if not batch:
            raise ValueError("in recurrent mode MemoryModule needs a TensorDict with a time axis, its last batch axis")
        inputs, stored, is_init = self._read(tensordict, (batch[:-1].numel(), batch[-1]))
        start = self.core.initial_state(1)
        if any(leaf.requires_grad or leaf.any() for leaf in start.values(True, True)):
            stored = _with_starts(stored, is_init, start)
        outputs, ends, last = run_pieces(self.core, inputs, stored, is_init)
        slots = []
        for leaf in (last.get(leaf) for leaf in self._leaves):
            slots.append(leaf.new_zeros(is_init.numel(), *leaf.shape[1:]).index_put_((ends,), leaf))
        self._write(tensordict, outputs, slots)
        return tensordict

    def _read(self, tensordict: TensorDictBase, batch: tuple[int, ...]) -> tuple[Tensor, TensorDict, Tensor]:
        """Inputs [*batch, D], state with batch [*batch], is_init [*batch]."""
        found = [tensordict.get(key, None) for key in self.in_keys]
        missing = [_name(key) for key, value in zip(self.in_keys, found, strict=True) if value is None]
        if missing:
            raise RuntimeError(_what_is_missing(missing, [_name(key) for key in self.state_keys]))
        width = tensordict.batch_dims
        inputs, *leaves, is_init = (value.reshape(*batch, *value.shape[width:]) for value in found)
        state = TensorDict({}, batch)
        for key, leaf in zip(self._leaves, leaves, strict=True):
            state.set(key, leaf)
        return inputs, state, is_init.reshape(batch)

    def _write(self, tensordict: TensorDictBase, outputs: Tensor, states: list[Tensor]) -> None:
        batch = tensordict.batch_size
        tensordict.set(self.out_keys[0], outputs.reshape(*batch, outputs.shape[-1]))
        for key, state, (shape, _) in zip(self.out_keys[1:], states, self._specs, strict=True):
            tensordict.set(key, state.reshape(*batch, *shape))


def _with_starts(stored: TensorDict, is_init: Tensor, start: TensorDict) -> TensorDict:
    """``stored`` [B, T] with ``start`` [1] where it ``is_init`` [B, T] and zero."""
    starts = is_init
    for leaf in stored.values(True, True):
        starts = starts & ~leaf.reshape(*starts.shape, -1).any(2)
    loaded = TensorDict({}, stored.batch_size)
    for key in stored.keys(True, True):
        leaf = stored.get(key)
        loaded.set(key, torch.where(starts.view(*starts.shape, *[1] * (leaf.dim() - 2)), start.get(key), leaf))
    return loaded


def _what_is_missing(missing: list[str], states: list[str]) -> str:
    """The sentence for the person whose environment lacks a transform."""
    advice = []
    if any(name in states for name in missing):
        advice.append(
            "without its state the memory would forget everything at every step: append "
            "memory.make_tensordict_primer() to the environment's transforms, or put core.initial_state there yourself"
        )
    if _IS_INIT in missing:
        advice.append("without is_init it would never forget at the start of a life: append torchrl.envs.InitTracker()")
    return f"MemoryModule found no {', '.join(missing)} in its TensorDict" + "".join(f"; {each}" for each in advice)


def _as_tuple(key: Any) -> tuple[str, ...]:
    return key if isinstance(key, tuple) else (key,)


def _next(key: Any) -> tuple[str, ...]:
    return ("next", *_as_tuple(key))


def _name(key: Any) -> str:
    return ".".join(_as_tuple(key))
