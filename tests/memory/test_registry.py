"""Cores by name, their options, and the config files that list them."""

from __future__ import annotations

import math
from importlib.resources import files
from typing import get_type_hints

import pytest
import torch
import yaml

from lifelong.memory import MemoryCore, core_names, core_options, make_core, register_core


def config(name: str) -> dict[str, object]:
    text = files("lifelong.experiments").joinpath("configs", "memory", f"{name}.yaml").read_text()
    loaded: dict[str, object] = yaml.safe_load(text)
    return loaded


@pytest.mark.parametrize("name", core_names())
def test_the_config_file_lists_every_option_with_its_default(name: str) -> None:
    defaults = {option: parameter.default for option, parameter in core_options(name).items()}
    assert config(name) == {"name": name, **defaults}


@pytest.mark.parametrize("name", core_names())
def test_a_core_is_built_from_its_config_file(name: str) -> None:
    options = config(name)
    core = make_core(str(options.pop("name")), 8, **options)
    assert isinstance(core, MemoryCore)
    assert core.dim == 8


@pytest.mark.parametrize("name", core_names())
def test_every_key_of_the_config_file_has_a_comment(name: str) -> None:
    text = files("lifelong.experiments").joinpath("configs", "memory", f"{name}.yaml").read_text()
    head, *keys = text.splitlines()
    assert head.startswith("# ")
    assert all("  # " in line for line in keys if not line.startswith("name:"))


def test_an_unknown_core_is_named_with_its_nearest_match() -> None:
    with pytest.raises(
        ValueError, match=r"unknown memory core 'gated_detla'; known: .*lstm.*; did you mean 'gated_delta'\?"
    ):
        make_core("gated_detla", 8)


def test_an_unknown_option_is_named_with_its_nearest_match() -> None:
    with pytest.raises(ValueError, match=r"'gru' has no option 'hiden'; allowed: hidden, .*; did you mean 'hidden'\?"):
        make_core("gru", 8, hiden=4)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("gated_delta", {"heads": 0}, "heads must be 1 or more, not 0"),
        ("gated_delta", {"convolution_taps": 1}, r"convolution_taps must be 0 \(no convolution\) or 2 or more, not 1"),
        ("gated_delta", {"write_rate": 1.0}, "write_rate must lie between 0 and 1, not 1.0"),
        ("gated_delta", {"horizon_min": 1e6}, "horizon_min <= horizon_max, not 1000000.0 and 100000.0"),
        ("linear_attention", {"feed_forward": -1.0}, "feed_forward must be 0 "),
        ("gated_delta", {"feed_forward": 0.01}, "leaves no hidden unit at dim=8"),
        ("lstm", {"hidden": 0}, "hidden >= 1 and layers >= 1, not hidden=0, layers=1"),
        ("none", {"layers": 0}, "layers >= 1"),
        (
            "gated_delta",
            {"heads": "four"},
            "option heads of memory core 'gated_delta' must be a whole number or a list of words, not 'four'",
        ),
        ("gated_delta", {"layers": 2.5}, "must be a whole number, not 2.5"),
        ("gated_delta", {"layers": True}, "must be a whole number, not True"),
        ("gated_delta", {"heads": [1, 2]}, "must be a whole number or a list of words, not"),
        ("gated_delta", {"write_rate": None}, "must be a number, not None"),
        ("lstm", {"hidden": "wide"}, "must be a whole number or null, not 'wide'"),
        ("gated_delta", {"implementation": "chunkd"}, "did you mean 'chunked'"),
        ("ttt_mlp", {"hidden": 0.01}, "hidden=0.01 leaves no hidden unit at head_dim=16; hidden .* head_dim must be 1"),
        ("ffm", {"horizon_max": math.inf}, "option horizon_max .* must be a finite number, .* not inf"),
        ("lstm", {"chrono_max": 1e300}, "option chrono_max .* must be a finite number, 3.4e\\+38 at most in size"),
        ("gated_delta", {"feed_forward": math.nan}, "option feed_forward .* must be a finite number, .* not nan"),
        ("softmax", {"convolution_taps": -1}, r"convolution_taps must be 0 \(no convolution\) or 2 or more, not -1"),
        ("mesa", {"regulariser": math.inf}, "option regulariser .* must be a finite number"),
        ("gated_delta", {"heads": ["plane"]}, "each of heads must be one of plain, .*; did you mean 'plain'"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_in_plain_words(
    name: str, options: dict[str, object], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_core(name, 8, **options)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", core_names())
def test_no_option_of_any_core_may_be_nan_or_infinite(name: str, value: float) -> None:
    types = get_type_hints(type(make_core(name, 8)).__init__)
    for option in core_options(name):
        if "float" in str(types[option]):
            with pytest.raises(ValueError, match=f"^option {option} of memory core {name!r} must be a finite number"):
                make_core(name, 8, **{option: value})


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", core_names())
def test_a_number_of_0_or_less_is_refused_by_name_or_means_something(name: str, value: int) -> None:
    types = get_type_hints(type(make_core(name, 8)).__init__)
    for option in core_options(name):
        if not any(kind in str(types[option]) for kind in ("int", "float")):
            continue
        try:
            core = make_core(name, 8, **{option: value})
        except ValueError as error:
            assert option in str(error)  # noqa: PT017 - not every one is refused
        else:
            outputs, _ = core(torch.randn(2, 3, 8), core.initial_state(2))
            assert torch.isfinite(outputs).all(), option


def test_a_regulariser_may_be_as_large_as_one_likes() -> None:
    core = make_core("mesa", 8, regulariser=1e5)
    outputs, _ = core(torch.randn(2, 3, 8), core.initial_state(2))
    assert torch.isfinite(outputs).all()


def test_a_core_cannot_be_registered_twice() -> None:
    with pytest.raises(ValueError, match="registered already"):
        register_core("gru")(type(make_core("gru", 4)))
