"""What the agent may not see, each entry computed only if somebody looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from torch import Tensor


class Privileged(Mapping[str, Tensor]):
    """Entries by name; one that is given as a function is called at the first look, and once.

    An oracle's action may cost more than the step itself, and a training run never asks for it.

    Args:
        entries: tensors [B, ...], which are copied, or functions without arguments that return new ones. A function may
            hold on to the world that it describes: a world is never changed in place.
    """

    def __init__(self, entries: Mapping[str, Tensor | Callable[[], Tensor]]) -> None:
        self._entries = {name: entry.clone() if isinstance(entry, Tensor) else entry for name, entry in entries.items()}

    def __getitem__(self, name: str) -> Tensor:
        entry = self._entries[name]
        if not isinstance(entry, Tensor):
            entry = self._entries[name] = entry()
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
