"""A learned reset state: where a life begins, with gradient. (The contract suite runs many cores with it, too.)"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lifelong.memory import MemoryCore, core_names, core_options, make_core
from lifelong.memory.learned_reset import ResetState

CORES = [name for name in core_names() if "reset_state" in core_options(name)]
DIM = 8
every_core = pytest.mark.parametrize("name", CORES)


def build(name: str) -> tuple[MemoryCore, list[Tensor]]:
    """A core in float64 with a random learned reset state, and the parameters of that state."""
    torch.manual_seed(0)
    core = make_core(name, DIM, reset_state="learned").double()
    learned = [
        parameter
        for module in core.modules()
        if isinstance(module, ResetState)
        for parameter in module.learned.values()
    ]
    with torch.no_grad():
        for parameter in learned:
            parameter.normal_()
    return core, learned


def random_inputs(steps: int) -> Tensor:
    return torch.randn(3, steps, DIM, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@every_core
def test_a_reset_anywhere_has_the_gradients_of_a_fresh_start(name: str) -> None:
    core, learned = build(name)
    inputs = random_inputs(9)
    with torch.no_grad():
        _, used = core(random_inputs(5), core.initial_state(3))
    for t in (0, 4, 8):
        reset = torch.zeros(3, 9, dtype=torch.bool)
        reset[:, t] = True
        after = core(inputs, used, reset)[0][:, t:]
        fresh = core(inputs[:, t:], core.initial_state(3))[0]
        weights = torch.randn_like(fresh)
        found, wanted = (torch.autograd.grad((outputs * weights).sum(), learned) for outputs in (after, fresh))
        for a, b in zip(found, wanted, strict=True):
            assert b.abs().max() > 0, "a part of the reset state that nothing depends on"
            torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10)


@every_core
def test_the_gradient_is_the_slope_along_the_learned_state(name: str) -> None:
    core, learned = build(name)
    inputs, reset = random_inputs(7), torch.zeros(3, 7, dtype=torch.bool)
    reset[0, [0, 3]] = reset[1, 5] = reset[2, 1:4] = True
    with torch.no_grad():
        _, used = core(random_inputs(5), core.initial_state(3))

    def loss() -> Tensor:
        return core(inputs, used, reset)[0].square().sum()

    gradients = torch.autograd.grad(loss(), learned)
    for parameter, gradient in zip(learned, gradients, strict=True):
        direction = torch.randn_like(parameter)
        ends = []
        for side in (1e-6, -2e-6):
            with torch.no_grad():
                parameter.add_(direction, alpha=side)
                ends.append(float(loss()))
        with torch.no_grad():
            parameter.add_(direction, alpha=1e-6)
        assert (ends[0] - ends[1]) / 2e-6 == pytest.approx(float((gradient * direction).sum()), rel=1e-5, abs=1e-6)


# Not gtrxl: without a learned memory its lives begin with none, which no learned one equals.
@pytest.mark.parametrize("name", [name for name in CORES if name != "gtrxl"])
def test_it_begins_as_the_same_agent_as_with_zeros(name: str) -> None:
    torch.manual_seed(3)
    learned = make_core(name, DIM, reset_state="learned")
    torch.manual_seed(3)
    zero = make_core(name, DIM)
    inputs, reset = random_inputs(9).float(), torch.rand(3, 9) < 0.3
    found, wanted = (core(inputs, core.initial_state(3), reset)[0] for core in (learned, zero))
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-5)


def test_counters_start_at_zero_whatever_is_learned() -> None:
    states = ResetState("learned", {"weights": (2,)}, counters=["position"])
    initial = states.initial(3, torch.zeros(1))
    assert initial["position"].tolist() == [0, 0, 0]
    assert initial["position"].dtype == torch.int64
    restored = states.restore("position", torch.tensor([5, 6, 7]), torch.tensor([False, True, False]))
    assert restored.tolist() == [5, 0, 7]


def test_an_unknown_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"must be one of zero, learned, not 'learnt'; did you mean 'learned'\?"):
        make_core("gru", DIM, reset_state="learnt")


@pytest.mark.parametrize("name", [name for name in core_names() if name not in CORES])
def test_a_core_without_one_says_why(name: str) -> None:
    reason = "remembers nothing" if name == "none" else "a life begins with an empty cache, in which there is nothing"
    with pytest.raises(ValueError, match=f"memory core '{name}' has no option 'reset_state': .*{reason}"):
        make_core(name, DIM, reset_state="learned")


def test_the_least_squares_memory_begins_with_a_moment_of_some_keys() -> None:
    core, _ = build("mesa")
    state = core.initial_state(2)["layer_0"]
    keys = state["keys"]
    torch.testing.assert_close(keys, keys.mT)
    assert (torch.linalg.eigvalsh(keys) > -1e-10).all()
    assert keys.any()
    assert state["values"].any()
    # What is learned of the keys has a slope from the very beginning.
    new = make_core("mesa", DIM, reset_state="learned")
    reset = torch.ones(3, 5, dtype=torch.bool)
    new(random_inputs(5).float(), new.initial_state(3), reset)[0].square().sum().backward()
    assert all(p.grad.any() for n, p in new.named_parameters() if "reset_state.learned" in n and p.numel())
