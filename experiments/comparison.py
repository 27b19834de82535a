"""What a comparison is: environments x cores x learning rates x seeds, from one file and the command line.

A file in ``configs/comparison/`` (``experiment=NAME``) holds the keys of ``ComparisonConfig``; the command line changes
them, and any other ``key=value`` is a key of the runs' own config and holds for all of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lifelong.experiments.config import RunConfig, config_folder, group_names, import_plugin, load_config, plugin_names
from lifelong.experiments.engine import Job
from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.experiments.evaluate_options import parse_options

ENGINES = ("local", "ray")
MATCHES = ("none", "state_bytes", "parameters")
# Keys of the runs that the comparison sets itself, and what is typed for them.
_OWN = {
    "algorithm.learning_rate": "learning_rates=X[,X...]",
    "algorithm.final_learning_rate": "learning_rates=X[,X...] (the final rate keeps its ratio to the first)",
    "seed": "seeds=N",
}
# Keys that only a file can hold, and what is typed for them.
_OF_FILES = {
    "environments": "env=NAME[,NAME...]",
    "cores": "memory=NAME[,NAME...]",
    "words": "the words themselves, for example algorithm.gamma=0.9",
}


@dataclass
class ComparisonConfig:
    """Every key of a comparison; ``configs/comparison/`` explains them in place."""

    environments: dict[str, list[str]] = field(default_factory=dict)
    cores: dict[str, list[str]] = field(default_factory=dict)
    words: list[str] = field(default_factory=list)
    learning_rates: list[float] = field(default_factory=lambda: [1e-3])
    tuning_seeds: int = 1
    seeds: int = 5
    match: str = "state_bytes"
    budget: int | None = None
    evaluate: list[str] = field(default_factory=list)
    engine: str = "local"
    jobs: int | None = None
    ray_address: str | None = None
    gpus: float = 0.0
    plan_only: bool = False
    out: str | None = None

    def check(self) -> None:
        """Raise UserError for a value that cannot work."""
        for name, value, allowed in (("engine", self.engine, ENGINES), ("match", self.match, MATCHES)):
            if value not in allowed:
                raise UserError(f"{name}={value}: allowed are {', '.join(allowed)}{did_you_mean(value, allowed)}")
        for name in ("seeds", "tuning_seeds", "jobs", "budget"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"{name}={value}: must be 1 or more")
        if self.tuning_seeds > self.seeds:
            raise UserError(f"tuning_seeds={self.tuning_seeds}: at most seeds={self.seeds}")
        if not self.learning_rates or any(not 0 < rate <= 1 for rate in self.learning_rates):
            raise UserError(f"learning_rates={self.learning_rates}: one or more numbers above 0 and at most 1")
        if len({f"{rate:g}" for rate in self.learning_rates}) < len(self.learning_rates):
            raise UserError(f"learning_rates={self.learning_rates}: each rate once")
        parse_options(self.evaluate)
        if not 0 <= self.gpus < math.inf:
            raise UserError(f"gpus={self.gpus}: must be 0 or more")
        if self.engine == "local" and self.ray_address is not None:
            raise UserError(f"ray_address={self.ray_address}: only with engine=ray")
        for name, chosen in (("env", self.environments), ("memory", self.cores)):
            if not chosen:
                raise UserError(f"a comparison needs {name}=NAME[,NAME...], or experiment=NAME from {_known()}")


@dataclass(frozen=True)
class Cell:
    """One core in one environment: the words of its runs, without learning rate and seed."""

    env: str
    memory: str
    words: tuple[str, ...]
    fall: float  # final over first learning rate, as the environment's own config has it

    def job(self, folder: Path, learning_rate: float, seed: int, threads: int, gpus: float) -> Job:
        """The run of a learning rate and a seed; the final learning rate keeps its ratio to the first."""
        run = folder / self.env / self.memory / f"lr{learning_rate:g}" / f"seed{seed}"
        final = learning_rate * self.fall
        rates = (f"algorithm.learning_rate={learning_rate:g}", f"algorithm.final_learning_rate={final:g}")
        return Job(run, (*self.words, *rates, f"seed={seed}"), threads, gpus)


def comparison_names() -> list[str]:
    """The files in ``configs/comparison/``."""
    return sorted(path.stem for path in (config_folder() / "comparison").glob("*.yaml"))


def load_comparison(words: Iterable[str]) -> ComparisonConfig:
    """From the words as typed.

    Raises:
        UserError: one line: what is wrong, what is allowed, the nearest match.
    """
    own: dict[str, Any] = {}
    chosen: dict[str, list[str]] = {}
    rest, name = [], None
    for word in words:
        key, separator, value = word.partition("=")
        if not separator or not value:
            raise UserError(f"{word!r} is not of the form key=value, for example memory=gated_delta,gru")
        if key in _OWN or key in _OF_FILES:
            raise UserError(f"{word}: not in a comparison; use {_OWN.get(key) or _OF_FILES[key]}")
        if key == "experiment":
            name = value
        elif key in ("env", "memory"):
            chosen[key] = [part for part in value.split(",") if part]
        elif key in ComparisonConfig.__dataclass_fields__:
            own[key] = value
        else:
            rest.append(word)
    base = _file(name) if name else DictConfig({})
    try:
        overrides = OmegaConf.from_dotlist([f"{key}={_as_list(key, value)}" for key, value in own.items()])
        config = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(ComparisonConfig), base, overrides))
    except OmegaConfBaseException as error:
        raise UserError(f"{getattr(error, 'full_key', None) or 'comparison'}: {str(error).splitlines()[0]}") from error
    assert isinstance(config, ComparisonConfig)
    if "env" in chosen:
        config.environments = {env: config.environments.get(env, [f"env={env}"]) for env in chosen["env"]}
    config.words += rest
    if "memory" in chosen:
        _import_plugins(config.words)  # they may register the cores
        known = [*config.cores, *(name for name in group_names("memory") if name not in config.cores)]
        config.cores = {_known_core(core, known): config.cores.get(core, []) for core in chosen["memory"]}
    config.check()
    return config


def cells_of(config: ComparisonConfig) -> list[Cell]:
    """Every core in every environment, checked before anything runs; not matched yet.

    Raises:
        UserError: a word that no run would understand.
    """
    _import_plugins(config.words)
    memories = {core: _memory_words(core, words) for core, words in config.cores.items()}
    first = next(iter(memories.values()))
    falls = {}
    for env, words in config.environments.items():
        algorithm = load_config([*words, *config.words, *first]).algorithm
        falls[env] = algorithm.final_learning_rate / algorithm.learning_rate
    return [
        Cell(env, core, (*env_words, *config.words, *memory), falls[env])
        for env, env_words in config.environments.items()
        for core, memory in memories.items()
    ]


def _memory_words(core: str, words: list[str]) -> list[str]:
    """The words that choose a core. With ``memory=NAME`` among its own, what it is called is a label."""
    if any(word.startswith("memory=") for word in words):
        if not re.fullmatch(r"\w[\w.+-]*", core):
            raise UserError(f"cores: {core!r} is to name a folder; allowed are letters, digits and _ . + -")
        return words
    return [f"memory={_known_core(core, group_names('memory'))}", *words]


def _known_core(core: str, known: list[str]) -> str:
    if core not in known:
        raise UserError(f"memory={core}: unknown; allowed: {', '.join(known)}{did_you_mean(core, known)}")
    return core


def _import_plugins(words: list[str]) -> None:
    for word in words:
        if word.startswith("plugins="):
            for module in plugin_names(word.partition("=")[2]):
                import_plugin(module)


def run_config(cell: Cell) -> RunConfig:
    """The config of a cell's runs, at the learning rate that its environment comes with."""
    return load_config(list(cell.words))


def _file(name: str) -> DictConfig:
    if name not in comparison_names():
        raise UserError(
            f"experiment={name}: no such comparison; known: {_known()}{did_you_mean(name, comparison_names())}"
        )
    loaded = OmegaConf.load(config_folder() / "comparison" / f"{name}.yaml")
    assert isinstance(loaded, DictConfig)
    return loaded


def _known() -> str:
    return ", ".join(comparison_names())


def _as_list(key: str, value: str) -> str:
    """``learning_rates=1e-3,2e-3`` and ``evaluate=life_steps=100000,lives=16`` without brackets."""
    return f"[{value}]" if key in ("learning_rates", "evaluate") and not value.startswith("[") else value
