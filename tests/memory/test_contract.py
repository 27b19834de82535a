"""The contract of ``MemoryCore``, for every registered core: a new core is held to it by being registered.

A core in a module of your own: ``python -m pytest -p your_module tests/memory/test_contract.py`` (-p imports, which
registers).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from torch import Tensor

from lifelong.memory import MemoryCore, core_names, make_core

Case = tuple[str, dict[str, Any]]
Run = Callable[[MemoryCore, Tensor, TensorDict], tuple[Tensor, TensorDict]]
DIM, LIVES, STEPS = 12, 4, 13

# The rows: no reset; some; at every step; at the first and at the last step.
RESETS = torch.zeros(LIVES, STEPS, dtype=torch.bool)
RESETS[1, [3, 4, 9]] = True
RESETS[2] = True
RESETS[3, [0, STEPS - 1]] = True


# Options besides the defaults that take another path through a core.
VARIANTS: list[Case] = [
    (
        "gated_delta",
        {"layers": 2, "heads": 3, "head_dim": 4, "value_dim": 6, "feed_forward": 2.0, "convolution_taps": 3},
    ),
    ("gated_delta", {"heads": 1, "head_dim": 8, "convolution_taps": 0}),
    ("linear_attention", {"layers": 2, "heads": 2, "head_dim": 4, "convolution_taps": 2}),
    ("mixed_heads", {"heads": ["rotary", "counting", "learned", "backward*2", "plain"], "head_dim": 4}),
    ("lstm", {"layers": 3, "hidden": 7}),
    ("lstm", {"layers": 2, "hidden": 7, "reset_state": "learned"}),
    ("gru", {"layers": 3, "hidden": 7}),
    ("gru", {"layers": 2, "hidden": 7, "reset_state": "learned"}),
    ("none", {"layers": 2, "feed_forward": 0.0}),
    ("frame_stack", {"frames": 2, "feed_forward": 1.0, "reset_state": "learned"}),
    ("min_gru", {"layers": 2, "hidden": 7, "candidate": "positive", "feed_forward": 1.0, "reset_state": "learned"}),
    ("lru", {"layers": 2, "state_dim": 5, "reset_state": "learned"}),
    ("s5", {"layers": 2, "state_dim": 6, "blocks": 2, "reset_state": "learned"}),
    ("ffm", {"layers": 2, "traces": 3, "contexts": 2, "reset_state": "learned"}),
    ("mamba2", {"heads": 4, "head_dim": 3, "state_dim": 5, "groups": 2, "convolution_taps": 0}),
    ("shm", {"layers": 2, "width": 5, "rows": 3, "reset_state": "learned"}),
    ("mesa", {"heads": 2, "value_dim": 6, "retention": "none", "iterations": 40}),
    ("mesa", {"heads": 2, "value_dim": 6, "reset_state": "learned"}),
    ("ttt_linear", {"heads": 2, "head_dim": 6, "inner_norm": False, "reset_state": "zero", "chunk": 1}),
    # Narrower than 8, the norm of inner_norm is too ill-conditioned for 1e-5 in float32: see NetworkDesign.
    ("ttt_mlp", {"layers": 2, "heads": 2, "head_dim": 8, "chunk": 3, "turn": "with", "convolution_taps": 0}),
    ("atlas", {"heads": 2, "head_dim": 8, "model": "matrix", "inner_norm": False, "chunk": 4}),
]
# A learned reset state once for every way that it is handled (test_learned_reset.py goes through all cores).
# Caches that the tests' lives of 22 steps outgrow, not within one call: gradients from before it are asked for.
VARIANTS += [
    ("softmax", {"layers": 2, "heads": 2, "head_dim": 4, "capacity": 40, "convolution_taps": 0, "feed_forward": 2.0}),
    ("softmax_window", {"layers": 2, "heads": 2, "head_dim": 4, "window": 14, "convolution_taps": 2}),
    ("softmax_evicting", {"layers": 2, "heads": 2, "head_dim": 4, "slots": 14, "recent": 7, "convolution_taps": 0}),
    ("gtrxl", {"layers": 2, "heads": 2, "head_dim": 4, "memory_steps": 14, "reset_state": "learned"}),
]
VARIANTS += [
    (name, {"reset_state": "learned"})
    for name in ("gated_delta", "mixed_heads", "momentum_delta", "mlstm", "omega", "mamba2", "gtrxl")
]
CASES = [(name, {}) for name in core_names()] + VARIANTS
IDS = [" ".join([name, *(f"{key}={value}" for key, value in options.items())]) for name, options in CASES]


def build(case: Case, dtype: torch.dtype = torch.float64) -> MemoryCore:
    """The core of a case with seeded, perturbed parameters, so that no initial zero hides a term."""
    torch.manual_seed(0)
    core = make_core(case[0], DIM, **case[1]).to(dtype)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return core


def random_state(core: MemoryCore, batch: int, seed: int = 1) -> TensorDict:
    """A state that some life may have, and that depends on nothing: leaves that gradients can be asked of."""
    torch.manual_seed(seed)
    like = next(core.parameters(), torch.zeros(1, dtype=torch.float64))
    with torch.no_grad():
        _, state = core(torch.randn(batch, 9, core.dim, dtype=like.dtype), core.initial_state(batch))
    return state.apply(lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()))


def by_steps(core: MemoryCore, inputs: Tensor, state: TensorDict, reset: Tensor | None) -> tuple[Tensor, TensorDict]:
    """``step`` folded over T."""
    outputs = []
    for t in range(inputs.shape[1]):
        output, state = core.step(inputs[:, t], state, None if reset is None else reset[:, t])
        outputs.append(output)
    return torch.stack(outputs, 1), state


def by_pieces(
    core: MemoryCore, inputs: Tensor, state: TensorDict, reset: Tensor | None, cuts: Sequence[int]
) -> tuple[Tensor, TensorDict]:
    """The sequence call cut at ``cuts``, with the state carried over."""
    outputs = []
    for start, end in zip([0, *cuts], [*cuts, inputs.shape[1]], strict=True):
        output, state = core(inputs[:, start:end], state, None if reset is None else reset[:, start:end])
        outputs.append(output)
    return torch.cat(outputs, 1), state


def leaves(state: TensorDict) -> list[Tensor]:
    """The tensors of a state, in the order of their keys."""
    return [state.get(key) for key in sorted(state.keys(True, True), key=str)]


def floating(state: TensorDict) -> list[Tensor]:
    """The tensors of a state that gradients can be asked of: all but the counters."""
    return [leaf for leaf in leaves(state) if leaf.is_floating_point()]


def with_gradients(core: MemoryCore, run: Run, inputs: Tensor, state: TensorDict) -> list[Tensor]:
    """Outputs, final state, and the gradients of a fixed random functional of both in inputs, state and parameters."""
    inputs = inputs.detach().clone().requires_grad_()
    state = state.apply(lambda leaf: leaf.detach().clone().requires_grad_(leaf.is_floating_point()))
    outputs, final = run(core, inputs, state)
    counters = [leaf for leaf in leaves(final) if not leaf.is_floating_point()]
    values = [outputs, *floating(final)]
    weights = [
        torch.randn(value.shape, generator=torch.Generator().manual_seed(7), dtype=value.dtype) for value in values
    ]
    loss = sum((value * weight).sum() for value, weight in zip(values, weights, strict=True))
    sources = [inputs, *floating(state), *core.parameters()]
    gradients = torch.autograd.grad(loss, sources, materialize_grads=True)
    return [*(value.detach() for value in values), *counters, *gradients]


def assert_equal(found: list[Tensor], wanted: list[Tensor], dtype: torch.dtype) -> None:
    """Equal within 1e-10 in float64 and 1e-5 in float32, relative to the largest entry of each tensor."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    for a, b in zip(found, wanted, strict=True):
        scale = max(1.0, float(b.detach().abs().max())) if b.numel() else 1.0
        torch.testing.assert_close(a, b, rtol=0.0, atol=tolerance * scale)


@pytest.fixture(params=CASES, ids=IDS)
def case(request: pytest.FixtureRequest) -> Case:
    """One core with its options."""
    chosen: Case = request.param
    return chosen


def random_inputs(dtype: torch.dtype = torch.float64, steps: int = STEPS) -> Tensor:
    return torch.randn(LIVES, steps, DIM, generator=torch.Generator().manual_seed(3), dtype=dtype)


def remembers(case: Case) -> bool:
    """Whether every input of the test may be remembered to its end."""
    return case[0] not in ("none", "frame_stack")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("reset", [None, RESETS], ids=["without resets", "with resets"])
def test_steps_folded_equal_the_sequence_call_in_values_and_gradients(
    case: Case, reset: Tensor | None, dtype: torch.dtype
) -> None:
    core, inputs = build(case, dtype), random_inputs(dtype)
    state = random_state(core, LIVES)
    sequence = with_gradients(core, lambda core, x, s: core(x, s, reset), inputs, state)
    steps = with_gradients(core, lambda core, x, s: by_steps(core, x, s, reset), inputs, state)
    assert_equal(steps, sequence, dtype)


@pytest.mark.parametrize("reset", [None, RESETS], ids=["without resets", "with resets"])
def test_a_sequence_may_be_cut_anywhere(case: Case, reset: Tensor | None) -> None:
    core, inputs = build(case), random_inputs()
    state = random_state(core, LIVES)
    whole = with_gradients(core, lambda core, x, s: core(x, s, reset), inputs, state)
    for cuts in [[cut] for cut in range(1, STEPS)] + [[1, 2, 7, 8, 12]]:
        cut = with_gradients(core, lambda core, x, s, cuts=cuts: by_pieces(core, x, s, reset, cuts), inputs, state)
        assert_equal(cut, whole, torch.float64)


def test_a_reset_equals_a_fresh_start(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    for t in (0, 1, 6, STEPS - 1):
        reset = torch.zeros(LIVES, STEPS, dtype=torch.bool)
        reset[:, t] = True
        outputs, final = core(inputs, random_state(core, LIVES), reset)
        fresh, fresh_final = core(inputs[:, t:], core.initial_state(LIVES))
        assert_equal([outputs[:, t:], *leaves(final)], [fresh, *leaves(fresh_final)], torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("t", [0, 1, 6, STEPS - 1])
def test_no_gradient_crosses_a_reset_not_even_a_rounding_error(case: Case, t: int, dtype: torch.dtype) -> None:
    core = build(case, dtype)
    inputs, state = random_inputs(dtype).requires_grad_(), random_state(core, LIVES)
    reset = torch.zeros(LIVES, STEPS, dtype=torch.bool)
    reset[::2, t] = True
    for run in (core, lambda x, s, r: by_steps(core, x, s, r)):
        outputs, final = run(inputs, state, reset)
        loss = outputs[:, t:].square().sum() + sum(leaf.square().sum() for leaf in floating(final))
        of_inputs, *of_state = torch.autograd.grad(loss, [inputs, *floating(state)], materialize_grads=True)
        for gradient in [of_inputs[:, :t], *of_state]:
            assert not gradient[::2].any()
        if remembers(case):  # where nothing was reset, gradients do flow
            assert all(gradient[1::2].any() for gradient in of_state)
            assert t == 0 or bool(of_inputs[1::2, :t].any())


def test_what_was_seen_earlier_in_a_life_changes_what_comes_out_later(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    changed = inputs.clone()
    changed[:, 0] *= -1.0  # adding a constant would vanish in a LayerNorm
    before, after = (core(x, core.initial_state(LIVES))[0][:, -1] for x in (inputs, changed))
    assert bool((before != after).any(1).all()) == remembers(case)


def test_no_output_depends_on_a_later_input(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    changed = inputs.clone()
    changed[:, 7:] *= -1.0
    before, after = (core(x, core.initial_state(LIVES), RESETS)[0] for x in (inputs, changed))
    torch.testing.assert_close(before[:, :7], after[:, :7], rtol=0.0, atol=1e-12)


def test_lives_do_not_see_each_other(case: Case) -> None:
    core, inputs, order = build(case), random_inputs(), torch.tensor([2, 0, 3, 1])
    state = random_state(core, LIVES)
    outputs, final = core(inputs, state, RESETS)
    permuted, permuted_final = core(inputs[order], state[order], RESETS[order])
    assert_equal([permuted, *leaves(permuted_final)], [outputs[order], *leaves(final[order])], torch.float64)
    alone, alone_final = core(inputs[1:2], state[1:2], RESETS[1:2])
    assert_equal([alone, *leaves(alone_final)], [outputs[1:2], *leaves(final[1:2])], torch.float64)


def test_no_reset_and_a_reset_that_is_nowhere_true_are_the_same(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    state, nowhere = random_state(core, LIVES), torch.zeros(LIVES, STEPS, dtype=torch.bool)
    for run in (core, lambda x, s, r: by_steps(core, x, s, r)):
        outputs, final = run(inputs, state, None)
        same, same_final = run(inputs, state, nowhere)
        assert_equal([same, *leaves(same_final)], [outputs, *leaves(final)], torch.float64)


def assert_laid_out_alike(state: TensorDict, other: TensorDict) -> None:
    assert isinstance(state, TensorDict)
    assert state.batch_size == other.batch_size
    assert set(state.keys(True, True)) == set(other.keys(True, True))
    for key in state.keys(True, True):
        assert state.get(key).shape == other.get(key).shape
        assert state.get(key).dtype == other.get(key).dtype


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
def test_the_state_keeps_its_shapes_and_everything_keeps_the_dtype_of_the_parameters(
    case: Case, dtype: torch.dtype
) -> None:
    core, inputs = build(case, dtype), random_inputs(dtype)
    initial = core.initial_state(LIVES)
    assert initial.batch_size == (LIVES,)
    for leaf in leaves(initial):
        assert leaf.dtype in (dtype, torch.int64)
    outputs, after_sequence = core(inputs, initial, RESETS)
    output, after_step = core.step(inputs[:, 0], after_sequence, RESETS[:, 0])
    assert outputs.shape == inputs.shape
    assert output.shape == inputs[:, 0].shape
    assert outputs.dtype == output.dtype == dtype
    assert_laid_out_alike(after_sequence, initial)
    assert_laid_out_alike(after_step, initial)
    assert_laid_out_alike(core(inputs[:, :1], initial)[1], initial)


def test_the_bytes_of_state_are_those_of_one_life_and_do_not_grow(case: Case) -> None:
    core = build(case)
    _, state = core(random_inputs(steps=40), core.initial_state(LIVES))
    assert LIVES * core.state_bytes() == sum(leaf.numel() * leaf.element_size() for leaf in leaves(state))


@pytest.mark.parametrize("gradients", [True, False])
def test_inputs_and_the_state_handed_in_are_never_changed(case: Case, gradients: bool) -> None:
    core, inputs = build(case), random_inputs()
    state = random_state(core, LIVES).detach()
    kept, kept_inputs = state.clone(), inputs.clone()
    with torch.set_grad_enabled(gradients):
        core(inputs, state, RESETS)
        by_steps(core, inputs, state, RESETS)
    assert_equal([inputs, *leaves(state)], [kept_inputs, *leaves(kept)], torch.float64)


def test_without_gradients_the_same_comes_out(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    state = random_state(core, LIVES)
    wanted, wanted_final = core(inputs, state, RESETS)
    with torch.no_grad():
        for run in (core, lambda x, s, r: by_steps(core, x, s, r)):
            outputs, final = run(inputs, state, RESETS)
            assert_equal([outputs, *leaves(final)], [wanted, *leaves(wanted_final)], torch.float64)


def test_an_initial_state_may_be_made_in_another_dtype(case: Case) -> None:
    for leaf in leaves(build(case).initial_state(2, dtype=torch.float32, device="cpu")):
        assert leaf.dtype in (torch.float32, torch.int64)
        assert leaf.device.type == "cpu"


def test_saved_weights_give_the_same_core(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    torch.manual_seed(99)
    other: MemoryCore = build(case)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    other.load_state_dict(core.state_dict())
    assert_equal(
        [other(inputs, other.initial_state(LIVES))[0]], [core(inputs, core.initial_state(LIVES))[0]], torch.float64
    )


def test_a_core_can_be_pickled_as_collectors_of_several_processes_do(case: Case) -> None:
    core, inputs = build(case), random_inputs()
    other: MemoryCore = pickle.loads(pickle.dumps(core))
    assert_equal(
        [other(inputs, other.initial_state(LIVES))[0]], [core(inputs, core.initial_state(LIVES))[0]], torch.float64
    )
