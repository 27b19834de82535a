"""Probes: the tasks against hand-worked cases, and the ends of every scale: a perfect memory, and none."""

from __future__ import annotations

import dataclasses
import json
import math
from functools import partial

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensordict import TensorDict

from lifelong.experiments.cli import main
from lifelong.experiments.probes import pairs, teachers
from lifelong.experiments.probes.capacity import measure_capacity
from lifelong.experiments.probes.catalogue import PROBES
from lifelong.experiments.probes.correlated_keys import measure_correlated_keys
from lifelong.experiments.probes.drift import measure_drift
from lifelong.experiments.probes.learner import Learner, train
from lifelong.experiments.probes.length import measure_length
from lifelong.experiments.probes.overwriting import measure_overwriting
from lifelong.experiments.probes.regression import measure_regression
from lifelong.experiments.probes.retention import measure_retention
from lifelong.memory import make_core

KEY, VALUES = pairs.KEY, pairs.VALUES


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def silent(where: str) -> None:
    pass


class PerfectMemory:
    """Keeps every pair that is to be kept, and answers with the newest value of the key."""

    slots = 600

    def initial_state(self, lives: int) -> TensorDict:
        keys, values = torch.zeros(lives, self.slots, KEY), torch.zeros(lives, self.slots, dtype=torch.int64)
        return TensorDict({"keys": keys, "values": values, "count": torch.zeros(lives, dtype=torch.int64)}, [lives])

    def __call__(self, tokens, state):
        keys, values, count = (state[name].clone() for name in ("keys", "values", "count"))
        rows, scores = torch.arange(len(tokens)), []
        for token in tokens.unbind(1):
            key, value, flag, asked = token.split([KEY, VALUES, 1, KEY], 1)
            same = torch.einsum("bnk,bk->bn", keys, asked) > 0.9999
            newest = (same * torch.arange(1, self.slots + 1)).argmax(1)
            scores.append(torch.nn.functional.one_hot(values[rows, newest], VALUES).float())
            kept = flag[:, 0] > 0
            keys[rows[kept], count[kept]] = key[kept]
            values[rows[kept], count[kept]] = value[kept].argmax(1)
            count += kept
        return torch.stack(scores, 1), TensorDict({"keys": keys, "values": values, "count": count}, [len(tokens)])


class Ridge:
    """Ridge regression on everything it was told: the optimum for a linear teacher. It wants whole lives."""

    def initial_state(self, lives: int) -> TensorDict:
        return TensorDict({}, [lives])

    def __call__(self, tokens, state):
        inputs = tokens[..., -teachers.INPUTS :]
        told = torch.cat([tokens[:, 1:, teachers.INPUTS], torch.zeros(len(tokens), 1)], 1)
        lesson = teachers.Lesson(tokens, inputs, told, told)
        return teachers.track(lesson, 0.0).unsqueeze(-1), state


def learner_without_memory(task: str = "pairs") -> Learner:
    torch.manual_seed(0)
    sizes = (pairs.TOKEN, VALUES) if task == "pairs" else (teachers.TOKEN, 1)
    return Learner(make_core("none", 16), *sizes)


RECALL = {
    "retention": (measure_retention, {"ages": [1, 10, 100]}, "retention", 1.0),
    "capacity": (measure_capacity, {"counts": [1, 32]}, "share", 1.0),
    "overwriting": (measure_overwriting, {"repeats": [1, 8]}, "new", 1.0),
    "old values": (measure_overwriting, {"repeats": [1, 8]}, "old", 0.0),
    "correlated keys": (measure_correlated_keys, {"correlations": [0.0, 0.9]}, "correlated_keys", 1.0),
    "length": (measure_length, {"longest": 300}, "length", 1.0),
}


@pytest.mark.parametrize("name", RECALL)
def test_a_perfect_memory_scores_1_in_every_recall_probe_and_none_scores_chance(name):
    measure, options, panel, best = RECALL[name]
    perfect = measure(PerfectMemory(), seeded(), silent, **options)[panel]
    assert perfect.y == [best] * len(perfect.y)
    with torch.no_grad():
        nothing = measure(learner_without_memory(), seeded(), silent, **options)[panel]
    for share, error in zip(nothing.y, nothing.error, strict=True):
        assert abs(share - pairs.CHANCE) < 4 * max(error, 0.02)


def test_what_is_forgotten_is_not_waited_for():
    ages = [1, 2, 3, 4, 10**9]
    with torch.no_grad():
        curve = measure_retention(learner_without_memory(), seeded(1), silent, ages)["retention"]
    assert curve.x[-1] < 10**9


def test_tokens_of_pairs_worked_by_hand():
    key = torch.arange(16.0).view(1, 16)
    token = pairs.write_tokens(key, torch.tensor([2]))[0]
    assert token.tolist() == [*range(16), 0, 0, 1, 0, 0, 0, 0, 0, 1, *[0] * 16]
    assert pairs.ask_tokens(key)[0].tolist() == [*[0] * 25, *range(16)]
    noise = pairs.noise_tokens(2, 3, seeded())
    assert noise.shape == (2, 3, pairs.TOKEN)
    assert not noise[..., 24:].any()  # neither to be kept nor asked


def test_keys_have_unit_length_and_the_cosine_asked_for():
    keys = pairs.draw_keys(400, 6, 0.8, seeded())
    torch.testing.assert_close(keys.norm(dim=-1), torch.ones(400, 6))
    cosine = torch.einsum("bik,bjk->bij", keys, keys)[:, ~torch.eye(6, dtype=torch.bool)]
    assert float(cosine.mean()) == pytest.approx(0.8, abs=0.02)


def test_a_mixed_stream_is_answered_by_replaying_its_tokens():
    lives, steps = 3, 60
    pool = pairs.draw_keys(lives, 8, 0.0, seeded())
    size, share = torch.tensor([1, 4, 8]), torch.tensor([0.2, 0.5, 1.0])
    first, known = pairs.mixed_stream(pool, size, share, steps // 2, seeded(1))
    second, _ = pairs.mixed_stream(pool, size, share, steps // 2, seeded(2), known)
    tokens, answer = (torch.cat(parts, 1) for parts in zip(first, second, strict=True))
    asked = 0
    for life in range(lives):
        bound: dict[tuple[float, ...], int] = {}
        for token, right in zip(tokens[life], answer[life].tolist(), strict=True):
            key, value, flag, question = token.split([KEY, VALUES, 1, KEY])
            if bound:
                assert right == bound[tuple(question.tolist())]
                asked += 1
            else:
                assert right == -1
                assert not question.any()
            if flag:
                bound[tuple(key.tolist())] = int(value.argmax())
        assert len(bound) <= size[life]
    assert asked > lives * steps / 2


def test_tokens_of_a_lesson_hold_the_example_before_and_the_present_input():
    inputs = torch.arange(16.0).view(1, 2, 8)
    told = torch.tensor([[5.0, 6.0]])
    tokens = teachers.tell(inputs, told, told).tokens[0].tolist()
    assert tokens[0] == [*[0] * 10, *range(8)]
    assert tokens[1] == [*range(8), 5, 1, *range(8, 16)]


@pytest.mark.parametrize("kind", teachers.KINDS)
def test_teachers_have_mean_square_1_and_sparse_ones_two_weights(kind):
    lesson = teachers.draw_lesson(kind, 4000, 10, seeded())
    assert float(lesson.clean.square().mean()) == pytest.approx(1.0, abs=0.08)
    assert float((lesson.told - lesson.clean).std()) == pytest.approx(teachers.NOISE, abs=0.002)
    if kind == "sparse":
        weights = torch.linalg.lstsq(lesson.inputs.double(), lesson.clean.double().unsqueeze(-1)).solution
        assert ((weights.abs() > 1e-3).sum((1, 2)) == 2).double().mean() > 0.98


def test_a_drifting_teacher_keeps_its_scale_and_moves_at_its_speed():
    speed = torch.full((2000,), 0.2)
    clean = teachers.draw_lesson("linear", 2000, 40, seeded(), speed).clean
    assert float(clean[:, -10:].square().mean()) == pytest.approx(1.0, abs=0.08)
    still = teachers.draw_lesson("linear", 50, 40, seeded(), torch.zeros(50))
    weights = torch.linalg.lstsq(still.inputs, still.clean.unsqueeze(-1)).solution
    torch.testing.assert_close((still.inputs @ weights).squeeze(-1), still.clean, rtol=0, atol=1e-4)


def test_regression_from_one_example_worked_by_hand():
    inputs = torch.zeros(1, 2, 8)
    inputs[0, 0, 0], inputs[0, 1, 0] = 2.0, 3.0
    told = torch.tensor([[4.0, 0.0]])
    lesson = teachers.tell(inputs, told, told)
    # k(x*, x) = 6/8, k(x, x) + noise^2 = 4/8 + 0.01
    assert float(teachers.regress(teachers.linear_kernel, lesson, 1)) == pytest.approx(0.75 / 0.51 * 4.0)
    assert float(teachers.nearest(lesson, 1)) == 4.0


def test_the_filter_of_a_teacher_that_stands_still_is_ridge_regression():
    lesson = teachers.draw_lesson("linear", 5, 20, seeded())
    tracked = teachers.track(lesson, 0.0)
    for examples in (1, 7, 19):
        torch.testing.assert_close(tracked[:, examples], teachers.regress(teachers.linear_kernel, lesson, examples))


def test_the_kernel_of_two_layer_teachers_is_the_covariance_of_their_answers():
    inputs = torch.randn(1, 3, 8, generator=seeded()).expand(60_000, -1, -1)
    answers = teachers._answers("two_layer", inputs, seeded(1), None).double()
    kernel = teachers.two_layer_kernel(inputs[:1].double(), inputs[:1].double())[0]
    torch.testing.assert_close(answers.T @ answers / len(answers), kernel, rtol=0.05, atol=0.03)
    assert float(kernel[0, 0]) == pytest.approx(float(inputs[0, 0].square().sum()) / 8)


def test_an_optimal_learner_reaches_the_optimum_and_none_learns_nothing():
    found = measure_regression(Ridge(), seeded(), silent)["linear"]
    optimum = PROBES["regression"].panels["linear"].references()["ridge regression (optimal)"]
    assert found.y[-1] == pytest.approx(optimum.y[-1], rel=0.3)
    assert found.y[-1] < 1e-3
    slow = measure_drift(Ridge(), seeded(), silent, speeds=[0.001])["drift"].y[0]
    assert slow < 2 * PROBES["drift"].panels["drift"].references()["Kalman filter (optimal)"].y[0]
    with torch.no_grad():
        nothing = measure_regression(learner_without_memory("teachers"), seeded(), silent)["linear"]
    assert min(nothing.y) > 0.7


def test_training_lowers_the_loss_and_a_loss_that_breaks_is_told():
    torch.manual_seed(0)
    learner = Learner(make_core("gated_delta", 16, heads=1, head_dim=8), pairs.TOKEN, VALUES)
    first: list[float] = []
    last = train(learner, pairs.training_loss, 60, 1e-2, seed=0, progress=first.append)
    assert last < first[0]
    with torch.no_grad():
        learner.read.bias.fill_(math.nan)
    with pytest.raises(ArithmeticError, match="the loss is nan at update 1"):
        train(learner, pairs.training_loss, 2, 1e-2, seed=0)


def test_the_command_leaves_plots_tensorboard_and_every_number(tmp_path, capsys):
    out = tmp_path / "probe"
    words = ["memory=gated_delta,none", "probes=capacity,drift", "updates=2", "state_floats=300,600", f"out={out}"]
    assert main(["probe", *words]) == 0
    for name in ("capacity", "drift", "capacity_by_size"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    events = EventAccumulator(str(out), size_guidance={"images": 0}).Reload()
    assert set(events.Tags()["images"]) == {"probe/capacity", "probe/drift", "probe/capacity_by_size"}
    result = json.loads((out / "probe.json").read_text())
    assert set(result["cores"]) == {"gated_delta 300", "gated_delta 600", "none 300", "none 600"}
    core = result["cores"]["gated_delta 600"]
    assert abs(core["matched"]["state_bytes"] / 2400 - 1) < 0.1
    assert len(core["curves"]["drift"]["drift"]["y"]) == 7
    assert result["references"]["capacity"]["share"] == {"perfect": 1.0, "guessing": 0.125}
    printed = capsys.readouterr().out
    assert "gated_delta 300: head_dim=" in printed
    assert "most pairs held" in printed
    assert main(["probe", *words]) == 2  # the folder is taken


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "probe needs a memory"),
        (["memory=gated_dela"], "did you mean 'gated_delta'"),
        (["memory=lstm", "probes=capcity"], "did you mean 'capacity'"),
        (["memory=lstm", "update=3"], "did you mean 'updates'"),
        (["memory=lstm", "updates=0"], "must be a whole number, 1 or more"),
        (["memory=lstm,gru", "memory.layers=2"], "for one core only"),
        (["memory=lstm", "memory.hiden=2"], "did you mean 'memory.hidden'"),
        (["memory=lstm", "memory.hidden=2"], "memory.hidden=2: this option is what state_floats is reached by"),
    ],
)
def test_a_mistake_is_answered_in_one_line(words, says, capsys):
    assert main(["probe", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_a_growing_memory_gets_the_room_of_the_task_and_the_others_are_measured(tmp_path, capsys, monkeypatch):
    short = dataclasses.replace(PROBES["retention"], measure=partial(measure_retention, ages=[1, 200]))
    monkeypatch.setitem(PROBES, "retention", short)
    words = ["memory=softmax,gru", "probes=overwriting,retention", "updates=1", f"out={tmp_path / 'probe'}"]
    assert main(["probe", *words]) == 0
    printed = capsys.readouterr().out
    assert "softmax: capacity=129, 132,872 bytes of state" in printed
    assert "it grows, and the task needs 129 steps: 32 times the bytes asked for" in printed
    assert "softmax, retention: life 0 does not fit: its step 130 is one more than the capacity of 129" in printed
    cores = json.loads((tmp_path / "probe" / "probe.json").read_text())["cores"]
    assert set(cores["softmax"]["curves"]) == {"overwriting"}
    assert set(cores["gru"]["curves"]) == {"overwriting", "retention"}


def test_a_memory_that_its_training_outgrows_says_so_and_the_others_are_measured(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lifelong.experiments.probe._ROOM", 100)
    assert main(["probe", "memory=softmax,none", "probes=capacity", "updates=1", f"out={tmp_path / 'probe'}"]) == 0
    assert "softmax, capacity: life 0 does not fit: its step 101 is one more" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "probe" / "probe.json").read_text())["cores"]["none"]["curves"]) == {"capacity"}


def test_a_memory_that_cannot_be_measured_says_why_and_the_others_are(tmp_path, capsys, monkeypatch):
    def outgrown(memory, generator, progress):
        raise ValueError("the life is longer than this memory")

    refusing = dataclasses.replace(PROBES["capacity"], measure=outgrown)
    monkeypatch.setitem(PROBES, "capacity", refusing)
    words = ["memory=none", "probes=capacity,correlated_keys", "updates=1", f"out={tmp_path}"]
    assert main(["probe", *words]) == 0
    assert "none, capacity: the life is longer than this memory" in capsys.readouterr().out
    assert set(json.loads((tmp_path / "probe.json").read_text())["cores"]["none"]["curves"]) == {"correlated_keys"}
