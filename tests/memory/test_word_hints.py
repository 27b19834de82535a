"""Words that another design space has, and options that change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from lifelong.memory import core_options, make_core
from lifelong.memory.word_hints import ELSEWHERE


@pytest.mark.parametrize(("option", "word"), ELSEWHERE, ids=str)
def test_every_hint_leads_to_a_core_that_has_the_word(option: str, word: str) -> None:
    for words in ELSEWHERE[option, word].split(", or "):
        name, *changes = words.split()
        core = name.removeprefix("memory=")
        options = dict(change.removeprefix("memory.").split("=") for change in changes)
        make_core(core, 8, **options)
        has = {key: parameter.default for key, parameter in core_options(core).items()} | options
        # Two words are not options of the cores that do it: mesa has no other optimiser, and muon's is Newton-Schulz.
        assert has.get(option) == {"second_order": None, "newton_schulz": "muon"}.get(word, word)


@pytest.mark.parametrize(
    ("name", "option", "word", "hint"),
    [
        ("gated_delta", "optimiser", "muon", "memory=atlas, or memory=ttt_linear memory.optimiser=muon"),
        ("gated_delta", "optimiser", "newton_schulz", "memory=atlas, or memory=ttt_linear memory.optimiser=muon"),
        ("gated_delta", "optimiser", "second_order", "memory=mesa"),
        ("ttt_mlp", "optimiser", "second_order", "memory=mesa"),
        ("ttt_mlp", "optimiser", "implicit", "memory=longhorn"),
        ("gated_delta", "model", "mlp", "memory=ttt_mlp, or memory=titans_mlp"),
        ("mesa", "model", "mlp", "memory=ttt_mlp, or memory=titans_mlp"),
        ("ttt_mlp", "objective", "huber", "memory=huber_delta"),
        ("mesa", "objective", "huber", "memory=huber_delta"),
        ("ttt_mlp", "objective", "power", "memory=gated_delta memory.objective=power"),
        ("ttt_mlp", "objective", "dot_product", "memory=linear_attention"),
        ("ttt_mlp", "retention", "per_channel", "memory=kda"),
        ("ttt_mlp", "retention", "constant", "memory=retention"),
        ("mesa", "retention", "pull", "memory=titans_mlp, or memory=gated_delta memory.retention=pull"),
        ("mesa", "retention", "per_channel", "memory=kda"),
        ("mesa", "optimiser", "momentum", "memory=momentum_delta, or memory=titans_mlp"),
        ("ttt_mlp", "write_gate", "exponential", "memory=mlstm"),
    ],
)
def test_a_word_of_another_design_space_is_refused_with_the_core_that_has_it(
    name: str, option: str, word: str, hint: str
) -> None:
    with pytest.raises(ValueError, match=f"{option}={word} is to be had with {hint}$"):
        make_core(name, 8, **{option: word})


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("mixed_heads", {"heads": ["rotary"], "turn": "learned"}, "turn=learned changes nothing .* a plain head"),
        ("mixed_heads", {"heads": ["counting"], "read_norm": "none"}, "read_norm=none changes nothing .* not count"),
        (
            "gated_delta",
            {"turn_ratio": 2.0},
            "turn_ratio=2.0 changes nothing here: it needs heads that turn .* at None",
        ),
        ("ttt_mlp", {"turn_ratio": 2.0}, "turn_ratio=2.0 changes nothing here"),
        ("gated_delta", {"momentum": 0.9}, "momentum=0.9 changes nothing here: it needs optimiser=momentum or muon"),
        ("ttt_mlp", {"momentum": 0.9}, "momentum=0.9 changes nothing here"),
        ("mlstm", {"write_rate_max": 2.0}, "write_rate_max=2.0 changes nothing here: it needs write_gate=sigmoid"),
        ("gated_delta", {"huber_threshold": 2.0}, "huber_threshold=2.0 changes nothing here: it needs objective=huber"),
        ("huber_delta", {"power": 2.0}, "power=2.0 changes nothing here: it needs objective=power"),
        ("delta", {"window": 5}, "window=5 changes nothing here: it needs objective=windowed_squared_error"),
        ("gated_delta", {"counting_horizon": 50.0}, "counting_horizon=50.0 changes nothing here"),
        ("gated_delta", {"map_order": 3}, "map_order=3 changes nothing here: it needs key_map=dpfp, polynomial"),
        ("ttt_linear", {"hidden": 4.0}, "hidden=4.0 changes nothing here: it needs model=mlp"),
        ("titans_mlp", {"newton_schulz": 5}, "newton_schulz=5 changes nothing here: it needs optimiser=muon"),
        ("lstm", {"forget_bias": 2.0, "chrono_max": 100.0}, "forget_bias=2.0 changes nothing beside chrono_max=100.0"),
    ],
)
def test_an_option_that_changes_nothing_is_refused_with_what_it_needs(
    name: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        make_core(name, 8, **options)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gated_delta", {"turn_ratio": 2.0, "heads": ["plain", "rotary"]}),
        ("gated_delta", {"momentum": 0.9, "optimiser": "momentum"}),
        ("atlas", {"momentum": 0.9, "newton_schulz": 2}),
        ("mesa", {"key_map": "dpfp", "map_order": 1}),
        ("gated_delta", {"query_map": "random_fourier", "key_map": "dpfp", "map_order": 3}),
        ("retention", {"turn": "none"}),  # its turn_ratio is no default of others, and nobody has set it
        ("delta", {"horizon_max": 100.0}),
    ],
)
def test_an_option_that_changes_something_is_taken(name: str, options: dict[str, Any]) -> None:
    make_core(name, 8, **options)


def test_a_map_that_makes_an_odd_width_is_named_where_keys_are_turned() -> None:
    words = "must be even, not 15, which key_map=polynomial makes of head_dim=4 with map_order=2"
    with pytest.raises(ValueError, match=words):
        make_core("gated_delta", 8, head_dim=4, key_map="polynomial", turn="with")
