import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.measurement import Policy, measure
from lifelong.envs.recall_stream import FILLER, QUERY, WRITE, RecallStream


def history(env: RecallStream, steps: int) -> dict[str, Tensor]:
    """Fields of the world and what is seen, [T, B, ...]."""
    observation = env.reset()["observation"]
    fields: dict[str, list[Tensor]] = {"observation": [observation]}
    for _ in range(steps):
        for key in ("operation", "key", "value", "age", "time"):
            fields.setdefault(key, []).append(getattr(env.state.world, key))
        step = env.step(torch.zeros(env.num_lives, dtype=torch.int64))
        fields["observation"].append(step.observation["observation"])
    return {key: torch.stack(values[:steps]) for key, values in fields.items()}


def test_every_key_is_introduced_and_then_re_bound_exactly_once_per_period() -> None:
    env = RecallStream(16, seed=0, keys_per_group=(2, 4, 3), base=10)
    seen = history(env, 9 + 2000)
    assert seen["operation"][:9].eq(WRITE).all()
    for life in range(16):
        assert sorted(seen["key"][:9, life].tolist()) == list(range(9))
        for key in range(9):
            period = 10 if key < 2 else 100 if key < 6 else 1000
            writes = ((seen["operation"][9:, life] == WRITE) & (seen["key"][9:, life] == key)).nonzero()[:, 0]
            assert len(writes) == 2000 // period
            assert writes.diff().eq(period).all()


def test_a_query_is_answered_by_the_last_binding_shown_and_its_age_is_the_time_since_then() -> None:
    env = RecallStream(8, seed=1, keys_per_group=(1, 4, 3), values=5, filler=0.3)
    seen = history(env, 600)
    for life in range(8):
        bound: dict[int, tuple[int, int]] = {}
        for t in range(600):
            operation, key, value = (int(seen[field][t, life]) for field in ("operation", "key", "value"))
            if operation == WRITE:
                bound[key] = (value, t)
                assert int(seen["age"][t, life]) == 0
            elif operation == QUERY:
                assert (value, t - int(seen["age"][t, life])) == bound[key]
            else:
                assert key >= env.num_keys


def test_the_observation_shows_operation_key_and_value_and_hides_the_value_of_a_query() -> None:
    env = RecallStream(8, seed=1, keys_per_group=(1, 4), values=5, filler=0.3, filler_keys=3)
    seen = history(env, 100)
    operation, key, value = seen["observation"].split([3, 8, 5], dim=2)
    assert operation.argmax(2).equal(seen["operation"])
    assert operation.sum(2).eq(1).all()
    assert key.argmax(2).equal(seen["key"])
    assert key.sum(2).eq(1).all()
    asked = seen["operation"] == QUERY
    assert value[asked].eq(0).all()
    assert value[~asked].argmax(1).equal(seen["value"][~asked])


def test_conjunctive_keys_are_known_by_a_pair_of_codes_only() -> None:
    env = RecallStream(8, seed=1, keys_per_group=(1, 9, 6), conjunctive=True)
    assert env.key_size == 8
    seen = history(env, 500)
    pairs = seen["observation"][..., 3:11].reshape(500, 8, 2, 4)
    assert pairs.sum(3).eq(1).all()
    codes = pairs.argmax(3)
    assert (codes[..., 0] * 4 + codes[..., 1]).equal(seen["key"])
    assert len({tuple(code) for code in codes.flatten(0, 1).tolist()}) == 16


def test_queries_ask_for_each_group_equally_often_and_values_are_uniform() -> None:
    env = RecallStream(256, seed=2, keys_per_group=(1, 4, 8), values=4)
    seen = history(env, 300)
    asked = seen["operation"] == QUERY
    group = torch.tensor([0] + [1] * 4 + [2] * 8)[seen["key"][asked]]
    shares = group.bincount(minlength=3) / len(group)
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    written = seen["value"][seen["operation"] == WRITE]
    assert (written.bincount(minlength=4) / len(written)).tolist() == pytest.approx([0.25] * 4, abs=0.012)


def test_fillers_take_their_share_of_the_steps_without_a_write() -> None:
    env = RecallStream(256, seed=2, keys_per_group=(1, 4, 8), filler=0.4)
    seen = history(env, 213)["operation"][13:]
    free = seen != WRITE
    assert ((seen == FILLER).sum() / free.sum()).item() == pytest.approx(0.4, abs=0.01)
    assert (seen == QUERY).double().mean().item() == pytest.approx(env.query_rate, abs=0.005)


def remember(window: int, values: int, seed: int) -> Policy:
    """A perfect memory of the last ``window`` steps, which guesses beyond."""
    generator = torch.Generator().manual_seed(seed)

    def act(observation: dict[str, Tensor], privileged: object) -> Tensor:
        fields: dict[str, Tensor] = privileged  # type: ignore[assignment]
        guess = torch.randint(values, fields["age"].shape, generator=generator)
        return torch.where(fields["age"] <= window, fields["oracle_action"], guess)

    return act


@pytest.mark.parametrize("window", [5, 64, 300])
def test_a_memory_of_the_last_w_steps_scores_its_closed_form(window: int) -> None:
    env = RecallStream(64, seed=3, keys_per_group=(1, 4, 8), values=8)
    measured = measure(env, remember(window, 8, seed=0), steps=500, per="step", burn_in=1013)
    score = env.references.score(measured.mean)
    error = measured.standard_error / env.references.oracle
    assert abs(score - env.window_score(window)) <= 3 * error + 0.002


def test_the_published_windows_are_reproduced() -> None:
    env = RecallStream(1, 0, keys_per_group=(1, 4, 8, 8, 8, 8))
    windows = {64: 0.285, 512: 0.428, 4096: 0.576, 100_000: 0.850, 1_000_000: 1.0}
    for window, score in windows.items():
        assert env.window_score(window) == pytest.approx(score, abs=0.002)
    assert 1 - env.query_rate == pytest.approx(0.15, abs=0.002)
    four_each = RecallStream(1, 0, keys_per_group=(4,) * 6)
    assert 1 - four_each.query_rate == pytest.approx(0.444, abs=0.001)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys_per_group": []}, r"recall_stream: keys_per_group=\[\] is empty"),
        (
            {"keys_per_group": [9, 1, 1]},
            r"keys_per_group \(group 1\)=9 is not allowed; allowed: an integer from 1 to 8",
        ),
        (
            {"keys_per_group": [1, 11]},
            r"keys_per_group \(group 2\)=11 is not allowed; allowed: an integer from 1 to 10",
        ),
        ({"keys_per_group": [1] * 5, "base": 100_000}, "the period 100000.5 is too long"),
        ({"filler": -0.1}, "filler=-0.1 is not allowed"),
        ({"values": 1}, "values=1 is not allowed"),
        ({"base": 1}, "base=1 is not allowed"),
    ],
)
def test_options_out_of_range_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "recall_stream", "num_lives": 2, "seed": 0, **options})
