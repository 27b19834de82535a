"""The health of a memory: hand-worked numbers, and what every core must report."""

from __future__ import annotations

import math

import pytest
import torch
from tensordict import TensorDict

from lifelong.kernels import fast_weight_step
from lifelong.memory import core_names, core_options, make_core
from lifelong.memory.health import effective_rank, find_non_finite, state_health

DIM, LIVES = 12, 3
# The parametric cores: those that learn pairs, each a point of one of three design spaces.
PARAMETRIC = [name for name in core_names() if {"key_map", "read_norm"} <= set(core_options(name))]
OF_EVERY_STATE = {"state_norm", "state_max", "state_non_finite", "write_size"}
OF_LEARNED_PAIRS = {"effective_rank", "surprise_before", "surprise_after"}


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
    assert set(found) >= OF_EVERY_STATE
    everywhere = torch.ones(LIVES, dtype=torch.bool)
    assert core.health(state, inputs, everywhere) == pytest.approx(core.health(core.initial_state(LIVES), inputs))
    assert core.health(state, inputs, ~everywhere) == found


def test_the_parametric_cores_are_those_of_the_design_space():
    assert len(PARAMETRIC) == 19
    assert {"mixed_heads", "mlstm", "mesa", "ttt_linear", "ttt_mlp", "titans_mlp", "atlas"} <= set(PARAMETRIC)


@pytest.mark.parametrize("name", PARAMETRIC)
def test_every_parametric_core_reports_the_full_set_whenever_in_a_life(name):
    core, state, inputs = lived(name)
    decays = core_options(name)["retention"].default != "none"
    wanted = OF_EVERY_STATE | OF_LEARNED_PAIRS | ({"decay_horizon"} if decays else set())
    for _ in range(5):  # through all steps of a chunk, some of which write nothing
        found = core.health(state, inputs)
        assert set(found) == wanted
        assert 0 < found["write_size"] < 2
        assert found["surprise_after"] != found["surprise_before"]
        with torch.no_grad():
            _, state = core.step(inputs, state)


@pytest.mark.parametrize("name", ["shm", "mamba2"])
def test_other_cores_that_hold_matrices_report_their_effective_rank(name):
    core, state, _ = lived(name)
    assert core.health(state)["effective_rank"] >= 1


def test_the_exponential_gate_reports_answers_and_writes_as_they_are_read():
    core, state, inputs = lived("mlstm", heads=2, head_dim=4, value_dim=3)
    with torch.no_grad():
        core.layers["layer_0"].labels.projection.bias[-4:-2] += 3.0  # writes of about e^3: the scale moves
        _, state = core.step(inputs, state)
        layer, before = core.layers["layer_0"], state["layer_0"]
        labels, _ = layer.labels.step(inputs, dict(before.items()), None)
        _, log_rate, decay = labels.gates
        memory = before["fast_weights"] * before["log_scale"].exp()[..., None, None]  # C and n themselves
        kept = decay.sigmoid()[..., None, None] * memory
        value = torch.cat([labels.value, torch.ones(LIVES, 2, 1)], -1)
        written = kept + log_rate.exp()[..., None, None] * value.unsqueeze(-1) * labels.key.unsqueeze(-2)

    def surprise(matrices):
        read = (matrices @ labels.key.unsqueeze(-1)).squeeze(-1)
        return float((labels.value - read[..., :3] / read[..., 3:].abs().clamp_min(1.0)).norm(dim=-1).mean())

    found = core.health(state, inputs)
    size = (written - kept).norm(dim=(2, 3)) / written.norm(dim=(2, 3))
    assert found["write_size"] == pytest.approx(float(size.mean()), rel=1e-4)
    assert found["surprise_before"] == pytest.approx(surprise(kept), rel=1e-4)
    assert found["surprise_after"] == pytest.approx(surprise(written), rel=1e-4)


@pytest.mark.parametrize("retention", ["none", "scalar", "pull"])
def test_a_network_reports_what_it_answers_before_and_after_the_write(retention):
    options = {"inner_norm": False, "chunk": 1, "heads": 2, "head_dim": 4}
    core, state, inputs = lived("ttt_linear", retention=retention, **options)
    layer, before = core.layers["layer_0"], state["layer_0"]
    with torch.no_grad():
        labels, _ = layer.labels.step(inputs, dict(before.items()), None)
        _, after = core.step(inputs, state)
        start, decay = layer.rule.reset_state.learned["weights_0"], labels.gates[-1].sigmoid()[..., None, None]
        old, new = before["weights_0"], after["layer_0", "weights_0"]
        kept = {"none": old, "scalar": decay * old, "pull": start + decay * (old - start)}[retention]

    def surprise(weights):
        read = (weights[..., :-1] @ labels.key.unsqueeze(-1)).squeeze(-1) + weights[..., -1]
        return float((labels.value - read).norm(dim=-1).mean())

    found = core.health(state, inputs)
    size = (new - kept).norm(dim=(2, 3)) / new.norm(dim=(2, 3))
    assert found["write_size"] == pytest.approx(float(size.mean()), rel=1e-4)
    assert found["surprise_before"] == pytest.approx(surprise(kept), rel=1e-4)
    assert found["surprise_after"] == pytest.approx(surprise(new), rel=1e-4)


def test_a_memory_that_writes_at_the_end_of_a_chunk_reports_what_a_chunk_that_ended_now_would_write():
    core, state, inputs = lived("atlas", head_dim=8, chunk=4)
    state["layer_0", "phase"] = torch.zeros(LIVES, dtype=torch.int64)
    state["layer_0", "base_0"], state["layer_0", "base_1"] = (
        state["layer_0", "weights_0"],
        state["layer_0", "weights_1"],
    )
    at_start = core.health(state, inputs)
    state["layer_0", "phase"] = torch.full((LIVES,), 3)
    assert core.health(state, inputs) == pytest.approx(at_start)


@pytest.mark.parametrize("options", [{"heads": ["counting", "plain"]}, {"closed_loop": True}, {"pairs": 2}], ids=str)
def test_what_is_pulled_to_a_state_is_as_surprised_as_the_whole_memory(options):
    core, state, inputs = lived("gated_delta", **{"heads": 2, "head_dim": 4, "retention": "pull", **options})
    rule, layer = core.layers["layer_0"].rule, core.layers["layer_0"]
    with torch.no_grad():
        rule.goal.normal_()
        labels, _ = layer.labels.step(inputs, dict(state["layer_0"].items()), None)
        decay = labels.gates[-1].sigmoid()[..., None, None]
        whole = rule.goal + decay * state["layer_0", "fast_weights"]
        if labels.key.dim() > whole.dim() - 1:
            whole = whole.unsqueeze(1)
        answers = (whole @ labels.key.unsqueeze(-1)).squeeze(-1)
    found = core.health(state, inputs)
    assert found["surprise_before"] == pytest.approx(float((labels.value - answers).norm(dim=-1).mean()), rel=1e-4)


def test_a_watched_step_of_fast_weights_says_what_the_kernel_says():
    core, state, inputs = lived("gated_delta", heads=2, head_dim=4, value_dim=3)
    layer, before = core.layers["layer_0"], state["layer_0"]
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
    # The write to both moments of a head over the size of both.
    old, new = (
        torch.cat([values.flatten(2), keys.flatten(2)], -1)
        for values, keys in ((before["values"], before["keys"]), after)
    )
    size = (new - old).norm(dim=-1) / new.norm(dim=-1)
    assert found["write_size"] == pytest.approx(float(size.mean()), rel=1e-4)


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
