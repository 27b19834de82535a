import math

import pytest
import torch

from lifelong.envs import make_env
from lifelong.envs.forage import Forage, greedy_rate, simulate_greedy_rate
from lifelong.envs.measurement import Policy, measure

MOVES = [(1, 0), (-1, 0), (0, 1), (0, -1)]


def relative(env: Forage) -> list[list[tuple[int, int]]]:
    """Column and row of each object minus the agent's, modulo n, by life."""
    world, n = env.state.world, env.size
    return [
        [((cell // n - x) % n, (cell % n - y) % n) for cell in cells]
        for (x, y), cells in zip(world.agent.tolist(), world.objects.tolist(), strict=True)
    ]


def test_objects_in_the_agents_cell_are_taken_paid_and_come_back_elsewhere() -> None:
    n, kinds, each, lives = 5, 3, 2, 12
    env = Forage(lives, seed=0, size=n, kinds=kinds, objects_per_kind=each, radius=1, period=20)
    env.reset()
    taken = 0
    for action in torch.randint(4, (120, lives), generator=torch.Generator().manual_seed(0)):
        before, regime = relative(env), env.privileged["regime"].tolist()
        step = env.step(action)
        after = relative(env)
        for life in range(lives):
            dx, dy = MOVES[int(action[life])]
            reward = 0
            for thing in range(kinds * each):
                x, y = (before[life][thing][0] - dx) % n, (before[life][thing][1] - dy) % n
                if (x, y) == (0, 0):
                    reward += 1 if regime[life] >> (thing // each) & 1 else -1
                    assert after[life][thing] != (0, 0)
                    taken += 1
                else:
                    assert after[life][thing] == (x, y)
            assert float(step.reward[life]) == reward
    assert taken > 100
    assert env.lifelong


def test_the_view_shows_each_kind_around_the_agent_and_nothing_beyond() -> None:
    n, kinds, each, radius, lives = 7, 2, 4, 2, 8
    env = Forage(lives, seed=1, size=n, kinds=kinds, objects_per_kind=each, radius=radius)
    observation = env.reset()["observation"]
    for action in torch.randint(4, (20, lives), generator=torch.Generator().manual_seed(0)):
        view = observation.reshape(lives, kinds, 5, 5)
        for life in range(lives):
            expected = torch.zeros(kinds, 5, 5)
            for thing, (x, y) in enumerate(relative(env)[life]):
                dx, dy = (x + n // 2) % n - n // 2, (y + n // 2) % n - n // 2
                if max(abs(dx), abs(dy)) <= radius:
                    expected[thing // each, dx + radius, dy + radius] = 1
            assert view[life].equal(expected)
        observation = env.step(action).observation["observation"]


def test_each_kinds_value_is_reversed_every_half_period_and_phases_are_random() -> None:
    lives, kinds, period = 400, 2, 10
    env = Forage(lives, seed=0, size=3, kinds=kinds, objects_per_kind=1, radius=1, period=period)
    env.reset()
    regimes = [env.privileged["regime"]]
    for _ in range(3 * period):
        step = env.step(torch.zeros(lives, dtype=torch.int64))
        regimes.append(step.privileged["regime"])
        assert step.privileged["changed"].equal(regimes[-1] != regimes[-2])
        assert (step.privileged["steps_since_change"] == 0).equal(step.privileged["changed"])
    history = torch.stack(regimes)
    for kind in range(kinds):
        good = history >> kind & 1
        assert good[:-5].equal(1 - good[5:])
        assert abs(float(good[0].double().mean()) - 0.5) < 3 * 0.5 / math.sqrt(lives)
    assert len(history[0].unique()) == 4


def seek(kind: int, kinds: int, radius: int) -> Policy:
    """Go to the nearest visible object of one kind: what a policy without memory can prefer."""
    view = 2 * radius + 1
    square = torch.cartesian_prod(torch.arange(view), torch.arange(view)) - radius

    def act(observation: dict[str, torch.Tensor], privileged: object) -> torch.Tensor:
        seen = observation["observation"][:, : kinds * view**2].reshape(-1, kinds, view**2)[:, kind]
        distance = square.abs().sum(1).masked_fill(~seen.bool(), 10_000)
        x, y = square[distance.argmin(1)].unbind(1)
        toward = torch.where(x.abs() > y.abs(), (x < 0).long(), 2 + (y < 0).long())
        return torch.where(seen.any(1), toward, 0)

    return act


def test_a_preference_without_memory_earns_nothing() -> None:
    env = Forage(256, seed=2, size=7, radius=2, period=40)
    assert Forage(1, seed=0).references.memoryless == 0.0
    assert measure(env, seek(0, 2, 2), 160, "step").agrees_with(0.0)


def test_the_oracle_earns_far_more_than_chance_and_as_much_as_is_stored() -> None:
    env = Forage(1, 0)
    stored = greedy_rate(15, 2, 8, 2000)
    assert env.references.oracle == stored.mean > 0.1
    new = simulate_greedy_rate(15, 2, 8, 2000, lives=192, steps=150, seed=7)
    assert abs(stored.mean - new.mean) <= 3 * math.hypot(stored.standard_error, new.standard_error)


@pytest.mark.parametrize("signal", ["flag", "cue", "always"])
def test_the_signal_tells_of_the_values(signal: str) -> None:
    env = Forage(16, seed=0, size=5, kinds=3, radius=1, period=8, signal=signal)
    told = env.reset()["observation"][:, 27:]
    for _ in range(30):
        hidden = env.privileged
        fresh = (hidden["steps_since_change"] == 0)[:, None]
        code = (hidden["regime"][:, None] >> torch.arange(3) & 1).float()
        assert told.equal({"flag": fresh.float(), "cue": code * fresh, "always": code}[signal])
        told = env.step(torch.zeros(16, dtype=torch.int64)).observation["observation"][:, 27:]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("size", 2, "forage: size=2 is not allowed; allowed: an integer from 3"),
        ("kinds", 33, "forage: kinds=33 is not allowed; allowed: an integer from 1 to 32"),
        ("objects_per_kind", 0, "forage: objects_per_kind=0 is not allowed; allowed: an integer of at least 1"),
        ("radius", 8, "forage: radius=8 is not allowed; allowed: an integer from 1 to 7"),
        ("period", 1, "forage: period=1 is not allowed; allowed: an integer from 2"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "forage", "num_lives": 2, "seed": 0, option: value})
