"""The chunked network memory against the definition, and the definition against the linear memory that it contains."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lifelong.kernels import (
    MLPMemoryOutput,
    MLPMemoryState,
    MomentumState,
    fast_weight_attention,
    mlp_memory,
    replay_window,
)

from .inputs import assert_close, make_inputs

RULES: dict[str, dict[str, Any]] = {
    "linear": {},
    "linear, no decay, no reset": {"decay": None, "reset_rate": 0.0},
    "linear, momentum": {"momentum": True},
    "ttt-linear": {"norm": True, "decay": None},
    "two layers": {"hidden": 7},
    "titans": {"hidden": 7, "momentum": True},
    "titans, no reset": {"hidden": 7, "momentum": True, "reset_rate": 0.0},
    "ttt-mlp": {"hidden": 7, "norm": True, "bias": True},
    "biases": {"hidden": 7, "bias": True, "momentum": True},
    "muon": {"hidden": 7, "newton_schulz": 3},
    "muon, momentum, no decay": {"hidden": 7, "newton_schulz": 3, "momentum": True, "decay": None},
    "muon, rates": {"newton_schulz": 2, "update_rate": True, "pairs": 2},
    "pull": {"hidden": 7, "pull": True, "momentum": True},
    "muon, pull": {"newton_schulz": 2, "pull": True, "momentum": True},
    "three pairs a token": {"hidden": 7, "momentum": True, "pairs": 3},
    "online": {"hidden": 7, "momentum": True, "chunk": 1, "pull": True},
    "online muon": {"norm": True, "newton_schulz": 2, "update_rate": True, "momentum": True, "pairs": 2, "chunk": 1},
}
OVER_TIME = ("query", "key", "value", "write_rate", "log_decay", "momentum", "update_rate", "reset")


def arguments(length: int = 21, seed: int = 0, **rule: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed + 1)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    hidden, norm, pairs = rule.pop("hidden", None), rule.pop("norm", False), rule.pop("pairs", None)
    bias, update_rate = int(rule.pop("bias", False)), rule.pop("update_rate", False)
    options = {name: rule.pop(name) for name in ("newton_schulz", "chunk", "pull") if name in rule}
    width = 5 if norm else 6
    inputs = make_inputs(2, length, 2, width, 5, seed=seed, **rule)
    key, value, rate = inputs.key, inputs.value, inputs.write_rate
    if pairs is not None:
        key, value = normal(2, length, pairs, 2, width) / 3, normal(2, length, pairs, 2, 5)
        rate = normal(2, length, pairs, 2).sigmoid()
    layers = [normal(2, 5, width + bias) / 2]
    if hidden is not None:
        layers = [normal(2, hidden, width + bias) / 2, normal(2, 5, hidden + bias) / 2]
    return {
        "query": inputs.query,
        "key": key,
        "value": value,
        "write_rate": 0.3 * rate,
        "initial_weights": tuple(layers),
        "log_decay": inputs.log_decay,
        "momentum": inputs.momentum,
        "reset": inputs.reset,
        "norm": (1 + normal(2, 5) / 4, normal(2, 5)) if norm else None,
        "chunk": 8,
        "update_rate": normal(2, length, 2).sigmoid() if update_rate else None,
    } | options


def learned(call: dict[str, Any]) -> dict[str, Any]:
    def fresh(value: Any) -> Any:
        if isinstance(value, tuple):
            parts = [fresh(part) for part in value]
            return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
        return (
            value.detach().clone().requires_grad_()
            if isinstance(value, Tensor) and value.is_floating_point()
            else value
        )

    return {name: fresh(value) for name, value in call.items()}


def tensors(tree: Any, name: str = "") -> dict[str, Tensor]:
    """The floating tensors of nested tuples and dicts, by path."""
    if isinstance(tree, Tensor):
        return {name: tree} if tree.is_floating_point() else {}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, tuple) else ()
    return {path: tensor for key, part in items for path, tensor in tensors(part, f"{name}/{key}").items()}


def cut(call: dict[str, Any], start: int, stop: int, state: MLPMemoryState | None) -> dict[str, Any]:
    sliced = {name: call[name][:, start:stop] for name in OVER_TIME if call[name] is not None}
    return call | sliced | {"initial_state": state}


def gradients(call: dict[str, Any], run: Any) -> dict[str, Tensor]:
    call = learned(call)
    loss = sum((tensor.sin() * (i + 1)).sum() for i, tensor in enumerate(tensors(tuple(run(call))).values()))
    named = tensors(call)
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {n: torch.zeros_like(named[n]) if g is None else g for n, g in zip(named, found, strict=True)}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("length", [1, 21])
def test_chunked_is_the_reference_in_values_and_gradients(rule: str, length: int) -> None:
    call = arguments(length, **RULES[rule])

    def run(implementation: str) -> Any:
        return lambda call: mlp_memory(**call, implementation=implementation)

    assert_close(tensors(tuple(run("chunked")(call))), tensors(tuple(run("reference")(call))), 1e-11)
    assert_close(gradients(call, run("chunked")), gradients(call, run("reference")), 1e-9)


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("rule", RULES)
def test_cut_anywhere_with_the_state_carried_over(rule: str, implementation: str) -> None:
    call = arguments(18, **RULES[rule])
    whole = mlp_memory(**call, implementation=implementation)
    for at in range(1, 18, 1 if implementation == "chunked" else 5):
        first = mlp_memory(**cut(call, 0, at, None), implementation=implementation)
        second = mlp_memory(**cut(call, at, 18, first.state), implementation=implementation)
        joined = MLPMemoryOutput(
            torch.cat([first.output, second.output], 1), second.state, torch.cat([first.surprise, second.surprise], 1)
        )
        assert_close(tensors(tuple(joined)), tensors(tuple(whole)), 1e-11)
        assert torch.equal(second.state.phase, whole.state.phase)


@pytest.mark.parametrize("momentum", [False, True])
def test_one_layer_and_chunks_of_one_step_are_the_delta_rule(momentum: bool) -> None:
    call = arguments(chunk=1, momentum=momentum)
    (start,) = call["initial_weights"]
    result = mlp_memory(**call, implementation="reference")
    weights = start.expand(2, -1, -1, -1).contiguous()
    linear = fast_weight_attention(
        call["query"], call["key"], call["value"], call["write_rate"], call["log_decay"], call["momentum"],
        reset=call["reset"], reset_state=start, error_before_decay=True, implementation="reference",
        initial_state=MomentumState(weights, torch.zeros_like(weights)) if momentum else weights,
    )  # fmt: skip
    for name in ("output", "surprise"):
        assert_close({name: getattr(result, name)}, {name: getattr(linear, name)}, 1e-12)


@pytest.mark.parametrize("rule", [rule for rule in RULES if "no reset" not in rule])
@pytest.mark.parametrize("at", [0, 7, 8, 11])
def test_no_gradient_crosses_a_reset(rule: str, at: int) -> None:
    call = arguments(**RULES[rule])
    reset = torch.zeros(2, 21, dtype=torch.bool)
    reset[:, at] = True
    call = learned(call | {"reset": reset})
    result = mlp_memory(**call)
    loss = result.output[:, at:].sum() + result.surprise[:, at:].sum()
    named = {
        name: call[name]
        for name in ("query", "key", "value", "write_rate", "log_decay", "momentum")
        if call[name] is not None
    }
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    for name, gradient in zip(named, found, strict=True):
        if gradient is not None:
            assert not gradient[:, :at].any(), name


def test_orthogonalised_momentum_moves_the_weights_by_singular_values_near_one() -> None:
    call = arguments(8, decay=None, reset_rate=0.0, newton_schulz=5)
    result = mlp_memory(**call)
    moved = result.state.weights[0] - call["initial_weights"][0]
    assert torch.linalg.svdvals(moved).sub(1).abs().max() < 0.45


def test_a_sliding_objective_learns_from_pairs_of_the_last_chunk() -> None:
    call = arguments(9, decay=None, reset_rate=0.0)
    replay = replay_window(call["key"], call["value"], call["write_rate"], 3)
    windowed = call | {"key": replay.key, "value": replay.value, "write_rate": replay.write_rate}
    result = mlp_memory(**windowed, implementation="chunked")
    # Every gradient of the first chunk is that of the initial weights: pair s is written by steps s, s + 1 and s + 2.
    error = torch.einsum("hvk,bthk->bthv", call["initial_weights"][0], call["key"]) - call["value"]
    times = torch.tensor([3, 3, 3, 3, 3, 3, 2, 1], dtype=torch.float64)
    step = torch.einsum("t,bth,bthv,bthk->bhvk", times, call["write_rate"][:, :8], error[:, :8], call["key"][:, :8])
    first = mlp_memory(**cut(windowed, 0, 8, None))
    assert torch.allclose(first.state.weights[0], call["initial_weights"][0] - step)
    assert result.surprise.shape == (2, 9, 3, 2)


def life(call: dict[str, Any], index: int, state: MLPMemoryState) -> dict[str, Any]:
    """The call of one life alone."""
    alone = {name: call[name][index : index + 1] for name in OVER_TIME if call[name] is not None}
    parts = (tuple(layer[index : index + 1] for layer in part) for part in state[:3])
    return call | alone | {"initial_state": MLPMemoryState(*parts, state.phase[index : index + 1])}


@pytest.mark.parametrize("rule", RULES)
def test_lives_at_unlike_steps_of_their_chunks_run_together_as_each_runs_alone(rule: str) -> None:
    call = arguments(19, **RULES[rule])
    # Six steps more for one life than for the other, by a reset at its sixth.
    early = call | {"reset": torch.arange(19) == torch.tensor([[0], [5]])}
    state = mlp_memory(**cut(early, 0, 7, None)).state
    assert call["chunk"] == 1 or state.phase.tolist() == [7, 2]
    call = call | {"initial_state": state}
    together = mlp_memory(**call)
    assert_close(tensors(tuple(together)), tensors(tuple(mlp_memory(**call, implementation="reference"))), 1e-11)
    for index in (0, 1):
        alone = mlp_memory(**life(call, index, state))
        assert_close({"output": together.output[index]}, {"output": alone.output[0]}, 1e-12)
        assert together.state.phase[index] == alone.state.phase[0]
    assert_close(
        gradients(call, lambda call: mlp_memory(**call)),
        gradients(call, lambda call: mlp_memory(**call, implementation="reference")),
        1e-9,
    )


@pytest.mark.parametrize("implementation", ["reference", "chunked"])
@pytest.mark.parametrize("rule", RULES)
def test_a_reset_equals_a_fresh_start(rule: str, implementation: str) -> None:
    call = arguments(18, **RULES[rule])
    for at in (1, 11):
        reset = torch.zeros(2, 18, dtype=torch.bool)
        reset[0, at] = True
        whole = mlp_memory(**(call | {"reset": reset}), implementation=implementation)
        fresh = mlp_memory(**cut(call | {"reset": None}, at, 18, None), implementation=implementation)
        assert_close({"output": whole.output[0, at:]}, {"output": fresh.output[0]}, 1e-12)
        assert_close({"surprise": whole.surprise[0, at:]}, {"surprise": fresh.surprise[0]}, 1e-12)
        assert whole.state.phase[0] == fresh.state.phase[0]
        for ours, theirs in zip(whole.state[:3], fresh.state[:3], strict=True):
            for layer, new in zip(ours, theirs, strict=True):
                assert torch.allclose(layer[0], new[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("rule", ["titans", "ttt-mlp", "muon, rates", "online"])
@pytest.mark.parametrize("implementation", ["reference", "chunked"])
def test_single_steps_folded_are_the_sequence(rule: str, implementation: str) -> None:
    call = arguments(13, **RULES[rule])
    whole, state, outputs = mlp_memory(**call), None, []
    for t in range(13):
        step = mlp_memory(**cut(call, t, t + 1, state), implementation=implementation)
        state = step.state
        outputs.append(step.output)
    assert_close({"output": torch.cat(outputs, 1)}, {"output": whole.output}, 1e-12)
    assert_close(tensors(tuple(state[:3])), tensors(tuple(whole.state[:3])), 1e-12)


@pytest.mark.parametrize("rule", ["titans", "ttt-mlp", "muon, rates"])
def test_the_gradients_of_the_reference_are_those_of_finite_differences(rule: str) -> None:
    call = learned(arguments(5, **RULES[rule]) | {"chunk": 2})
    named = tensors(call)
    names = {id(tensor): index for index, tensor in enumerate(named.values())}

    def run(*values: Tensor) -> Tensor:
        def replaced(part: Any) -> Any:
            if isinstance(part, tuple):
                return tuple(replaced(each) for each in part)
            return values[names[id(part)]] if id(part) in names else part

        result = mlp_memory(**{name: replaced(part) for name, part in call.items()}, implementation="reference")
        return torch.cat([tensor.flatten() for tensor in tensors(tuple(result)).values()])

    assert torch.autograd.gradcheck(run, tuple(named.values()), fast_mode=True)


def test_what_does_not_fit_is_named() -> None:
    call = arguments(hidden=7)
    for changes, message in [
        ({"initial_weights": ()}, r"initial_weights must be one or two matrices \[H, out, in\] from 6 to 5"),
        ({"initial_weights": call["initial_weights"][::-1]}, r"initial_weights must be one or two matrices"),
        ({"write_rate": torch.zeros(2, 3, 2, dtype=torch.float64)}, r"write_rate must be \[2, 21, 1, 2\]"),
        ({"norm": (torch.ones(2, 5),) * 2}, r"norm must be None unless Dk = Dv, which are 6 and 5"),
        ({"chunk": 0}, r"chunk must be >= 1, got 0"),
        ({"implementation": "native"}, r'implementation must be auto, reference or chunked, got "native"'),
        ({"momentum": torch.zeros(2, 21, dtype=torch.float64)}, r"momentum must be \[2, 21, 2\], got \[2, 21\]"),
        ({"reset": torch.zeros(2, 21)}, r"reset must be \[2, 21\] of torch.bool"),
        (
            {"update_rate": torch.zeros(2, 21, 2, dtype=torch.float64)},
            r"update_rate must be None unless newton_schulz > 0",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            mlp_memory(**(call | changes))
