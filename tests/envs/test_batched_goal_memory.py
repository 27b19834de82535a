import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.goal_memory import GoalMemory
from lifelong.envs.goal_memory_learners import approach_action, revisiting_rate, sweep_action
from lifelong.envs.measurement import Policy, estimate, measure, oracle_policy, random_policy

MOVES = [(1, 0), (-1, 0), (0, 1), (0, -1)]


def place(observation: Tensor, n: int) -> Tensor:
    """Column and row [B, 2] of the agent."""
    return torch.stack([observation[:, :n].argmax(1), observation[:, n : 2 * n].argmax(1)], dim=1)


def test_a_hidden_goal_pays_when_its_cell_is_reached_and_another_trip_begins() -> None:
    n, goals, lives = 4, 3, 24
    env = GoalMemory(lives, seed=0, size=n, goals=goals, relocation=0.5)
    observation = env.reset()["observation"]
    reached = moved = 0
    for action in torch.randint(4, (120, lives), generator=torch.Generator().manual_seed(0)):
        world, hidden = env.state.world, env.privileged
        before = place(observation, n)
        assert observation[:, 2 * n :].argmax(1).equal(world.goal)
        assert observation.sum(1).eq(3).all()
        assert (before[:, 0] * n + before[:, 1] != hidden["goal_cell"]).all()
        step = env.step(action)
        observation = step.observation["observation"]
        after = place(observation, n)
        for life in range(lives):
            dx, dy = MOVES[int(action[life])]
            x, y = (int(before[life, 0]) + dx) % n, (int(before[life, 1]) + dy) % n
            found = x * n + y == int(hidden["goal_cell"][life])
            assert float(step.reward[life]) == float(found)
            others = torch.arange(goals) != world.goal[life]
            assert env.state.world.cells[life, others].equal(world.cells[life, others])
            stayed = env.state.world.cells[life].equal(world.cells[life])
            if found:
                assert bool(env.state.world.unknown[life, world.goal[life]]) != stayed
                reached, moved = reached + 1, moved + (not stayed)
            else:
                assert after[life].tolist() == [x, y]
                assert stayed
                assert env.state.world.unknown[life].equal(world.unknown[life])
        assert step.privileged["trip"].equal(hidden["trip"] + step.reward.long())
    assert reached > 100
    assert estimate(torch.tensor([1.0] * moved + [0.0] * (reached - moved))).agrees_with(0.5)
    assert env.lifelong


def test_trips_are_the_same_whatever_the_agent_does_on_them() -> None:
    direct, aimless = GoalMemory(4, seed=1, relocation=0.5, size=3), GoalMemory(4, seed=1, relocation=0.5, size=3)
    trips: list[dict[tuple[int, int], tuple[list[int], int, int]]] = [{}, {}]
    for env, seen in zip((direct, aimless), trips, strict=True):
        env.reset()
        act = random_policy(4, seed=0)
        for _ in range(150):
            world, hidden = env.state.world, env.privileged
            for life in range(4):
                if world.first[life]:
                    key = (life, int(world.trip[life]))
                    seen[key] = world.agent[life].tolist(), int(world.goal[life]), int(hidden["goal_cell"][life])
            env.step(hidden["oracle_action"] if env is direct else act(env.observation, hidden))
    both = trips[0].keys() & trips[1].keys()
    assert len(both) > 30
    assert all(trips[0][key] == trips[1][key] for key in both)


def test_goals_starts_and_new_cells_are_uniform() -> None:
    env = GoalMemory(400, seed=0, size=3, goals=2, relocation=1.0)
    env.reset()
    offsets, jumps, asked = [], [], []
    for _ in range(60):
        world = env.state.world
        reward = env.step(oracle_policy(env.observation, env.privileged)).reward.bool()
        asked_for = world.goal[:, None]
        old, new = (cells.gather(1, asked_for)[:, 0] for cells in (world.cells, env.state.world.cells))
        jumps.append((new - old)[reward] % 9)
        start = env.state.world.agent[:, 0] * 3 + env.state.world.agent[:, 1]
        offsets.append((start - env.privileged["goal_cell"])[reward] % 9)
        asked.append(env.state.world.goal[reward])
    for sample, classes, critical in ((offsets, 9, 24.3), (jumps, 9, 24.3), (asked, 2, 10.8)):  # 99.9 % quantiles
        counts = torch.cat(sample).bincount(minlength=classes)
        counts = counts[1:] if classes == 9 else counts  # never its own cell
        expected = counts.sum() / len(counts)
        assert float(((counts - expected) ** 2 / expected).sum()) < critical
        assert int(torch.cat(sample).min()) == (1 if classes == 9 else 0)


def sweep(n: int) -> Policy:
    def act(observation: dict[str, Tensor], privileged: object) -> Tensor:
        return sweep_action(place(observation["observation"], n), n)

    return act


@pytest.mark.parametrize("size", [3, 4, 5])
def test_the_sweep_comes_through_every_cell_and_earns_the_memoryless_reference(size: int) -> None:
    agent, visited = torch.zeros(1, 2, dtype=torch.int64), []
    for _ in range(size**2):
        visited.append(tuple(agent[0].tolist()))
        agent = (agent + torch.tensor(MOVES)[sweep_action(agent, size)]) % size
    assert len(set(visited)) == size**2
    assert agent.eq(0).all()
    memoryless = GoalMemory(1, 0, size=size).references.memoryless
    assert memoryless is not None
    assert measure(GoalMemory(192, seed=3, size=size), sweep(size), 150, "step", burn_in=50).agrees_with(memoryless)


@pytest.mark.parametrize("size", [4, 7])
def test_random_and_oracle_earn_their_closed_forms_on_every_size(size: int) -> None:
    references = GoalMemory(1, 0, size=size).references
    for policy, expected in ((oracle_policy, references.oracle), (random_policy(4, seed=0), references.random)):
        assert measure(GoalMemory(192, seed=size, size=size), policy, 200, "step", burn_in=60).agrees_with(expected)


def remember_and_walk(env: GoalMemory, capacity: int, steps: int, burn_in: int) -> Tensor:
    """Rewards per step of each life, by going where the goal was last, then through all cells; with a memory of the
    ``capacity`` goals reached last."""
    n, lives = env.size, torch.arange(env.num_lives)
    remembered = torch.full((env.num_lives, env.goals), -1)
    used = torch.zeros(env.num_lives, env.goals, dtype=torch.int64)
    searching = torch.zeros(env.num_lives, dtype=torch.bool)
    total = torch.zeros(env.num_lives)
    observation = env.reset()["observation"]
    for t in range(burn_in + steps):
        agent, goal = place(observation, n), observation[:, 2 * n : 2 * n + env.goals].argmax(1)
        cell = remembered[lives, goal]
        offset = torch.stack([cell // n, cell % n], dim=1) - agent
        searching = searching | (cell < 0) | (offset == 0).all(1)
        origin = torch.where((cell < 0)[:, None], 0, agent + offset)
        action = torch.where(searching, sweep_action(agent - origin, n), approach_action(offset, n))
        step = env.step(action)
        there = (agent + torch.tensor(MOVES)[action]) % n
        won = step.reward.bool()
        remembered[lives[won], goal[won]] = (there[:, 0] * n + there[:, 1])[won]
        used[lives[won], goal[won]] = t + 1
        kept = used.argsort(dim=1, descending=True).argsort(dim=1) < capacity
        remembered = remembered.masked_fill(~kept, -1)
        searching = searching & ~won
        observation = step.observation["observation"]
        if t >= burn_in:
            total += step.reward
    return total / steps


@pytest.mark.parametrize(("size", "relocation"), [(3, 0.5), (5, 0.1), (4, 1.0)])
def test_going_where_the_goal_was_last_earns_its_closed_form(size: int, relocation: float) -> None:
    env = GoalMemory(192, seed=4, size=size, goals=2, relocation=relocation)
    rates = remember_and_walk(env, capacity=2, steps=160, burn_in=80)
    assert estimate(rates).agrees_with(revisiting_rate(size, relocation)), (estimate(rates), size)


def test_a_memory_of_some_goals_earns_its_closed_form() -> None:
    env = GoalMemory(192, seed=5, size=3, goals=4, relocation=0.0)
    for capacity in (1, 3):
        rates = remember_and_walk(env, capacity, steps=160, burn_in=80)
        assert estimate(rates).agrees_with(env.capacity_rate(capacity)), (estimate(rates), capacity)
    assert env.capacity_rate(4) == pytest.approx(env.references.oracle) == pytest.approx(env.capacity_rate(99))
    assert env.capacity_rate(0) == pytest.approx(2 / 9)


@pytest.mark.parametrize("signal", ["flag", "cue", "always"])
def test_the_signal_tells_of_cells_where_the_goal_was_not_reached_yet(signal: str) -> None:
    n = 3
    env = GoalMemory(16, seed=0, size=n, goals=2, relocation=0.5, signal=signal)
    observation = env.reset()["observation"]
    known: list[set[tuple[int, int]]] = [set() for _ in range(16)]  # (goal, cell) reached, and not left since
    new_trip = [True] * 16
    for _ in range(60):
        hidden, goal = env.privileged, observation[:, 2 * n : 2 * n + 2].argmax(1)
        told = observation[:, 2 * n + 2 :]
        for life in range(16):
            cell = int(hidden["goal_cell"][life])
            assert bool(hidden["unknown"][life]) == ((int(goal[life]), cell) not in known[life])
            fresh = new_trip[life] and (int(goal[life]), cell) not in known[life]
            code = torch.zeros(2, n)
            code[0, cell // n], code[1, cell % n] = 1, 1
            expected = {"flag": torch.tensor([float(fresh)]), "cue": code.flatten() * fresh, "always": code.flatten()}
            assert told[life].equal(expected[signal])
        cells = env.state.world.cells
        step = env.step(hidden["oracle_action"])
        for life in range(16):
            new_trip[life] = bool(step.reward[life])
            if new_trip[life]:
                asked = int(goal[life])
                known[life] = {pair for pair in known[life] if pair[0] != asked}
                if env.state.world.cells[life, asked] == cells[life, asked]:
                    known[life].add((asked, int(cells[life, asked])))
        observation = step.observation["observation"]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("size", 2, "goal_memory: size=2 is not allowed; allowed: an integer from 3"),
        ("goals", 0, "goal_memory: goals=0 is not allowed; allowed: an integer of at least 1"),
        ("relocation", 1.01, "goal_memory: relocation=1.01 is no probability; allowed: 0 to 1"),
        ("signal", "loud", "goal_memory: signal='loud' is unknown; allowed: hidden, flag, cue, always"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "goal_memory", "num_lives": 2, "seed": 0, option: value})
