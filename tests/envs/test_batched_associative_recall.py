import itertools
from collections import Counter

import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.associative_recall import AssociativeRecall
from lifelong.envs.associative_recall_references import order_free_return, order_free_return_with_feedback
from lifelong.envs.measurement import estimate


def episode(env: AssociativeRecall, first: Tensor, answers: Tensor) -> tuple[Tensor, Tensor]:
    """Observations [2n, B, D] and rewards [2n, B] of an episode that begins with ``first``, answering ``answers`` [2n,
    B]."""
    observations, rewards = [first], []
    for answer in answers:
        step = env.step(answer)
        observations.append(step.observation["observation"])
        rewards.append(step.reward)
    return torch.stack(observations[:-1]), torch.stack(rewards)


def test_distinct_keys_are_shown_with_values_then_each_is_asked_for_once_and_the_right_answer_is_its_value() -> None:
    n, values, keys, lives = 5, 3, 7, 64
    env = AssociativeRecall(lives, seed=0, pairs=n, values=values, keys=keys)
    answers = torch.randint(values, (2 * n, lives), generator=torch.Generator().manual_seed(0))
    seen, rewards = episode(env, env.reset()["observation"], answers)
    operation, key, value = seen.split([2, keys, values], dim=2)
    assert operation[:n, :, 0].eq(1).all()
    assert operation[n:, :, 1].eq(1).all()
    assert operation.sum(2).eq(1).all()
    assert key.sum(2).eq(1).all()
    assert value[:n].sum(2).eq(1).all()
    assert value[n:].eq(0).all()
    assert rewards[:n].eq(0).all()
    for life in range(lives):
        shown = key[:n, life].argmax(1).tolist()
        asked = key[n:, life].argmax(1).tolist()
        assert len(set(shown)) == n
        assert sorted(shown) == sorted(asked)
        value_of = dict(zip(shown, value[:n, life].argmax(1).tolist(), strict=True))
        expected = [1 / n if value_of[k] == int(a) else -1 / n for k, a in zip(asked, answers[n:, life], strict=True)]
        assert rewards[n:, life].tolist() == pytest.approx(expected)


@pytest.mark.parametrize(("reset_memory", "ends"), [("episode", "terminated"), ("life", "soft_reset")])
def test_the_end_of_an_episode_is_what_reset_memory_says(reset_memory: str, ends: str) -> None:
    env = make_env({"name": "associative_recall", "num_lives": 3, "seed": 0, "pairs": 2, "reset_memory": reset_memory})
    env.reset()
    assert env.lifelong == (reset_memory == "life")
    for t in range(1, 13):
        step = env.step(torch.zeros(3, dtype=torch.int64))
        for flag in ("terminated", "truncated", "soft_reset"):
            assert (getattr(step, flag) == (flag == ends and t % 4 == 0)).all()
        over = t % 4 == 0 and reset_memory == "episode"
        assert (step.final_observation is not None) == over
        if over:
            assert step.final_observation["observation"].eq(0).all()  # type: ignore[index]


def test_a_new_episode_has_new_pairs() -> None:
    env = AssociativeRecall(256, seed=0, pairs=3, reset_memory="life")
    env.reset()
    before = env.state.world
    for _ in range(6):
        env.step(torch.zeros(256, dtype=torch.int64))
    after = env.state.world
    assert after.position.eq(0).all()
    for field in ("keys", "values", "query_order"):
        assert (getattr(before, field) == getattr(after, field)).all(1).double().mean() < 0.3


def test_keys_values_and_query_order_are_uniform_and_independent() -> None:
    env = AssociativeRecall(20_000, seed=0, pairs=2, values=2, keys=3)
    world = env.initial_state().world
    codes = torch.stack(
        [world.keys[:, 0], world.keys[:, 1], world.values[:, 0], world.values[:, 1], world.query_order[:, 0]]
    )
    counts = Counter(map(tuple, codes.T.tolist()))
    assert len(counts) == 6 * 4 * 2
    chi_squared = sum((count - 20_000 / 48) ** 2 / (20_000 / 48) for count in counts.values())
    assert chi_squared < 82.7  # 99.9 % quantile, 47 degrees of freedom


def test_the_age_of_a_query_is_the_number_of_steps_since_its_key_was_shown() -> None:
    n, lives = 4, 16
    env = AssociativeRecall(lives, seed=0, pairs=n)
    keys = [env.reset()["observation"][:, 2 : 2 + env.keys].argmax(1)]
    for t in range(1, 2 * n):
        step = env.step(torch.zeros(lives, dtype=torch.int64))
        keys.append(step.observation["observation"][:, 2 : 2 + env.keys].argmax(1))
        assert step.privileged["query"].eq(t >= n).all()
        for life in range(lives):
            age = int(step.privileged["age"][life])
            assert keys[t - age][life] == keys[t][life]
            assert (age > 0) == (t >= n)


@pytest.mark.parametrize(("pairs", "published"), [(4, 0.061), (8, -0.116), (16, -0.233)])
def test_the_order_free_return_is_the_published_one(pairs: int, published: float) -> None:
    assert order_free_return(pairs, 4) == pytest.approx(published, abs=0.002)  # the published figures are simulated


@pytest.mark.parametrize(("pairs", "values"), [(1, 2), (3, 2), (4, 4), (5, 3)])
def test_the_order_free_return_is_the_mean_over_all_bags(pairs: int, values: int) -> None:
    bags = list(itertools.product(range(values), repeat=pairs))
    most = sum(max(Counter(bag).values()) for bag in bags) / len(bags)
    assert order_free_return(pairs, values) == pytest.approx(2 * most / pairs - 1, abs=1e-12)


def test_answering_the_value_shown_most_often_earns_the_order_free_reference() -> None:
    env = AssociativeRecall(2000, seed=3, pairs=6, values=3, keys=8)
    first = env.reset()["observation"]
    values = env.state.world.values
    mode = torch.nn.functional.one_hot(values, 3).sum(1).argmax(1)
    _, rewards = episode(env, first, mode.expand(12, -1))
    measured = estimate(rewards.sum(0))
    assert env.references.order_free is not None
    assert measured.agrees_with(env.references.order_free), measured


def best_right_by_exhaustion(orders: list[tuple[int, ...]], asked: int) -> float:
    """Most answers right that can be expected when the truth is one of ``orders``, uniformly, from query ``asked``
    on."""
    if asked == len(orders[0]):
        return 0.0
    totals = []
    for answer in {order[asked] for order in orders}:
        right = [order for order in orders if order[asked] == answer]
        wrong = [order for order in orders if order[asked] != answer]
        total = len(right) * (1 + best_right_by_exhaustion(right, asked + 1))
        totals.append(total + (len(wrong) * best_right_by_exhaustion(wrong, asked + 1) if wrong else 0.0))
    return max(totals) / len(orders)


@pytest.mark.parametrize(("pairs", "values"), [(1, 3), (2, 2), (3, 3), (4, 2), (4, 4)])
def test_the_order_free_return_with_feedback_is_the_best_of_all_policies(pairs: int, values: int) -> None:
    bags = list(itertools.product(range(values), repeat=pairs))
    right = sum(best_right_by_exhaustion(list(itertools.permutations(bag)), 0) for bag in bags) / len(bags)
    assert order_free_return_with_feedback(pairs, values) == pytest.approx(2 * right / pairs - 1, abs=1e-12)


def test_references_are_those_of_the_options() -> None:
    references = AssociativeRecall(1, 0, pairs=4, values=4).references
    assert (references.per, references.random, references.memoryless, references.oracle) == ("episode", -0.5, -0.5, 1.0)
    assert references.order_free == pytest.approx(0.0625)
    assert references.notes["order_free_with_feedback"].startswith("0.2949")
    assert AssociativeRecall(1, 0, pairs=16, values=2).references.random == 0.0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("pairs", 0, "associative_recall: pairs=0 is not allowed; allowed: an integer of at least 1"),
        ("values", 1, "associative_recall: values=1 is not allowed; allowed: an integer of at least 2"),
        ("keys", 3, "associative_recall: keys=3 are too few for pairs=4 distinct keys; allowed: 4 or more"),
        ("reset_memory", "never", "associative_recall: reset_memory='never' is unknown; allowed: episode, life"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "associative_recall", "num_lives": 2, "seed": 0, option: value})
