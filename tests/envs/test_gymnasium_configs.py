"""The configs of the Gymnasium and MiniGrid environments name every option, with its default."""

import inspect
from pathlib import Path

import pytest
import yaml

from lifelong import experiments
from lifelong.envs import make_env
from lifelong.envs.batched_suite import BATCHED_ENVS
from lifelong.envs.registry import env_factory

CONFIGS = Path(str(experiments.__file__)).parent / "configs" / "env"
NAMES = ["gymnasium", "minigrid", "minigrid_memory_s7", "minigrid_memory_s9", "minigrid_memory_s13", "switch_world"]
SIZES = sorted(path.stem for path in CONFIGS.glob("*.yaml") if path.stem != yaml.safe_load(path.read_text())["name"])
BATCHED = [kind.name for kind in BATCHED_ENVS]


@pytest.mark.parametrize("name", [*NAMES, "popgym"])
def test_a_config_names_every_option_with_its_default_and_a_comment(name: str) -> None:
    text = (CONFIGS / f"{name}.yaml").read_text()
    config = yaml.safe_load(text)
    parameters = inspect.signature(env_factory(name)).parameters
    assert config.pop("name") == name
    assert config.pop("num_lives") > 0
    assert set(config) == set(parameters) - {"num_lives", "seed"}
    for option, value in config.items():
        default = parameters[option].default
        if option == "kwargs":
            assert (value, default) == ({}, None)
        else:
            assert value == (list(default) if isinstance(default, tuple) else default), option
    assert all(" #" in line for line in text.splitlines() if line and not line.startswith(("#", "name:")))


@pytest.mark.parametrize("name", SIZES)
def test_another_size_has_the_same_options_and_other_values(name: str) -> None:
    other = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    base = yaml.safe_load((CONFIGS / f"{other['name']}.yaml").read_text())
    assert list(other) == list(base)
    assert other != base


@pytest.mark.parametrize("name", [*BATCHED, "endless_tmaze", "switch_world"])
def test_there_are_a_small_a_usual_and_a_full_size(name: str) -> None:
    sizes = [(CONFIGS / f"{name}{suffix}.yaml").read_text() for suffix in ("_ci", "", "_full")]
    assert len({text.splitlines()[0] for text in sizes}) == 3  # each says what it is


@pytest.mark.parametrize("name", [*NAMES, *SIZES])
def test_a_config_makes_its_environment(name: str) -> None:
    config = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    env = make_env({**config, "num_lives": 2, "seed": 0})
    assert set(env.reset()) == set(env.observation_spec.keys())
