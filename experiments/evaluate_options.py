"""What may follow ``lifelong evaluate RUN``; which code of somebody else's run may be imported, and where results go.

Nothing here loads torch.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from lifelong.experiments.errors import UserError, did_you_mean, whole_number

if TYPE_CHECKING:
    from lifelong.experiments.config import RunConfig

# Held-out lives: seeds that no training run of up to this many seeds draws.
HELD_OUT = 1_000_003
_LONGEST_STRETCH = 100_000  # steps between two looks at the life
_CHOICES = {
    "greedy": ("true", "false"),
    "fast_weights": ("live", "frozen"),
    "slow_weights": ("frozen", "learning"),
    "dtype": ("float64", "float32", "float16", "bfloat16"),
}


@dataclasses.dataclass
class EvaluateOptions:
    """What may follow RUN."""

    life_steps: int = 10_000  # steps of each life
    lives: int = 64  # in one batch
    spans: int = 10  # parts of the life that are reported, besides its half and its powers of ten
    seed: int = 0  # of the held-out lives and the actions
    greedy: bool = False  # the most likely action in place of a drawn one
    fast_weights: str = "live"  # frozen: from step freeze_at on, the memory is read but not written
    freeze_at: int = (
        1_000  # steps since the evaluation began, for all lives; one that begins later stays without memory
    )
    slow_weights: str = "frozen"  # learning: training goes on along the life
    reset_memory_every: int | None = None  # drop the memory every so many steps; the world goes on
    dtype: str = "float32"  # of the memory between steps; float64: of everything

    @property
    def stem(self) -> str:
        """What the files of the life are called."""
        return "_".join([f"evaluation_{self.life_steps}_steps_seed{self.seed}", *self.words()])

    def words(self) -> list[str]:
        """Those that differ from the defaults, seed and length apart: what the file is named by."""
        plain = EvaluateOptions()
        names = [field.name for field in dataclasses.fields(self) if field.name not in ("life_steps", "seed")]
        changed = [name for name in names if getattr(self, name) != getattr(plain, name)]
        return [f"{name}={getattr(self, name)}" for name in changed]

    def stops(self) -> list[int]:
        """Life steps at which the life is looked at: equal parts, its half, powers of ten from 1,000 on, none too far
        apart.
        """
        last = self.life_steps
        equal = {last * index // self.spans for index in range(1, self.spans + 1)}
        powers = {10**power for power in range(3, 19) if 10**power < last}
        return sorted((equal | powers | {last // 2} | set(range(_LONGEST_STRETCH, last, _LONGEST_STRETCH))) - {0})


def parse_options(words: list[str]) -> EvaluateOptions:
    """``key=value`` words to options.

    Raises:
        UserError: an unknown key, a value of the wrong kind, or options that do not go together.
    """
    options = EvaluateOptions()
    names = [field.name for field in dataclasses.fields(EvaluateOptions)]
    for word in words:
        key, _, value = word.partition("=")
        if key not in names:
            raise UserError(f"{word}: unknown; allowed: {', '.join(names)}{did_you_mean(key, names)}")
        if key in _CHOICES:
            if value.lower() not in _CHOICES[key]:
                near = did_you_mean(value, _CHOICES[key])
                raise UserError(f"{word}: allowed are {', '.join(_CHOICES[key])}{near}")
            setattr(options, key, value.lower() == "true" if key == "greedy" else value.lower())
        else:
            setattr(options, key, whole_number(word, lowest=0 if key in ("seed", "freeze_at") else 1))
    _refuse_what_does_not_go_together(options)
    return options


def _refuse_what_does_not_go_together(options: EvaluateOptions) -> None:
    if options.spans > options.life_steps:
        raise UserError(f"spans={options.spans}: must not exceed life_steps={options.life_steps}")
    if options.slow_weights == "learning" and options != dataclasses.replace(
        options, fast_weights="live", reset_memory_every=None, dtype="float32", greedy=False
    ):
        raise UserError("slow_weights=learning: goes with fast_weights=live, dtype=float32, greedy=false and no resets")
    if options.fast_weights == "frozen" and options.reset_memory_every is not None:
        raise UserError(
            f"reset_memory_every={options.reset_memory_every}: goes with fast_weights=live; "
            "a frozen memory would be empty from its first reset on"
        )


def import_what_is_allowed(config: RunConfig, allowed: list[str]) -> None:
    """A run may be somebody else's: modules that it names are imported only where the user names them too.

    Raises:
        UserError: it needs others.
    """
    from lifelong.experiments.config import import_plugin

    module, separator, _ = str(config.env.get("id", "")).partition(":")  # Gymnasium imports what stands before a colon
    needed = [*config.plugins, *([module] if separator else [])]
    missing = [name for name in needed if name not in allowed]
    if missing:
        names = ",".join(needed)
        raise UserError(
            f"this run needs the modules {names}, whose code would run; if you trust it, add plugins=[{names}]"
        )
    for name in config.plugins:
        import_plugin(name)


def folder_beside(checkpoint: Path) -> Path:
    """Where a checkpoint's results go: its run's folder; the folder it lies in when it stands alone. Never into the
    checkpoint, which is refused when a file in it is not its own.
    """
    parent = checkpoint.resolve().parent
    return parent.parent if parent.name == "checkpoints" else parent
