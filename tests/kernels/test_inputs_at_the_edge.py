"""Gates of minus infinity, autocast, and high write rates of heads that do not erase are taken by all alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from .inputs import assert_close, flatten, gradients, make_inputs


@pytest.mark.parametrize("decay", ["scalar", "channel"])
@pytest.mark.parametrize("implementation", ["chunked", "auto"])
def test_a_log_decay_of_minus_infinity_keeps_nothing(decay: str, implementation: str) -> None:
    inputs = make_inputs(decay=decay)
    log_decay = inputs.log_decay.clone()
    log_decay[:, 5] = -torch.inf
    inputs = replace(inputs, log_decay=log_decay)
    assert_close(flatten(inputs.run(implementation)), flatten(inputs.run("reference")), 1e-12)
    finite = replace(inputs, log_decay=log_decay.clamp_min(-800.0))
    expected = gradients(finite, lambda inputs: inputs.run("reference"))
    assert_close(gradients(inputs, lambda inputs: inputs.run(implementation)), expected, 1e-11)


@pytest.mark.parametrize("implementation", ["reference", "chunked", "auto"])
def test_autocast_leaves_the_state_in_single_precision(implementation: str) -> None:
    inputs = make_inputs().to(torch.float32).with_gradients()
    plain, folded = inputs.run(implementation), inputs.fold(implementation)
    with torch.autocast("cpu", torch.bfloat16):
        plain_under, folded_under = inputs.run(implementation), inputs.fold(implementation)
    assert_close(flatten(plain_under), flatten(plain), 1e-7)
    assert_close(flatten(folded_under), flatten(folded), 1e-7)


def test_heads_that_do_not_erase_take_any_write_rate() -> None:
    inputs = make_inputs(erase=[True, False], check_values=True)
    rate = inputs.write_rate.clone()
    rate[..., 1] = 3.0
    replace(inputs, write_rate=rate).run("chunked")
    with pytest.raises(ValueError, match=r"write_rate must lie in \[0, 2\]"):
        replace(inputs, write_rate=rate.flip(-1)).run("chunked")
