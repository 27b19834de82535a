import itertools

import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.base import Observation
from lifelong.envs.drift_torus import (
    WIRINGS,
    DriftTorus,
    elimination_rate,
    oracle_rate,
    random_rate,
    simulate_elimination_rate,
)
from lifelong.envs.drift_torus_learners import MemorylessTorus
from lifelong.envs.measurement import estimate, measure, oracle_policy, random_policy

MOVES = [(1, 0), (-1, 0), (0, 1), (0, -1)]


def goal_shown(observation: Tensor, n: int) -> list[list[int]]:
    return torch.stack([observation[:, :n].argmax(1), observation[:, n : 2 * n].argmax(1)], 1).tolist()


def test_an_action_makes_the_move_of_its_gears_wiring_and_the_goal_pays_and_jumps() -> None:
    n, gears, lives = 5, 3, 32
    env = DriftTorus(lives, seed=0, size=n, gears=gears, hazard=0.05)
    observation = env.reset()["observation"]
    reached = 0
    for action in torch.randint(4, (200, lives), generator=torch.Generator().manual_seed(0)):
        world = env.state.world
        before = goal_shown(observation, n)
        assert before == world.goal.tolist()
        assert observation[:, 2 * n :].argmax(1).equal(world.gear)
        assert observation.sum(1).eq(3).all()
        step = env.step(action)
        observation = step.observation["observation"]
        after = goal_shown(observation, n)
        for life in range(lives):
            dx, dy = MOVES[WIRINGS[int(world.wiring[life, world.gear[life]])][int(action[life])]]
            expected = [(before[life][0] - dx) % n, (before[life][1] - dy) % n]
            assert float(step.reward[life]) == float(expected == [0, 0])
            assert after[life] == expected if expected != [0, 0] else after[life] != [0, 0]
            reached += expected == [0, 0]
    assert reached > 100
    assert env.lifelong


def test_new_goals_are_uniform_over_the_other_cells_and_gears_over_all() -> None:
    env = DriftTorus(20_000, seed=0, size=3, gears=2)
    world = env.initial_state().world
    cell = world.goal[:, 0] * 3 + world.goal[:, 1]
    counts = (cell * 2 + world.gear).bincount(minlength=18)
    assert counts[:2].eq(0).all()
    expected = 20_000 / 16
    assert float(((counts[2:] - expected) ** 2 / expected).sum()) < 37.7  # 99.9 % quantile, 15 degrees of freedom


def test_the_wirings_of_all_gears_are_redrawn_at_the_hazard_and_only_then() -> None:
    env = DriftTorus(256, seed=0, hazard=0.02)
    env.reset()
    changes, same = [], []
    for _ in range(400):
        before = env.state.world.wiring
        step = env.step(torch.zeros(256, dtype=torch.int64))
        changed = step.privileged["changed"]
        kept = (env.state.world.wiring == before).double()
        assert kept[~changed].eq(1).all()
        same.append(kept[changed].flatten())
        changes.append(changed.double())
        assert (step.privileged["steps_since_change"][changed] == 0).all()
    assert estimate(torch.stack(changes).mean(0)).agrees_with(0.02)
    assert estimate(torch.cat(same)).agrees_with(1 / 24)


@pytest.mark.parametrize("size", [3, 4, 5, 7])
def test_random_and_oracle_earn_their_closed_forms_on_every_size(size: int) -> None:
    def build() -> DriftTorus:
        return DriftTorus(256, seed=size, size=size)

    assert measure(build(), oracle_policy, 300, "step", burn_in=50).agrees_with(oracle_rate(size))
    assert measure(build(), random_policy(4, seed=0), 400, "step", burn_in=50).agrees_with(random_rate(size))


def test_the_published_rates_are_reproduced() -> None:
    for size, random, oracle in (
        (5, 0.03158, 0.400),
        (7, 0.01396, 0.2857),
        (9, 0.00766, 0.2222),
        (11, 0.00476, 0.1818),
    ):
        assert random_rate(size) == pytest.approx(random, abs=1e-5)
        assert oracle_rate(size) == pytest.approx(oracle, abs=1e-4)
    n = 4  # even: the mean distance by counting
    distances = [min(x, n - x) + min(y, n - y) for x, y in itertools.product(range(n), repeat=2) if x or y]
    assert oracle_rate(n) == pytest.approx(len(distances) / sum(distances))


@pytest.mark.parametrize(("gears", "hazard"), [(1, 0.05), (2, 0.01)])
def test_the_exact_rate_of_a_policy_without_memory_is_what_it_earns(gears: int, hazard: float) -> None:
    size = 3
    torus = MemorylessTorus(size, gears, hazard)
    generator = torch.Generator().manual_seed(0)
    policy = (2 * torch.randn(gears, size**2 - 1, 4, generator=generator, dtype=torch.float64)).softmax(2)

    def act(observation: Observation, privileged: object) -> Tensor:
        seen = observation["observation"]
        x, y = torch.tensor(goal_shown(seen, size)).T
        chances = policy[seen[:, 2 * size :].argmax(1), x * size + y - 1]
        return chances.multinomial(1, generator=generator)[:, 0]

    env = DriftTorus(512, seed=1, size=size, gears=gears, hazard=hazard)
    measured = measure(env, act, 600, "step", burn_in=100)
    assert measured.agrees_with(float(torus.rate(policy))), measured


def test_the_uniform_policy_without_memory_has_the_closed_form_of_the_random_walk() -> None:
    uniform = torch.full((1, 24, 4), 0.25, dtype=torch.float64)
    assert float(MemorylessTorus(5, 1, 0.001).rate(uniform)) == pytest.approx(random_rate(5), abs=1e-12)


def test_with_one_gear_the_torus_remembers_for_the_agent_and_with_two_it_does_not() -> None:
    one, two = DriftTorus(1, 0, gears=1).references, DriftTorus(1, 0, gears=2).references
    assert one.memoryless is not None
    assert two.memoryless is not None
    assert one.score(one.memoryless) > 0.3
    assert two.score(two.memoryless) < 0.3
    found, _ = MemorylessTorus(5, 1, 0.001).best(starts=1, iterations=25, seed=1)
    assert one.score(found) > 0.15  # gradient ascent gets there from an arbitrary start
    assert found <= one.memoryless + 1e-5


def test_the_stored_learner_of_the_default_options_agrees_with_a_new_simulation() -> None:
    stored, new = elimination_rate(5, 2, 0.001), simulate_elimination_rate(5, 2, 0.001, lives=32, seed=7)
    assert abs(stored.mean - new.mean) <= 3 * (stored.standard_error**2 + new.standard_error**2) ** 0.5
    references = DriftTorus(1, 0).references
    assert 0.98 < references.score(stored.mean) < 1


def test_gusts_make_one_more_move_in_a_direction_that_wanders_whatever_the_agent_does() -> None:
    n, lives, wind = 7, 40, 0.3
    env, other = (DriftTorus(lives, seed=0, size=n, wind=wind) for _ in range(2))
    env.reset(), other.reset()
    gusts = 0
    for action in torch.randint(4, (100, lives), generator=torch.Generator().manual_seed(0)):
        world = env.state.world
        step = env.step(action)
        other.step(3 - action)
        assert env.state.world.wind.equal(other.state.world.wind)
        for life in range(lives):
            (dx, dy), (gx, gy) = (
                MOVES[WIRINGS[int(world.wiring[life, world.gear[life]])][int(action[life])]],
                MOVES[int(world.wind[life])],
            )
            x, y = world.goal[life].tolist()
            calm, windy = [(x - dx) % n, (y - dy) % n], [(x - dx - gx) % n, (y - dy - gy) % n]
            after = env.state.world.goal[life].tolist()
            if step.reward[life] == 0:
                assert after in (calm, windy)
                gusts += after == windy
            else:
                assert [0, 0] in (calm, windy)
    assert gusts / (100 * lives) == pytest.approx(wind, abs=0.04)
    assert 0.005 < float((env.state.world.wind - world.wind).abs().mean()) < 0.015
    references = env.references
    assert references.random < 0.03 < 0.1 < references.oracle < oracle_rate(n)


@pytest.mark.parametrize("signal", ["flag", "cue", "always"])
def test_the_signal_tells_of_the_wirings(signal: str) -> None:
    env = DriftTorus(16, seed=0, size=3, gears=2, hazard=0.1, signal=signal)
    told = env.reset()["observation"][:, 8:]
    for _ in range(50):
        world = env.state.world
        fresh = (world.steps_since_change == 0)[:, None]
        moves = torch.tensor(WIRINGS)[world.wiring]  # [B, gear, action]
        code = torch.nn.functional.one_hot(moves, 4).flatten(1).float()
        assert told.equal({"flag": fresh.float(), "cue": code * fresh, "always": code}[signal])
        told = env.step(torch.zeros(16, dtype=torch.int64)).observation["observation"][:, 8:]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("size", 2, "drift_torus: size=2 is not allowed; allowed: an integer from 3"),
        ("gears", 0, "drift_torus: gears=0 is not allowed; allowed: an integer of at least 1"),
        ("hazard", -0.5, "drift_torus: hazard=-0.5 is no probability; allowed: 0 to 1"),
        ("wind", 2.0, "drift_torus: wind=2.0 is not allowed; allowed: 0 to 0.5"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "drift_torus", "num_lives": 2, "seed": 0, option: value})
