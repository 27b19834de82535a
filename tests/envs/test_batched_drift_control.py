import itertools
import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from lifelong.envs import make_env
from lifelong.envs.control_systems import SYSTEMS
from lifelong.envs.drift_control import EPISODE_STEPS, DriftControl, drift_control_levels, simulate_levels
from lifelong.envs.drift_control_learners import MemorylessPolicy, level, mean_return, search_memoryless
from lifelong.envs.measurement import estimate, measure, oracle_policy, random_policy

IDS = {"cartpole": "CartPole-v1", "acrobot": "Acrobot-v1"}
both_systems = pytest.mark.parametrize("system", ["cartpole", "acrobot"])


def build(lives: int = 8, seed: int = 0, **options: Any) -> DriftControl:
    return DriftControl(lives, seed, **options)


@both_systems
def test_the_physics_is_gymnasiums_step_for_step(system: str) -> None:
    physics, theirs = SYSTEMS[system], gymnasium.make(IDS[system]).unwrapped
    random = np.random.default_rng(0)
    ends = 0
    for episode in range(8):
        theirs.reset(seed=episode)
        held = int(random.integers(len(physics.forces)))
        if system == "acrobot":  # it gets nowhere by itself: begin fast
            theirs.state = np.array([0.5, -0.5, 3.0 * episode, -5.0 * episode])
        ours = torch.tensor(np.array(theirs.state, dtype=np.float64))[None]
        for _ in range(60):
            held = int(random.integers(len(physics.forces))) if random.random() < 0.3 else held
            seen, _, over, _, _ = theirs.step(held)
            ours = physics.move(ours, torch.tensor([physics.forces[held]], dtype=torch.float64))
            assert ours[0].numpy() == pytest.approx(np.array(theirs.state), abs=1e-9)
            assert bool(physics.over(ours)) == over
            if system == "acrobot":
                both = torch.cat([physics.positions(ours), physics.velocities(ours)], dim=1)[0]
                assert both.numpy() == pytest.approx(seen / [1, 1, 1, 1, 4 * np.pi, 9 * np.pi], abs=1e-6)
            else:
                assert physics.positions(ours)[0].numpy() == pytest.approx(
                    seen[[0, 2]] / [2.4, math.radians(12)], abs=1e-6
                )
            ends += over
            if over:
                break
    assert ends > 1


@both_systems
@pytest.mark.parametrize("delay", [0, 2])
def test_an_action_applies_the_force_of_the_wiring_in_which_it_was_chosen_so_many_steps_later(
    system: str, delay: int
) -> None:
    lives, rewired = 16, 0
    env = build(lives, system=system, delay=delay, hazard=0.2)
    physics = env.system
    wirings = list(itertools.permutations(range(env.num_actions)))
    env.reset()
    under_way = [[0.0] * delay for _ in range(lives)]
    for action in torch.randint(env.num_actions, (60, lives), generator=torch.Generator().manual_seed(0)):
        world = env.state.world
        step = env.step(action)
        for life in range(lives):
            under_way[life].append(physics.forces[wirings[int(world.wiring[life])][int(action[life])]])
            force = torch.tensor([under_way[life].pop(0)], dtype=torch.float64)
            expected = physics.move(world.state[life : life + 1], force)
            if step.soft_reset[life]:
                under_way[life] = [0.0] * delay
                assert env.state.world.episode_step[life] == 0
            else:
                assert env.state.world.state[life].equal(expected[0])
            assert bool(step.soft_reset[life]) == bool(physics.over(expected))
            assert float(step.reward[life]) == float(bool(physics.over(expected)) == (system == "acrobot"))
        rewired += int(step.privileged["changed"].sum())
    assert rewired > 100


@both_systems
def test_the_wiring_becomes_another_one_at_the_hazard_and_through_the_ends_of_episodes(system: str) -> None:
    env = build(256, system=system, hazard=0.05)
    env.reset()
    changes, to, resets = [], [], 0
    for action in torch.randint(env.num_actions, (200, 256), generator=torch.Generator().manual_seed(0)):
        before = env.state.world.wiring
        step = env.step(action)
        after, changed = env.state.world.wiring, step.privileged["changed"]
        assert (after != before).equal(changed)
        assert (step.privileged["steps_since_change"] == 0)[changed].all()
        to.append((after - before)[changed].remainder(math.factorial(env.num_actions)))
        changes.append(changed.double())
        resets += int(step.soft_reset.sum())
    assert estimate(torch.stack(changes).mean(0)).agrees_with(0.05)
    others = math.factorial(env.num_actions) - 1
    for shift in range(1, others + 1):
        assert estimate(torch.cat(to) == shift).agrees_with(1 / others, standard_errors=3.5)
    assert resets > 1000 or system == "acrobot"
    assert env.lifelong


def test_a_pole_that_stands_pays_and_after_500_steps_the_world_starts_again() -> None:
    env = build(4, hazard=0.01)
    env.reset()
    for t in range(1, 2 * EPISODE_STEPS + 1):
        step = env.step(env.privileged["oracle_action"])
        assert step.reward.eq(1).all()
        assert step.soft_reset.eq(t % EPISODE_STEPS == 0).all()
        assert not (step.terminated | step.truncated).any()


@both_systems
def test_velocities_are_seen_on_request_only(system: str) -> None:
    masked, shown = build(system=system), build(system=system, velocities=True)
    first, more = masked.reset()["observation"], shown.reset()["observation"]
    positions = masked.system.num_positions
    assert more[:, :positions].equal(first)
    assert more.shape[1] == positions + 2
    world = masked.state.world
    faster = world._replace(state=world.state + torch.tensor([0, 0.1, 0, 0.1] if positions == 2 else [0, 0, 0.1, 0.1]))
    assert masked.observe(faster)["observation"].equal(first)
    assert not shown.observe(faster)["observation"].equal(more)


@both_systems
def test_the_oracle_foresees_the_forces_under_way(system: str) -> None:
    env = build(32, system=system, delay=2)
    measured = measure(env, oracle_policy, 600, "episode" if system == "cartpole" else "step", burn_in=100)
    assert measured.mean > 0.9 * drift_control_levels(system, 0.01, 0).oracle.mean


@both_systems
def test_the_stored_levels_agree_with_a_new_simulation(system: str) -> None:
    stored, new = drift_control_levels(system, 0.01, 0), simulate_levels(system, 0.01, 0, lives=64, steps=500, seed=5)
    for old, fresh in zip(stored[:2], new[:2], strict=True):
        assert abs(old.mean - fresh.mean) <= 3 * math.hypot(old.standard_error, fresh.standard_error) + 1e-6


def test_memory_of_two_steps_and_of_the_wiring_is_enough_for_the_whole_score() -> None:
    references = build(1).references
    assert references.ideal_learner is not None
    assert references.score(references.ideal_learner) > 0.98


@both_systems
def test_a_short_search_without_memory_finds_no_more_than_the_stored_best(system: str) -> None:
    def make(lives: int, seed: int) -> DriftControl:
        return build(lives, seed, system=system)

    policy, weights = search_memoryless(make, "linear", True, generations=2, policies=16, lives=8, steps=100)
    found, references = level(make, policy, weights, lives=32, steps=100), make(1, 0).references
    assert references.last_transition is not None
    assert found.mean <= references.last_transition + 3 * found.standard_error


def test_a_policy_without_memory_prefers_what_its_weights_say() -> None:
    env = build(1)
    generator = torch.Generator().manual_seed(0)
    token = torch.tensor([[0.5, -1.0, 1.0], [0.5, 1.0, 1.0]])  # x, theta, 1
    linear = MemorylessPolicy(env, "linear", last_transition=False, greedy=True)
    weights = torch.tensor([[0.0, 0.0, 0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.0, 0.0, 0.0]])  # theta for action 1
    assert linear.act(weights, token[[0, 1, 0, 1]], generator).tolist() == [0, 1, 1, 0]
    quadratic = MemorylessPolicy(env, "quadratic", last_transition=False, greedy=True)
    product = torch.zeros(1, 6, 2)
    product[0, 1, 1] = 1.0  # x theta for action 1
    assert quadratic.act(product.reshape(1, -1), token, generator).tolist() == [0, 1]
    full = MemorylessPolicy(env, "linear", last_transition=True, greedy=True)
    now, before = torch.tensor([[0.3, 0.2]]), torch.tensor([[0.1, 0.2]])
    seen = full.token(before, torch.tensor([1]), torch.tensor([1.0]), now)
    assert seen[0].tolist() == pytest.approx([0.3, 0.2, 2.0, 0.0, 0, 1, 1, 1])


def test_the_mean_return_of_an_episode_is_all_rewards_over_all_ends() -> None:
    found = mean_return(torch.tensor([[10.0, 20.0, 30.0], [1.0, 2.0, 3.0]]))
    assert found == (10.0, 0.0)
    rewards = torch.tensor([[3.0, 5.0], [1.0, 1.0]])
    assert mean_return(rewards) == (4.0, pytest.approx(1.0))


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("system", "pendulum", "drift_control: system='pendulum' is unknown; allowed: cartpole, acrobot"),
        ("hazard", 1.5, "drift_control: hazard=1.5 is no probability; allowed: 0 to 1"),
        ("delay", -1, "drift_control: delay=-1 is not allowed; allowed: an integer from 0 to 1000"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "drift_control", "num_lives": 2, "seed": 0, option: value})


def test_random_pushes_earn_the_mean_return_of_gymnasiums_cartpole_but_for_the_fall() -> None:
    assert measure(build(256), random_policy(2, 0), 300, "episode", burn_in=100).agrees_with(21.2, 4.0)
    assert measure(build(16), oracle_policy, 600, "episode").mean == EPISODE_STEPS
