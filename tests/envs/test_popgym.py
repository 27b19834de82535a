"""POPGym's environments by id, where the package is installed."""

import importlib
import pickle
from typing import Any

import pytest
import torch

from lifelong.envs import BatchedEnv, make_env
from lifelong.envs.popgym_env import POPGYM_REFERENCES

popgym = pytest.importorskip("popgym", reason="the optional package popgym is not installed")

FAMILIES = [
    *("Autoencode", "RepeatPrevious", "RepeatFirst", "CountRecall", "PositionOnlyCartPole", "PositionOnlyPendulum"),
    *("VelocityOnlyCartpole", "NoisyPositionOnlyCartPole", "NoisyPositionOnlyPendulum", "MultiarmedBandit"),
    *("HigherLower", "Battleship", "Concentration", "MineSweeper"),
]


def make(id: str, num_lives: int = 2, seed: int = 0, **options: Any) -> BatchedEnv:
    return make_env({"name": "popgym", "id": id, "num_lives": num_lives, "seed": seed, **options})


def rollout(env: BatchedEnv, steps: int, seed: int = 0) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    seen = list(env.reset().values())
    for _ in range(steps):
        step = env.step(env.action_spec.expand(env.num_lives, *env.action_spec.shape).rand())
        seen += [*step.observation.values(), step.reward, step.terminated | step.truncated]
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_runs_and_its_seed_decides_everything(family: str) -> None:
    one, other = (rollout(make(f"{family}Easy", seed=3), 30) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    different = rollout(make(f"{family}Easy", seed=4), 30)
    assert any(not torch.equal(a, b) for a, b in zip(one, different, strict=True))


@pytest.mark.parametrize("id", ["RepeatPreviousEasy", "CountRecallEasy", "PositionOnlyCartPoleEasy"])
def test_a_saved_life_goes_on_bit_for_bit(id: str) -> None:
    env = make(id)
    rollout(env, 40)
    state = pickle.loads(pickle.dumps(env.state_dict()))
    other = make(id, seed=1)
    other.load_state_dict(state)
    action = env.action_spec.expand(2).rand()
    for _ in range(60):
        left, right = env.step(action), other.step(action)
        assert torch.equal(left.observation["observation"], right.observation["observation"])
        assert torch.equal(left.reward, right.reward)


@pytest.mark.parametrize("id", ["RepeatFirstEasy", "RepeatPreviousEasy", "AutoencodeEasy", "CountRecallEasy"])
def test_random_actions_get_the_random_reference(id: str) -> None:
    env = make(id, num_lives=64, seed=5)
    env.reset()
    generator = torch.Generator().manual_seed(0)
    running, returns = torch.zeros(64), []
    while len(returns) < 128:
        step = env.step(torch.randint(env.action_spec.n, (64,), generator=generator))
        running += step.reward
        over = step.terminated
        returns += running[over].tolist()
        running[over] = 0
    error = torch.tensor(returns).std() / len(returns) ** 0.5
    assert abs(torch.tensor(returns).mean() - POPGYM_REFERENCES[id].random) < 4 * error


def test_counting_alone_gets_the_order_free_floor_of_repeat_previous() -> None:
    env = make("RepeatPreviousEasy", num_lives=64, seed=2)
    rows, lives = torch.arange(64), 64
    history = [env.reset()["observation"]]
    total = torch.zeros(lives)
    while True:  # of the cards of the last four steps, the suit seen most often; ties to the oldest
        recent = torch.stack(history[-4:])
        counts = (recent[:, None] == recent[None]).sum(0)
        step = env.step(recent[counts.argmax(0), rows])
        total += step.reward
        history.append(step.observation["observation"])
        if step.terminated.any():
            break
    assert env.references is not None
    assert env.references.order_free is not None
    assert env.references.random < env.references.order_free < float(total.mean())  # this one knows what is recent


def test_ids_are_understood_with_and_without_prefix_and_named_when_wrong() -> None:
    assert make("popgym-RepeatFirstEasy-v0").references == make("RepeatFirstEasy").references is not None
    assert make("RepeatPreviousEasy", kwargs={"k": 2}).references is None
    with pytest.raises(
        ValueError, match=r"popgym: unknown id 'RepeatLastEasy'; known: .*did you mean 'RepeatFirstEasy'"
    ):
        make("RepeatLastEasy")


def test_without_the_package_the_error_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(ValueError, match=r"needs the package popgym .*pip install popgym"):
        make("RepeatFirstEasy")
