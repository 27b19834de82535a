"""The MiniGrid room that never resets, whose rewarded colour is hidden and switches."""

import io
import math
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from minigrid.core.world_object import Ball

from lifelong.envs import BatchedEnv, make_env
from lifelong.envs.gymnasium_env import GymnasiumEnv
from lifelong.envs.switch_world import ID, PICK_UP, SwitchWorldEnv
from lifelong.envs.switch_world_players import (
    Eliminator,
    Oracle,
    UniformPicks,
    measure_player,
    measure_random,
)
from lifelong.envs.switch_world_references import MEASURED
from lifelong.envs.switch_world_ways import shortest_way


def make(num_lives: int = 2, seed: int = 0, **options: Any) -> BatchedEnv:
    return make_env({"name": "switch_world", "num_lives": num_lives, "seed": seed, **options})


def room(seed: int = 0, **options: Any) -> SwitchWorldEnv:
    environment = SwitchWorldEnv(**options)
    environment.reset(seed=seed)
    return environment


def walk_to(environment: SwitchWorldEnv, colour: int) -> float:
    """Walk to the ball of a colour and pick it up; what that pays."""
    way = shortest_way(environment, {cell for cell, other in environment.balls().items() if other == colour})
    assert way is not None
    rewards = [environment.step(action)[1] for action in way]
    assert not any(rewards[:-1])
    return rewards[-1]


def test_a_ball_pays_by_its_colour_and_appears_elsewhere() -> None:
    environment = room(hazard=0.0)
    for _ in range(30):
        for colour in range(4):
            before = {c: cell for cell, c in environment.balls().items()}
            right = colour == environment.rewarded
            assert walk_to(environment, colour) == (1.0 if right else -1.0)
            after = {c: cell for cell, c in environment.balls().items()}
            assert after[colour] != before[colour]
            assert len(after) == 4
            assert {c: cell for c, cell in after.items() if c != colour} == {
                c: cell for c, cell in before.items() if c != colour
            }
    assert (environment.good, environment.bad) == (30, 90)


def test_nothing_happens_where_no_ball_is_picked_up_and_a_life_never_ends() -> None:
    environment = room(size=5, colours=2)
    for action in np.random.default_rng(0).integers(4, size=1500):
        facing = isinstance(environment.grid.get(*environment.front_pos), Ball)
        _, reward, terminated, truncated, info = environment.step(int(action))
        assert (reward != 0) == (facing and action == PICK_UP)
        assert not terminated
        assert not truncated
        assert environment.carrying is None
        assert info["privileged"]["good"] + info["privileged"]["bad"] == environment.good + environment.bad
    assert environment.good + environment.bad > 20


def test_noisy_feedback_pays_the_opposite_as_often_as_asked() -> None:
    environment = room(hazard=0.0, size=5, colours=3, feedback=0.8)
    environment.gen_obs = dict  # nothing looks
    honest = []
    for action in np.random.default_rng(0).integers(4, size=6000):
        good = environment.good
        reward = environment.step(int(action))[1]
        if reward:
            honest.append((reward > 0) == (environment.good > good))
    assert len(honest) > 150
    assert abs(np.mean(honest) - 0.8) < 4 * (0.8 * 0.2 / len(honest)) ** 0.5


@pytest.mark.parametrize("switching", ["markov", "hazard"])
def test_the_colour_switches_as_often_as_asked_recurs_and_does_not_depend_on_what_is_done(switching: str) -> None:
    def colours(policy: int) -> tuple[list[int], list[int]]:
        environment = SwitchWorldEnv(hazard=0.05, switching=switching)  # type: ignore[arg-type]
        environment.gen_obs = dict
        environment.reset(seed=1)
        actions = np.random.default_rng(policy).integers(4, size=4000)
        told = [environment.step(int(action))[4]["privileged"] for action in actions]
        return [one["rewarded_colour"] for one in told], [one["steps_since_change"] for one in told]

    seen, since = colours(0)
    assert (seen, since) == colours(1)
    switches = [t for t in range(1, 4000) if seen[t] != seen[t - 1]]
    assert all((since[t] == 0) == (t in set(switches)) for t in range(1, 4000))
    probability = 0.05 if switching == "markov" else 0.05 * 3 / 4
    assert abs(len(switches) / 4000 - probability) < 4 * math.sqrt(probability / 4000)
    assert set(seen) == {0, 1, 2, 3}


def test_a_saved_batch_goes_on_bit_for_bit_and_life_i_is_the_same_in_every_batch() -> None:
    env = make(num_lives=3, seed=1, hazard=0.05, life_steps=150)
    few = make(num_lives=1, seed=1, hazard=0.05, life_steps=150)
    env.reset()
    few.reset()
    actions = torch.randint(4, (400, 3), generator=torch.Generator().manual_seed(0))
    for action in actions[:200]:
        step, alone = env.step(action), few.step(action[:1])
        assert torch.equal(step.observation["image"][:1], alone.observation["image"])
        assert torch.equal(step.reward[:1], alone.reward)
    buffer = io.BytesIO()
    torch.save(env.state_dict(), buffer)
    buffer.seek(0)
    other = make(num_lives=3, seed=9, hazard=0.05, life_steps=150)
    other.load_state_dict(torch.load(buffer, weights_only=False))
    for action in actions[200:]:
        left, right = env.step(action), other.step(action)
        assert torch.equal(left.observation["image"], right.observation["image"])
        assert torch.equal(left.reward, right.reward)
        assert torch.equal(left.truncated, right.truncated)
        assert all(torch.equal(value, right.privileged[key]) for key, value in left.privileged.items())


def test_the_agent_sees_the_room_and_nothing_of_what_is_hidden() -> None:
    env = make(view_size=5)
    assert set(env.reset()) == {"image"}
    step = env.step(torch.tensor([0, PICK_UP]))
    assert step.observation["image"].shape == (2, 5, 5, 3)
    assert set(step.privileged) == {"rewarded_colour", "steps_since_change", "good", "bad"}
    assert env.lifelong


def test_it_is_a_gymnasium_environment_of_its_own() -> None:
    env = gymnasium.make("lifelong/SwitchWorld-v0", colours=3)
    check_env(env.unwrapped, skip_render_check=True)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation)
    again = gymnasium.make("lifelong/SwitchWorld-v0", colours=3)
    assert np.array_equal(again.reset(seed=0)[0]["image"], observation["image"])
    copy = pickle.loads(pickle.dumps(env.unwrapped))
    assert np.array_equal(copy.step(2)[0]["image"], env.step(2)[0]["image"])
    assert info["privileged"]["good"] == 0


def test_the_shortest_way_is_shortest_and_goes_round_balls() -> None:
    environment = room(seed=3)
    for cell in list(environment.balls()):
        environment.grid.set(*cell, None)
    environment.agent_pos, environment.agent_dir = (1, 1), 0
    environment.grid.set(4, 1, Ball("red"))
    assert shortest_way(environment, {(4, 1)}) == [2, 2, PICK_UP]
    environment.grid.set(2, 1, Ball("blue"))
    assert shortest_way(environment, {(4, 1)}) == [1, 2, 0, 2, 2, 2, 0, PICK_UP]
    environment.grid.set(1, 2, Ball("green"))
    assert shortest_way(environment, {(4, 1)}) is None


def test_players_stand_in_order_and_uniform_picks_are_right_once_in_k() -> None:
    dials = {"size": 6, "colours": 3, "hazard": 0.005}
    players = {kind: measure_player(kind, lives=4, steps=800, **dials) for kind in (UniformPicks, Eliminator, Oracle)}
    random = measure_random(lives=4, steps=800, **dials)
    assert players[UniformPicks].mean < random.mean < players[Eliminator].mean < players[Oracle].mean
    environment = room(**dials)
    environment.gen_obs = dict  # nothing looks
    player = UniformPicks(environment)
    player.play(1000)
    picks = environment.good + environment.bad
    assert abs((environment.good - environment.bad) / picks - (2 / 3 - 1)) < 4 / picks**0.5


def test_the_filter_of_the_eliminator_is_exact() -> None:
    environment = room(colours=3, hazard=0.1, feedback=0.9)
    player = Eliminator(environment)
    joint = {(colour,): 1 / 3 for colour in range(3)}  # every history of rewarded colours, and its probability
    for colour, reward in [(0, -1.0), (1, 1.0), (1, 1.0), (2, -1.0), (1, -1.0)]:
        player.learn(colour, reward)
        player.passed()
        weighed = {h: p * (0.9 if (h[-1] == colour) == (reward > 0) else 0.1) for h, p in joint.items()}
        joint = {(*h, c): p * (0.9 if c == h[-1] else 0.05) for h, p in weighed.items() for c in range(3)}
    total = sum(joint.values())
    exact = [sum(p for h, p in joint.items() if h[-1] == colour) / total for colour in range(3)]
    assert np.allclose(player.belief, exact, atol=1e-12)


@pytest.mark.parametrize("dials", list(MEASURED), ids=str)
def test_stored_references_are_what_players_get_and_the_memoryless_one_is_low(dials: tuple[Any, ...]) -> None:
    size, colours, hazard, switching, feedback = dials
    options = {"size": size, "colours": colours, "hazard": hazard, "switching": switching, "feedback": feedback}
    references = make(num_lives=1, **options).references
    assert references is not None
    assert references.memoryless is not None
    assert references.ideal_learner is not None
    assert references.score(references.memoryless) < 0.3 < references.score(references.ideal_learner)
    found = measure_player(Oracle, lives=6, steps=600, seed=7, **options)
    stored = MEASURED[dials].oracle
    assert abs(found.mean - stored.rate) < 4 * math.hypot(found.standard_error, stored.error)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 4}, r"size=4 is not allowed; allowed: an integer from 5 to 100"),
        ({"colours": 7}, r"colours=7 is not allowed; allowed: an integer from 2 to 6"),
        ({"hazard": 1.5}, r"hazard=1.5 is no probability"),
        ({"feedback": -0.1}, r"feedback=-0.1 is no probability"),
        ({"switching": "markow"}, r"switching='markow' is unknown; allowed: markov, hazard"),
        ({"view_size": 4}, r"view_size=4 is not allowed; allowed: odd"),
        ({"colors": 3}, r"has no option 'colors'.*did you mean 'colours'"),
    ],
)
def test_a_mistake_in_the_config_is_one_line_that_says_what_is_allowed(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


def test_an_action_out_of_range_is_refused_by_the_plain_environment() -> None:
    with pytest.raises(ValueError, match=r"action 4 is out of range; allowed: 0 to 3"):
        room().step(4)


def test_the_oracles_action_is_told_on_request_and_translated_by_a_remap() -> None:
    plain = make_env({"name": "switch_world", "num_lives": 1, "seed": 0})
    plain.reset()
    assert "oracle_action" not in plain.step(torch.tensor([0])).privileged
    env = make_env({"name": "switch_world", "num_lives": 4, "seed": 0, "hazard": 0.01, "tell_oracle": True})
    assert isinstance(env, GymnasiumEnv)
    env.reset()
    assert sum(float(env.step(env.privileged["oracle_action"]).reward.mean()) for _ in range(200)) > 200 * 0.12
    remap = {"name": "action_remap", "schedule": {"name": "markov", "regimes": 5, "hazard": 0.05}}
    wrapped = make_env(
        {
            **{"name": "minigrid", "id": ID, "num_lives": 4, "seed": 0, "reset_memory": "life", "wrappers": [remap]},
            "kwargs": {"tell_oracle": True},
        }
    )
    assert isinstance(wrapped, GymnasiumEnv)
    wrapped.reset()
    assert sum(float(wrapped.step(wrapped.privileged["oracle_action"]).reward.mean()) for _ in range(200)) > 200 * 0.12
