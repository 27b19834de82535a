"""Configs: composed by Hydra from ``configs/``, checked key by key, typed.

Mistakes are found before Hydra sees them, so that the answer is one line with the nearest match.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import gymnasium
import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lifelong.agents import AlgorithmConfig
from lifelong.envs import env_names
from lifelong.experiments.errors import UserError, did_you_mean
from lifelong.memory import core_names, core_options
from lifelong.memory.registry import reason_to_lack, wanted_instead
from lifelong.memory.word_hints import elsewhere

GROUPS = ("env", "memory", "algorithm", "experiment")
_DEFAULT_EXPERIMENT = "switching_bandit"


@dataclass
class AgentConfig:
    """The network around the core; ``train.yaml`` explains each key, here and below."""

    width: int = 64
    encoder_layers: int = 1
    encoder_grid: str = "planes"
    head_width: int = 64
    layer_norm: bool = False


@dataclass
class CheckpointConfig:
    every_frames: int = 100_000
    keep: int = 2


@dataclass
class LogConfig:
    every_updates: int = 1


@dataclass
class RunConfig:
    """A run. ``env`` and ``memory`` hold ``name`` and that environment's or core's own options."""

    env: dict[str, Any]
    memory: dict[str, Any]
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    agent: AgentConfig = field(default_factory=AgentConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    seed: int = 0
    frames: int = 1_000_000
    device: str = "cpu"
    threads: int = 1
    out: str | None = None
    plugins: list[str] = field(default_factory=list)


def config_folder() -> Path:
    """Where the YAML files lie, in a checkout and in an installed wheel."""
    return Path(str(files("lifelong.experiments"))) / "configs"


def group_names(group: str) -> list[str]:
    """What may stand after ``group=``: the files, and for cores and environments what plugins registered."""
    names = {path.stem for path in (config_folder() / group).glob("*.yaml")}
    if group == "memory":
        names |= set(core_names())
    if group == "env":
        names |= set(env_names())
    return sorted(names)


def load_config(overrides: list[str]) -> RunConfig:
    """Compose and check the config for ``key=value`` words as typed.

    Raises:
        UserError: one line: the key or value that is wrong, what is allowed, the nearest match.
    """
    pairs = [_split(word) for word in overrides]
    _import_plugins(pairs)
    pairs = _name_environment(pairs)
    given = {key for key, _ in pairs}
    if not given & {"experiment", "env"}:
        pairs.insert(0, ("experiment", _DEFAULT_EXPERIMENT))
    chosen = [(key, value) for key, value in pairs if key in GROUPS]
    for key, value in chosen:
        if value not in group_names(key):
            allowed = ", ".join(group_names(key))
            raise UserError(f"{key}={value}: unknown; allowed: {allowed}{did_you_mean(value, group_names(key))}")
    plain = _compose([f"{key}={value}" for key, value in chosen])
    keys = _dotted(plain)
    for key, value in pairs:
        if key in GROUPS or _is_free_form(key):
            continue
        if key in keys and isinstance(OmegaConf.select(plain, key), DictConfig):
            raise UserError(f"{key}={value}: a section; set one of its keys: {_siblings(key + '.', keys)}")
        if key not in keys:
            option = key.rsplit(".", 1)[-1]
            reason = reason_to_lack(plain.memory.name, option) if key.startswith("memory.") else None
            if reason is not None:
                raise UserError(f"{key}: memory={plain.memory.name} has no such option: {reason}")
            near = elsewhere(option, value) if key.startswith("memory.") else ""
            near = near or did_you_mean(key, keys) or did_you_mean(option, {k.rsplit(".", 1)[-1] for k in keys})
            raise UserError(f"{key}: no such key here; allowed: {_siblings(key, keys)}{near}")
    composed = _compose([_as_hydra(key, value, plain) for key, value in pairs])
    _check_option_types(plain, composed)
    return typed(composed)


def typed(config: DictConfig) -> RunConfig:
    """Check a composed config, or one read from a file, against ``RunConfig``.

    Raises:
        UserError: a key or value that does not fit.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(RunConfig(env={}, memory={})), config)
        result = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        key = getattr(error, "full_key", None) or "config"
        raise UserError(f"{key}: {str(error).splitlines()[0]}") from error
    assert isinstance(result, RunConfig)
    _check_values(result)
    return result


def to_yaml(config: RunConfig) -> str:
    """The whole config as YAML, as ``config.yaml`` holds it."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str) -> RunConfig:
    """Read what ``to_yaml`` wrote. Its plugins are not imported: that executes code, and is the caller's to decide.

    Raises:
        UserError: it is not a config.
    """
    try:
        config = OmegaConf.create(text)
    except (yaml.YAMLError, OmegaConfBaseException, ValueError) as error:
        raise UserError(f"the config of the run cannot be read: {str(error).splitlines()[0]}") from error
    if not isinstance(config, DictConfig):
        raise UserError("the config of the run cannot be read: it is not a mapping")
    return typed(config)


def differing_keys(left: RunConfig, right: RunConfig) -> list[str]:
    """The dotted names of what is not the same in both."""
    trees = [OmegaConf.structured(each) for each in (left, right)]
    values = {key: [OmegaConf.select(tree, key) for tree in trees] for tree in trees for key in _dotted(tree)}
    return sorted(key for key, (a, b) in values.items() if a != b and not isinstance(a, DictConfig))


def _split(word: str) -> tuple[str, str]:
    key, separator, value = word.partition("=")
    if not separator or not key:
        raise UserError(f"{word!r} is not of the form key=value, for example memory=gru or seed=1")
    return key.strip(), value.strip()


def _import_plugins(pairs: list[tuple[str, str]]) -> None:
    for key, value in pairs:
        if key == "plugins":
            if not (value.startswith("[") and value.endswith("]")):
                raise UserError(f"plugins={value}: must be a list of modules, for example plugins=[my_core]")
            for module in plugin_names(value):
                import_plugin(module)


def plugin_names(value: str) -> list[str]:
    """The modules in ``[a, b]``."""
    names = [module.strip().strip("\"'") for module in value.strip("[]").split(",")]
    return [name for name in names if name]


def import_plugin(module: str) -> None:
    """Import a module that registers cores or environments; the current folder is looked in first, as by ``python -m``.

    Raises:
        UserError: it cannot be imported, or raises.
    """
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(module)
    except Exception as error:  # the module is the user's, and may raise anything
        raise UserError(f"plugins: cannot import {module!r}: {type(error).__name__}: {error}") from error


def _name_environment(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """``env=CartPole-v1`` means the adapter with that id."""
    result = []
    for key, value in pairs:
        if key == "env":
            value = value.strip("\"'")
        if key == "env" and value not in group_names("env"):
            if value not in _gymnasium_ids():
                near = did_you_mean(value, [*group_names("env"), *_gymnasium_ids()])
                allowed = ", ".join(group_names("env"))
                raise UserError(f"env={value}: unknown; allowed: {allowed}, or any Gymnasium or MiniGrid id{near}")
            adapter = "minigrid" if value.startswith(("MiniGrid-", "BabyAI-")) else "gymnasium"
            result += [("env", adapter), ("env.id", value)]
        else:
            result.append((key, value))
    return result


def _gymnasium_ids() -> list[str]:
    import minigrid  # noqa: F401 - registers its ids; not needed where none is asked for

    return list(gymnasium.registry)


def _compose(overrides: list[str]) -> DictConfig:
    _store_registered()
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(config_folder()), version_base="1.3"):
            config = compose("train", overrides=overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(_innermost(error)) from error
    OmegaConf.set_struct(config, False)
    config.pop("experiment", None)
    return config


def _store_registered() -> None:
    """Cores and environments that have no file get one made of their options' defaults."""
    store = ConfigStore.instance()
    for name in core_names():
        if not (config_folder() / "memory" / f"{name}.yaml").exists():
            defaults = {key: option.default for key, option in core_options(name).items()}
            store.store(group="memory", name=name, node={"name": name, **_plain(defaults)})
    for name in env_names():
        if not (config_folder() / "env" / f"{name}.yaml").exists():
            store.store(group="env", name=name, node={"name": name, "num_lives": 32})


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value is inspect.Parameter.empty else value for key, value in values.items()}


def _is_free_form(key: str) -> bool:
    """What lies in ``kwargs`` is whatever somebody else's constructor takes."""
    return "kwargs" in key.split(".")


def _as_hydra(key: str, value: str, plain: DictConfig) -> str:
    """The override as Hydra's grammar wants it: whole floats as whole numbers, words in quotes, new keys forced."""
    if key in GROUPS:
        return f"{key}={value}"
    default = OmegaConf.select(plain, key)
    if type(default) is int and not value.lstrip("-").isdigit():
        with suppress(ValueError, OverflowError):
            if float(value) == int(float(value)):
                value = str(int(float(value)))
    quoted = value[:1] in ("'", '"') or value == "null"
    if (isinstance(default, str) or key == "out") and value and not quoted:
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        value = f"'{escaped}'"
    override = f"{'++' if _is_free_form(key) else ''}{key}={value}"
    try:
        OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise UserError(f"{key}={value}: cannot be read as a value; put it in quotes: {key}=\"'...'\"") from error
    return override


def _innermost(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error).strip().splitlines()[0]


def _dotted(config: DictConfig, prefix: str = "") -> set[str]:
    keys = set()
    for key, value in config.items_ex(resolve=False):
        name = prefix + str(key)
        keys.add(name)
        if isinstance(value, DictConfig):
            keys |= _dotted(value, f"{name}.")
    return keys


def _siblings(key: str, keys: set[str]) -> str:
    """The keys that stand beside ``key``."""
    parent = key.rpartition(".")[0]
    if parent not in keys:
        parent = ""
    prefix = f"{parent}." if parent else ""
    return ", ".join(sorted(k for k in keys if k.startswith(prefix) and "." not in k[len(prefix) :] and k != parent))


_TYPE_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "a word"}


def _check_option_types(plain: DictConfig, composed: DictConfig) -> None:
    """Options of cores must be what their constructors say; those of environments, of the type that their default has.

    A default is not enough for a core: its heads may be a number or a list.
    """
    for key, default in plain.env.items():
        value = composed.env[key]
        if isinstance(default, DictConfig) and not isinstance(value, DictConfig):
            raise UserError(f"env.{key}={value}: must be a mapping, for example env.{key}.option=value")
        kinds = {bool: (bool,), int: (int,), float: (int, float), str: (str,)}.get(type(default))
        if kinds and (not isinstance(value, kinds) or (isinstance(value, bool) and type(default) is not bool)):
            raise UserError(f"env.{key}={value}: must be {_TYPE_NAMES[type(default)]}")
    memory: Any = OmegaConf.to_container(composed.memory)
    name = str(memory.pop("name"))
    if name not in core_names():
        raise UserError(f"memory.name={name}: unknown; allowed: {', '.join(core_names())}")
    for option, value in memory.items():
        wanted = wanted_instead(name, option, value)
        if wanted is not None:
            raise UserError(f"memory.{option}={value}: must be {wanted}")


def _check_values(config: RunConfig) -> None:
    positive = {"frames": config.frames, "threads": config.threads, "agent.width": config.agent.width}
    positive |= {"checkpoint.every_frames": config.checkpoint.every_frames, "checkpoint.keep": config.checkpoint.keep}
    positive |= {"log.every_updates": config.log.every_updates}
    for key, value in positive.items():
        if value < 1:
            raise UserError(f"{key}={value}: must be 1 or more")
    if config.agent.head_width < 0 or config.agent.encoder_layers < 0:
        raise UserError("agent.head_width and agent.encoder_layers must be 0 or more")
