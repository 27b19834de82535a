import pytest
import torch

from lifelong.envs import make_env
from lifelong.envs.long_tmaze import BACK, FORWARD, LEFT, RIGHT, LongTMaze
from lifelong.envs.measurement import estimate, measure, oracle_policy, random_policy


def test_the_cue_is_shown_at_the_start_only_and_the_turn_at_the_junction_is_paid_by_it() -> None:
    n = 5
    env = LongTMaze(64, seed=0, corridor=n)
    seen = env.reset()["observation"]
    generator = torch.Generator().manual_seed(0)
    cues = []
    for _ in range(6):
        cue = env.privileged["cue"]
        cues.append(cue)
        for position in range(n + 2):
            expected = torch.zeros(64, 3)
            if position == 0:
                expected[torch.arange(64), cue] = 1
            expected[:, 2] = position == n + 1
            assert seen.equal(expected)
            action = torch.randint(2, (64,), generator=generator)
            step = env.step(action)
            paid = torch.where(action == cue, 1.0, -1.0) if position == n + 1 else torch.zeros(64)
            assert step.reward.equal(paid)
            assert step.soft_reset.eq(position == n + 1).all()
            assert not (step.terminated | step.truncated).any()
            seen = step.observation["observation"]
    assert estimate(torch.stack(cues).flatten()).agrees_with(0.5)
    assert (torch.stack(cues)[1:] == torch.stack(cues)[:-1]).double().mean().item() == pytest.approx(0.5, abs=0.09)


@pytest.mark.parametrize("mode", ["auto", "walk"])
def test_a_trial_can_be_a_life(mode: str) -> None:
    env = LongTMaze(8, seed=0, corridor=3, mode=mode, reset_memory="episode")  # type: ignore[arg-type]
    env.reset()
    assert not env.lifelong
    for t in range(1, 21):
        step = env.step(env.privileged["oracle_action"])
        assert step.terminated.eq(t % 5 == 0).all()
        assert step.reward.eq(float(t % 5 == 0)).all()
        assert not step.soft_reset.any()
        assert (step.final_observation is not None) == (t % 5 == 0)


def test_in_mode_walk_the_walls_hold_and_what_is_neither_forward_nor_a_turn_costs() -> None:
    env = LongTMaze(1, seed=0, corridor=2, mode="walk", penalty=0.25)
    env.reset()
    cue = int(env.privileged["cue"])
    wrong = LEFT + 1 - cue
    path = [  # action, reward, position after
        (BACK, -0.25, 0),
        (LEFT, -0.25, 0),
        (FORWARD, 0.0, 1),
        (RIGHT, -0.25, 1),
        (BACK, -0.25, 0),
        (FORWARD, 0.0, 1),
        (FORWARD, 0.0, 2),
        (FORWARD, 0.0, 3),
        (FORWARD, -0.25, 3),
        (BACK, -0.25, 2),
        (FORWARD, 0.0, 3),
        (wrong, -1.0, 0),
    ]
    for action, reward, position in path:
        step = env.step(torch.tensor([action]))
        assert (step.reward.item(), int(step.privileged["position"])) == (reward, position)
    assert step.soft_reset.item()


def test_the_default_penalty_of_the_whole_way_back_is_one() -> None:
    assert LongTMaze(1, 0, corridor=9, mode="walk").penalty == pytest.approx(0.1)


@pytest.mark.parametrize("corridor", [1, 3])
def test_a_random_walk_earns_its_closed_form(corridor: int) -> None:
    env = LongTMaze(512, seed=0, corridor=corridor, mode="walk")
    measured = measure(env, random_policy(4, seed=0), steps=1000, per="episode", burn_in=100)
    assert measured.agrees_with(env.references.random), (measured, env.references)


def test_walking_forward_and_turning_anywhere_earns_the_memoryless_reference() -> None:
    env = LongTMaze(256, seed=0, corridor=4, mode="walk")

    def act(observation: dict[str, torch.Tensor], privileged: object) -> torch.Tensor:
        return torch.where(observation["observation"][:, 2] > 0, LEFT, FORWARD)

    assert measure(env, act, steps=300, per="episode").agrees_with(0.0)
    fresh = LongTMaze(256, seed=0, corridor=4, mode="walk")
    assert measure(fresh, oracle_policy, steps=300, per="episode").agrees_with(1.0)


def test_a_corridor_of_a_million_cells_costs_no_more_than_a_short_one() -> None:
    env = LongTMaze(4, seed=0, corridor=10**6, distractors=2)
    first = env.reset()["observation"]
    stretch = env.stream(1000)
    assert stretch.observation["observation"][0].equal(first)
    state = env.state_dict()
    state["life_step"] = torch.full((4,), 10**6)
    state["world.position"] = torch.full((4,), 10**6)
    env.load_state_dict(state)
    step = env.step(torch.zeros(4, dtype=torch.int64))
    assert step.privileged["junction"].all()
    assert step.observation["observation"][:, 2].eq(1).all()
    paid = env.step(step.privileged["oracle_action"])
    assert paid.reward.eq(1).all()
    assert paid.soft_reset.all()


def test_distractors_are_random_signs_and_change_at_every_step() -> None:
    env = LongTMaze(64, seed=0, corridor=10, distractors=3)
    env.reset()
    noise = env.stream(200).observation["observation"][..., 3:]
    assert noise.abs().eq(1).all()
    assert abs(noise.mean().item()) < 4 / noise.numel() ** 0.5
    assert abs((noise[1:] * noise[:-1]).mean().item()) < 4 / noise.numel() ** 0.5


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("mode", "walk", "mode=walk is set"), ("reset_memory", "episode", "reset_memory=episode is set")],
)
def test_there_is_no_stretch_where_actions_or_ends_matter(option: str, value: str, message: str) -> None:
    env = LongTMaze(2, seed=0, **{option: value})  # type: ignore[arg-type]
    env.reset()
    with pytest.raises(ValueError, match=message):
        env.stream(5)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("corridor", 0, "long_tmaze: corridor=0 is not allowed; allowed: an integer from 1"),
        ("corridor", 2**63, "long_tmaze: corridor=9223372036854775808 is not allowed"),
        ("mode", "run", "long_tmaze: mode='run' is unknown; allowed: auto, walk"),
        ("penalty", -1.0, "long_tmaze: penalty=-1.0 is not allowed"),
        ("distractors", -1, "long_tmaze: distractors=-1 is not allowed"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "long_tmaze", "num_lives": 2, "seed": 0, option: value})
