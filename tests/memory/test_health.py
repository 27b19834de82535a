"""The health of a memory: hand-worked numbers, and what every core must report."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from lifelong.kernels import fast_weight_step
from lifelong.memory import core_names, make_core
from lifelong.memory.health import effective_rank, find_non_finite, state_health

DIM, LIVES = 12, 3


def lived(name: str, **options):
    """A core, a state after 20 random steps, and an input."""
    torch.manual_seed(0)
    core = make_core(name, DIM, **options)
    with torch.no_grad():
        _, state = core(torch.randn(LIVES, 20, DIM), core.initial_state(LIVES))
    return core, state, torch.randn(LIVES, DIM)


def test_the_effective_rank_of_matrices_worked_by_hand():
    matrices = torch.zeros(4, 3, 3)
    matrices[0] = 5 * torch.eye(3)  # three equal directions
    matrices[1] = torch.outer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0.5, -1.0, 2.0]))  # one direction
    matrices[2] = torch.diag(torch.tensor([3.0, 1.0, 0.0]))  # shares 3/4 and 1/4
    by_hand = math.exp(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)))
    found = effective_rank(matrices)
    wanted = torch.tensor([3.0, 1.0, by_hand, 0.0], dtype=torch.float64)  # the last holds nothing
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)


def test_the_state_of_two_lives_worked_by_hand():
    state = TensorDict(
        {
            "a": torch.tensor([[3.0, 0.0], [0.0, math.nan]]),
            "b": {"c": torch.tensor([[[-4.0]], [[1.0]]]), "steps": torch.tensor([7, 8])},
        },
        [2],
    )
    # The lives' norms are 5 and 1; one of six numbers is not finite; counters do not count.
    assert state_health(state) == {"state_norm": 3.0, "state_max": 4.0, "state_non_finite": pytest.approx(1 / 6)}


def test_the_first_life_that_is_not_finite_is_found_with_its_tensor():
    state = TensorDict({"a": torch.ones(4, 2), "layer": {"b": torch.ones(4, 3, 3)}, "n": torch.ones(4).long()}, [4])
    assert find_non_finite(state) is None
    state["layer", "b"][2, 1, 0] = math.inf
    assert find_non_finite(state) == (2, "layer.b")
    assert find_non_finite(TensorDict({"large": torch.full((2, 2), 3e38)}, [2])) is None  # only its sum overflows


@pytest.mark.parametrize("name", core_names())
def test_every_core_reports_and_a_reset_reports_a_fresh_life(name):
    core, state, inputs = lived(name)
    kept = state.clone()
    found = core.health(state, inputs)
    assert all(math.isfinite(value) for value in found.values()), found
    assert (state == kept).all()
    if name == "none":
        assert found == {}
        return
    assert {"state_norm", "state_max", "state_non_finite", "write_size"} <= set(found)
    everywhere = torch.ones(LIVES, dtype=torch.bool)
    assert core.health(state, inputs, everywhere) == pytest.approx(core.health(core.initial_state(LIVES), inputs))
    assert core.health(state, inputs, ~everywhere) == found


def test_a_watched_step_of_fast_weights_says_what_the_kernel_says():
    core, state, inputs = lived("gated_delta", heads=2, head_dim=4, value_dim=3)
    layer, before = core.layers[0], state["layer_0"]
    with torch.no_grad():
        labels, _ = layer.labels.step(inputs, dict(before.items()), None)
        _, rate, decay = labels.gates
        log_decay = torch.nn.functional.logsigmoid(decay)
        written = fast_weight_step(
            labels.query, labels.key, labels.value, rate.sigmoid(), log_decay, state=before["fast_weights"]
        )
    found = core.health(state, inputs)
    kept = log_decay.exp()[..., None, None] * before["fast_weights"]
    size = (written.state - kept).norm(dim=(2, 3)) / written.state.norm(dim=(2, 3))
    assert found["surprise_before"] == pytest.approx(float(written.surprise.mean()), rel=1e-5)
    assert found["write_size"] == pytest.approx(float(size.mean()), rel=1e-5)
    # Keys have unit length: a write at rate b leaves 1 - b of the surprise.
    left = (1 - rate.sigmoid()) * written.surprise
    assert found["surprise_after"] == pytest.approx(float(left.mean()), rel=1e-4)
    forgotten = 1 - log_decay.double().exp()
    assert found["decay_horizon"] == pytest.approx(float((-forgotten.log().mean()).exp()), rel=1e-3)


def test_least_squares_answers_are_reported_before_and_after_the_write():
    core, state, inputs = lived("mesa", heads=1, head_dim=4, retention="none")
    layer, before = core.layers["layer_0"], state["layer_0"]
    with torch.no_grad():
        labels, _ = layer.labels.step(inputs, dict(before.items()), None)
        rate = labels.gates[-1].sigmoid()
        regulariser = torch.nn.functional.softplus(layer.rule.regulariser).diag_embed()

        def surprise(values, keys):
            fitted = torch.linalg.solve(keys + regulariser, values, left=False)
            return float((labels.value - (fitted @ labels.key.unsqueeze(-1)).squeeze(-1)).norm(dim=-1).mean())

        key, value = labels.key.unsqueeze(-1), labels.value.unsqueeze(-1)
        after = [
            before["values"] + rate[..., None, None] * value @ key.mT,
            before["keys"] + rate[..., None, None] * key @ key.mT,
        ]
    found = core.health(state, inputs)
    assert found["surprise_before"] == pytest.approx(surprise(before["values"], before["keys"]), rel=0.05)
    assert found["surprise_after"] == pytest.approx(surprise(*after), rel=0.05)
    assert found["surprise_after"] < found["surprise_before"]


def test_what_never_decays_has_no_horizon_and_the_first_write_is_all_there_is():
    core, _, inputs = lived("linear_attention")
    found = core.health(core.initial_state(LIVES), inputs)
    assert "decay_horizon" not in found
    assert found["write_size"] == pytest.approx(1.0)
    assert found["state_norm"] == 0.0
    assert "effective_rank" not in found  # of nothing


def test_a_state_that_broke_is_still_reported():
    core, state, inputs = lived("gated_delta")
    state["layer_0", "fast_weights"][0, 0, 0, 0] = math.nan
    found = core.health(state, inputs)
    assert found["state_non_finite"] > 0
    assert "effective_rank" not in found
