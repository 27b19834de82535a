"""The fast observation equals MiniGrid's own, bit for bit, on every id, whatever changes the grid."""

import contextlib
import copy
import pickle
import warnings
from typing import Any

import gymnasium
import minigrid  # noqa: F401  (registers the ids)
import numpy as np
import pytest
from gymnasium.envs.registration import registry
from gymnasium.error import DependencyNotInstalled
from minigrid.core.grid import Grid
from minigrid.core.mission import MissionSpace
from minigrid.core.world_object import Ball, Box, Door, Floor, Goal, Key, Lava, Wall, WorldObj
from minigrid.envs import EmptyEnv
from minigrid.minigrid_env import MiniGridEnv

from lifelong.envs.minigrid_observation import PartialView

IDS = [id for id, spec in registry.items() if "minigrid" in str(spec.entry_point)]


def make(id: str, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gymnasium.make(id, disable_env_checker=True, **options).unwrapped


def assert_equal(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert left["image"].shape == right["image"].shape
    assert left["image"].dtype == right["image"].dtype
    assert np.array_equal(left["image"], right["image"])
    assert (left["direction"], left["mission"]) == (right["direction"], right["mission"])


def walk(stock: Any, fast: Any, steps: int, seed: int) -> None:
    """The same random walk in both; where an episode ends, both start anew from the same seed."""
    choices = np.random.default_rng(seed).choice(7, steps, p=[0.1, 0.1, 0.35, 0.15, 0.1, 0.2, 0.0])
    assert_equal(stock.reset(seed=seed)[0], fast.reset(seed=seed)[0])
    for t, action in enumerate(choices % stock.action_space.n):
        left, right = stock.step(int(action)), fast.step(int(action))
        assert_equal(left[0], right[0])
        assert left[1:] == right[1:]
        if left[2] or left[3]:
            assert_equal(stock.reset(seed=seed + t)[0], fast.reset(seed=seed + t)[0])


@pytest.mark.parametrize("id", IDS)
def test_observation_reward_and_flags_equal_the_stock_environments(id: str) -> None:
    stock, fast = make(id), make(id)
    if "WFC" in id:
        try:
            stock.reset(seed=0)
        except (DependencyNotInstalled, FileNotFoundError) as error:  # 3.2.0 comes without the pattern images
            pytest.skip(f"MiniGrid's WFC levels need packages and images that are missing here: {error}")
    view = PartialView(fast).install()
    assert view.refusal is None
    with contextlib.redirect_stdout(None):
        walk(stock, fast, steps=200, seed=5)


class Zoo(MiniGridEnv):
    """One of each object, doors in all states; each ``done`` does what MiniGrid's own environments never do."""

    def __init__(self, view_size: int = 5, **options: Any) -> None:
        super().__init__(
            MissionSpace(self._mission), width=9, height=7, agent_view_size=view_size, max_steps=400, **options
        )

    @staticmethod
    def _mission() -> str:
        return "look around"

    def _gen_grid(self, width: int, height: int) -> None:
        self.grid = Grid(width, height)
        self.grid.wall_rect(0, 0, width, height)
        self.doors = [Door("red"), Door("blue", is_open=True), Door("green", is_locked=True)]
        objects = [*self.doors, Key("green"), Ball("purple"), Box("grey", Key("red")), Goal(), Lava(), Floor("yellow")]
        for thing in objects:
            self.place_obj(thing)
        self.place_agent()
        self.count = 0

    def step(self, action: Any) -> Any:
        if action == self.actions.done:
            self.mischief(self.count % 6)
            self.count += 1
        return super().step(action)

    def mischief(self, kind: int) -> None:
        cells = self.grid.grid
        where = [i for i, cell in enumerate(cells) if cell is not None and type(cell) is not Wall]
        if kind == 0:  # all doors at once, from afar
            for door in self.doors:
                door.is_open = not door.is_open
        elif kind == 1:  # written past Grid.set
            cells[where[0]], cells[where[1]] = cells[where[1]], cells[where[0]]
        elif kind == 2:  # repainted in place
            cells[where[2]].color = "yellow"
        elif kind == 3:  # a new grid object, of other proportions
            grid = Grid(self.grid.height, self.grid.width)
            grid.grid = list(cells)
            x, y = self.agent_pos
            self.grid, self.width, self.height = grid, grid.width, grid.height
            self.agent_pos = (min(x, grid.width - 2), min(y, grid.height - 2))
        elif kind == 4:  # carries something it never picked up
            self.carrying = Box("red")
        else:  # another view
            self.agent_view_size = 8 - self.agent_view_size if self.agent_view_size in (3, 5) else 5


class Blinker(WorldObj):
    """Changes its state and opacity each time the world steps."""

    def __init__(self) -> None:
        super().__init__("ball", "blue")
        self.time = 0

    def encode(self) -> tuple[int, int, int]:
        return (6, 2, self.time % 3)

    def see_behind(self) -> bool:
        return self.time % 2 == 0


class Blinking(Zoo):
    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        self.blinkers = [Blinker() for _ in range(4)]
        for blinker in self.blinkers:
            self.place_obj(blinker)

    def step(self, action: Any) -> Any:
        for blinker in self.blinkers:
            blinker.time += 1
        return super().step(action)


def same_walk(kind: type[Zoo], steps: int, seed: int, **options: Any) -> None:
    stock, fast = kind(**options), kind(**options)
    PartialView(fast).install()
    assert_equal(stock.reset(seed=seed)[0], fast.reset(seed=seed)[0])
    for action in np.random.default_rng(seed).choice(7, steps, p=[0.1, 0.1, 0.3, 0.1, 0.1, 0.15, 0.15]):
        try:
            left = stock.step(int(action))
        except AssertionError:  # it faces the rim of the new grid: both do
            with pytest.raises(AssertionError):
                fast.step(int(action))
            return
        assert_equal(left[0], fast.step(int(action))[0])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("options", [{"view_size": 3}, {"view_size": 5}, {"view_size": 7, "see_through_walls": True}])
def test_every_way_in_which_a_grid_can_change_is_seen(seed: int, options: dict[str, Any]) -> None:
    same_walk(Zoo, 200, seed, **options)


@pytest.mark.parametrize("seed", range(6))
def test_objects_of_foreign_classes_are_encoded_at_each_step(seed: int) -> None:
    same_walk(Blinking, 200, seed)


def test_a_door_that_anything_opens_or_unlocks_in_place_is_seen() -> None:
    environment = make("MiniGrid-DoorKey-6x6-v0")
    PartialView(environment).install()
    environment.reset(seed=0)
    environment.agent_view_size = 11  # the door stands in view
    door = next(cell for cell in environment.grid.grid if type(cell) is Door)
    x, y = next((i % 6, i // 6) for i, cell in enumerate(environment.grid.grid) if cell is door)
    environment.agent_pos, environment.agent_dir = (x - 1, y), 0
    states = set()
    for door.is_locked, door.is_open in [(True, False), (False, False), (False, True), (True, False), (False, False)]:
        seen = environment.gen_obs()
        assert_equal(seen, MiniGridEnv.gen_obs(environment))
        states.add(int(seen["image"][5, 9, 2]))
    assert states == {0, 1, 2}


def test_an_object_that_moves_and_is_then_repainted_is_seen() -> None:
    environment = Zoo(view_size=7)
    PartialView(environment).install()
    environment.reset(seed=1)
    cells = environment.grid.grid
    before = next(i for i, cell in enumerate(cells) if type(cell) is Ball)
    x, y = environment.front_pos
    after = y * environment.grid.width + x
    ball, cells[before] = cells[before], None
    cells[after] = ball
    seen = [environment.gen_obs()]
    ball.color = "yellow"
    seen.append(environment.gen_obs())
    assert_equal(seen[1], MiniGridEnv.gen_obs(environment))
    assert [observation["image"][3, 5].tolist() for observation in seen] == [[6, 3, 0], [6, 4, 0]]


@pytest.mark.parametrize("view_size", [3, 5, 7, 9])
@pytest.mark.parametrize("id", ["MiniGrid-MultiRoom-N4-S5-v1", "MiniGrid-ObstructedMaze-1Dlhb-v0"])
def test_views_of_all_sizes_equal_the_stock_environments(id: str, view_size: int) -> None:
    stock, fast = make(id, agent_view_size=view_size), make(id, agent_view_size=view_size)
    PartialView(fast).install()
    walk(stock, fast, steps=200, seed=1)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("id", ["MiniGrid-DoorKey-6x6-v0", "MiniGrid-Dynamic-Obstacles-6x6-v0", "MiniGrid-MemoryS7-v0"])
def test_copies_and_pickles_go_on_by_themselves(id: str, duplicate: Any) -> None:
    original = make(id)
    PartialView(original).install()
    original.reset(seed=0)
    actions = np.random.default_rng(0).integers(0, 3, 200).tolist()
    for action in actions[:50]:
        original.step(action)
    twin = duplicate(original)
    assert twin.gen_obs.__self__.environment is twin
    for action in actions[50:]:  # interleaved: a cache that both share would show
        left, right = original.step(action), twin.step(action)
        assert_equal(left[0], right[0])
        assert left[1:] == right[1:]
        assert_equal(right[0], MiniGridEnv.gen_obs(twin))
        if left[2] or left[3]:
            assert_equal(original.reset()[0], twin.reset()[0])


class OwnObservation(EmptyEnv):
    def gen_obs(self) -> dict[str, Any]:
        observation = super().gen_obs()
        observation["image"] = observation["image"][::-1].copy()
        return observation


class OwnGrid(Grid):
    def encode(self, vis_mask: Any = None) -> np.ndarray:
        return super().encode(vis_mask)[::-1].copy()

    def slice(self, topX: int, topY: int, width: int, height: int) -> Grid:
        part = super().slice(topX, topY, width, height)
        part.set(0, 0, Key("red"))
        return part


class WithOwnGrid(EmptyEnv):
    def _gen_grid(self, width: int, height: int) -> None:
        super()._gen_grid(width, height)
        grid = OwnGrid(width, height)
        grid.grid = self.grid.grid
        self.grid = grid


@pytest.mark.parametrize(
    ("kind", "reason"),
    [(OwnObservation, "OwnObservation overrides gen_obs"), (WithOwnGrid, "OwnGrid overrides slice, encode")],
)
def test_an_environment_with_an_observation_of_its_own_keeps_it_and_says_so_once(kind: Any, reason: str) -> None:
    stock, fast = kind(size=6), kind(size=6)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PartialView(fast).install()
        walk(stock, fast, steps=60, seed=0)
    messages = [str(one.message) for one in caught]
    assert len(messages) == 1
    assert f"{kind.__name__} keeps its own, slower observation: {reason}" in messages[0]
