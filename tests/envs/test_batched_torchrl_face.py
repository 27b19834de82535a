import io

import pytest
import torch
from tensordict import TensorDict
from torchrl.collectors import Collector
from torchrl.envs import InitTracker, TransformedEnv, check_env_specs

from lifelong.envs import make_env
from lifelong.envs.batched import TensorEnv
from lifelong.envs.batched_suite import BATCHED_ENVS
from lifelong.envs.torchrl_face import TorchRLEnv

NAMES = [kind.name for kind in BATCHED_ENVS]


def plain(name: str, **options: object) -> TensorEnv:
    env = make_env({"name": name, "num_lives": 3, "seed": 0, **options})
    assert isinstance(env, TensorEnv)
    return env


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("life_steps", [None, 7])
def test_torchrls_own_checks_pass(name: str, life_steps: int | None) -> None:
    check_env_specs(TorchRLEnv({"name": name, "num_lives": 3, "seed": 0, "life_steps": life_steps}))


@pytest.mark.parametrize("name", NAMES)
def test_a_rollout_is_the_environment_itself_with_the_last_observations_of_ended_lives(name: str) -> None:
    env, face = plain(name, life_steps=7), TorchRLEnv(plain(name, life_steps=7))
    rollout = face.rollout(30, break_when_any_done=False)  # random actions
    assert env.reset()["observation"].equal(rollout["observation"][:, 0])
    for t in range(30):
        step = env.step(rollout["action"][:, t])
        after = rollout["next"][:, t]
        assert step.reward.equal(after["reward"][:, 0])
        assert step.soft_reset.equal(after["soft_reset"][:, 0])
        ended = step.terminated | step.truncated
        assert step.terminated.equal(after["terminated"][:, 0])
        assert step.truncated.equal(after["truncated"][:, 0])
        assert ended.equal(after["done"][:, 0])
        shown = step.observation["observation"]
        last = shown if step.final_observation is None else step.final_observation["observation"]
        assert torch.where(ended[:, None], last, shown).equal(after["observation"])
        if t < 29:
            assert shown.equal(rollout["observation"][:, t + 1])


def test_lives_that_are_reset_from_outside_begin_anew_and_the_others_go_on() -> None:
    face = TorchRLEnv(plain("recall_stream"))
    face.rollout(10)
    before = face.env.state.life_step.tolist()
    which = torch.tensor([[True], [False], [False]])
    face.reset(TensorDict({"_reset": which, **_done(3)}, [3]))
    assert face.env.state.life_step.tolist() == [0, *before[1:]]


def _done(lives: int) -> dict[str, torch.Tensor]:
    return {key: torch.zeros(lives, 1, dtype=torch.bool) for key in ("done", "terminated", "truncated")}


def test_memory_is_to_be_dropped_exactly_at_the_start_of_lives_and_not_at_soft_resets() -> None:
    face = TorchRLEnv(plain("associative_recall", pairs=2, reset_memory="life", life_steps=10))
    rollout = TransformedEnv(face, InitTracker()).rollout(30, break_when_any_done=False)
    steps = torch.arange(30)
    assert rollout["is_init"][0, :, 0].equal(steps % 10 == 0)
    episode_ends = (steps % 10 % 4 == 3) & (steps % 10 != 9)
    assert rollout["next", "soft_reset"][0, :, 0].equal(episode_ends)


def test_nothing_privileged_enters_a_tensordict() -> None:
    face = TorchRLEnv(plain("switching_bandit"))
    hidden = set(face.env.describe(face.env.initial_state().world))
    keys = {key if isinstance(key, str) else key[-1] for key in face.rollout(3).keys(True, True)}
    assert not hidden & keys


@pytest.mark.parametrize("name", NAMES)
def test_its_state_dict_goes_on_bit_for_bit(name: str) -> None:
    face = TorchRLEnv(plain(name, life_steps=7))
    face.rollout(12, break_when_any_done=False)
    file = io.BytesIO()
    torch.save(face.state_dict(), file)
    file.seek(0)
    resumed = TorchRLEnv(make_env({"name": name, "num_lives": 3, "seed": 5, "life_steps": 7}))  # type: ignore[arg-type]
    resumed.load_state_dict(torch.load(file, weights_only=True))
    action = TensorDict({"action": torch.ones(3, dtype=torch.int64)}, [3])
    for _ in range(20):
        left, right = face.step(action.clone()), resumed.step(action.clone())
        assert (left["next"] == right["next"]).all()


def test_a_fresh_face_has_an_empty_state_that_loads() -> None:
    face = TorchRLEnv(plain("drift_torus"))
    state = face.state_dict()
    face.load_state_dict(state)
    assert not face.env.begun


def test_seeds_are_those_of_the_lives() -> None:
    face = TorchRLEnv(plain("switching_bandit", contexts=50))
    first = [face.set_seed(4) and face.reset()["observation"] for _ in range(2)]
    assert first[0].equal(first[1])
    face.set_seed(5)
    assert not face.reset()["observation"].equal(first[0])


def test_a_stock_collector_runs_on_it() -> None:
    face = TorchRLEnv(plain("associative_recall"))
    collector = Collector(face, policy=None, frames_per_batch=48, total_frames=96)
    batches = list(collector)
    assert [batch.shape for batch in batches] == [torch.Size([3, 16])] * 2
    assert batches[1]["next", "done"].sum() == 6


def test_an_environment_that_is_not_of_the_suite_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the batched suite"):
        TorchRLEnv({"name": "gymnasium", "id": "CartPole-v1", "num_lives": 1, "seed": 0})
