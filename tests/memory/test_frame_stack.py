"""Frame stacking: the window holds what the same life saw, and the reset state before it."""

from __future__ import annotations

import torch
from torch import nn

from lifelong.memory import make_core


def test_the_window_is_written_out_step_by_step() -> None:
    torch.manual_seed(0)
    core = make_core("frame_stack", 2, frames=3, reset_state="learned").double()
    fresh = core.reset_state.learned["frames"]
    with torch.no_grad():
        fresh.normal_()
    inputs = torch.randn(1, 5, 2, dtype=torch.float64)
    reset = torch.tensor([[False, False, False, True, False]])
    outputs, state = core(inputs, core.initial_state(1), reset)
    u = core.norm(inputs)[0]
    windows = [
        [fresh[0], fresh[1], u[0]],
        [fresh[1], u[0], u[1]],
        [u[0], u[1], u[2]],
        [fresh[0], fresh[1], u[3]],
        [fresh[1], u[3], u[4]],
    ]
    for t, window in enumerate(windows):
        wanted = inputs[0, t] + core.narrow(nn.functional.silu(core.widen(torch.cat(window))))
        torch.testing.assert_close(outputs[0, t], wanted, rtol=0.0, atol=1e-12)
    torch.testing.assert_close(state["frames"][0], torch.stack([u[3], u[4]]), rtol=0.0, atol=0.0)


def test_what_is_older_than_the_window_is_forgotten_and_nothing_younger() -> None:
    torch.manual_seed(0)
    core = make_core("frame_stack", 4, frames=3)
    inputs = torch.randn(1, 6, 4, requires_grad=True)
    outputs, _ = core(inputs, core.initial_state(1))
    (reached,) = torch.autograd.grad(outputs[0, -1].sum(), inputs)
    assert reached[0].any(-1).tolist() == [False, False, False, True, True, True]
