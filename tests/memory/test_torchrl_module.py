"""``MemoryModule`` by TorchRL's conventions: in both modes, in a stock collector, in ClipPPOLoss and in GAE."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import (
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import Tensor, nn
from torchrl.collectors import Collector
from torchrl.envs import (
    Compose,
    GymEnv,
    InitTracker,
    ParallelEnv,
    SerialEnv,
    StepCounter,
    TransformedEnv,
    check_env_specs,
)
from torchrl.modules import GRUModule, LSTMModule, set_recurrent_mode
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

from lifelong.memory import MemoryCore, MemoryModule, core_names, make_core
from lifelong.memory.learned_reset import ResetState

DIM = 8
OPTIONS: dict[str, dict[str, Any]] = {
    "gated_delta": {"layers": 2, "heads": 2, "head_dim": 4},
    "linear_attention": {"heads": 2, "head_dim": 4},
    "lstm": {"layers": 2, "hidden": 5},
    "gru": {"layers": 2, "hidden": 5},
    "softmax": {"capacity": 64, "heads": 2, "head_dim": 4},
    "gtrxl": {"memory_steps": 5, "heads": 2, "head_dim": 4, "reset_state": "learned"},
}
every_core = pytest.mark.parametrize("name", core_names())
# What collects or trains is slow, and differs by the kind of state: nested, flat, with a counter, learned, none.
some_cores = pytest.mark.parametrize("name", ["gated_delta", "lstm", "softmax", "gtrxl", "none"])


def module_of(name: str, **keys: Any) -> MemoryModule:
    """Around the core ``name``; a reset state that can be learned is random."""
    torch.manual_seed(0)
    core = make_core(name, DIM, **OPTIONS.get(name, {}))
    for parameter in (p for module in core.modules() if isinstance(module, ResetState) for p in module.parameters()):
        nn.init.normal_(parameter)
    return MemoryModule(core, **(keys or {"in_key": "x", "out_key": "y"})).double()


def recorded(module: MemoryModule, *batch: int, load: bool) -> TensorDict:
    """What a collector would have stored, [*batch, T]: the states that the steps started from.

    ``load``: a state other than zero is stored at every ``is_init``, and the step starts from it, as in the "next"
    stream of GAE. The outputs of the steps are stored as "wanted", their last states as ("wanted_next", ...).
    """
    torch.manual_seed(1)
    *lives, steps = batch
    states, steps_recorded = module.core.initial_state(int(torch.tensor(lives).prod())).apply(torch.zeros_like), []
    for t in range(steps):
        is_init = torch.rand(*lives, 1) < (0.3 if t else 0.5)
        is_init.view(-1)[0] |= t == 3
        if load:
            other = states.apply(lambda leaf: torch.randn_like(leaf) if leaf.is_floating_point() else leaf + 3)
            states = torch.where(is_init.flatten(), other, states)
        else:
            states = torch.where(is_init.flatten(), states.apply(torch.zeros_like), states)  # the primer's
        x = torch.randn(*lives, DIM, dtype=torch.float64)
        step = TensorDict({"x": x, "is_init": is_init, "memory": states.reshape(*lives)}, lives)
        with torch.no_grad():
            outputs, states = module.core.step(x.reshape(-1, DIM), states, None if load else is_init.flatten())
        step["wanted"], step["wanted_next"] = outputs.reshape(*lives, DIM), states.reshape(*lives)
        steps_recorded.append(step)
    return torch.stack(steps_recorded, len(lives)).contiguous()


@pytest.mark.parametrize("batch", [(6,), (3, 13), (2, 3, 9)], ids=str)
@pytest.mark.parametrize("load", [False, True], ids=["resets", "loads"])
@every_core
def test_in_recurrent_mode_the_stored_state_is_loaded_at_every_is_init(
    name: str, load: bool, batch: tuple[int, ...]
) -> None:
    module = module_of(name)
    stored = recorded(module, *batch, load=load)
    assert stored["is_init"][..., 1:, :].any()
    with set_recurrent_mode(True), torch.no_grad():
        found = module(stored.select(*module.in_keys))
    torch.testing.assert_close(found["y"], stored["wanted"], rtol=0.0, atol=1e-10)


@every_core
def test_in_recurrent_mode_states_are_written_at_the_ends_of_trajectories_and_are_zero_elsewhere(name: str) -> None:
    module = module_of(name)
    stored = recorded(module, 3, 13, load=True)
    with set_recurrent_mode(True), torch.no_grad():
        found = module(stored.select(*module.in_keys))
    ends = torch.ones(3, 13, dtype=torch.bool)
    ends[:, :-1] = stored["is_init"][:, 1:, 0]
    for state, new in zip(module.state_keys, module.out_keys[1:], strict=True):
        wanted = stored[("wanted_next", *state[1:])]
        torch.testing.assert_close(found[new][ends], wanted[ends], rtol=0.0, atol=1e-10)
        assert not found[new][~ends].any()


@every_core
def test_both_modes_have_the_same_gradients(name: str) -> None:
    module = module_of(name)
    stored = recorded(module, 3, 13, load=False)
    gradients = []
    for recurrent in (False, True):
        x = stored["x"].clone().requires_grad_()
        if recurrent:
            with set_recurrent_mode(True):
                y = module(stored.select(*module.in_keys).set("x", x))["y"]
        else:
            outputs, step = [], stored[:, 0].select(*module.in_keys)
            for t in range(13):
                step["x"], step["is_init"] = x[:, t], stored["is_init"][:, t]
                step = module(step)
                outputs.append(step["y"])
                step = step.select("next", strict=False).get("next", step).copy()
            y = torch.stack(outputs, 1)
        weights = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
        gradients.append(torch.autograd.grad((y * weights).sum(), [x, *module.parameters()]))
    for steps, sequence in zip(*gradients, strict=True):
        torch.testing.assert_close(sequence, steps, rtol=0.0, atol=1e-10)


def test_a_learned_reset_state_is_begun_with_and_learned_from_the_zeros_of_the_primer() -> None:
    torch.manual_seed(0)
    module = MemoryModule(make_core("lstm", DIM, reset_state="learned"), in_key="x", out_key="y").double()
    learned = list(module.core.reset_state.learned.values())
    with torch.no_grad():
        for parameter in learned:
            parameter.normal_()
    inputs, is_init = torch.randn(2, 9, DIM, dtype=torch.float64), torch.rand(2, 9) < 0.3
    is_init[:, 0] = True
    stored = TensorDict({"x": inputs, "is_init": is_init.unsqueeze(-1)}, [2, 9])
    for key in module.state_keys:
        stored[key] = torch.zeros(2, 9, 1, DIM, dtype=torch.float64)
    with set_recurrent_mode(True):
        found = module(stored)["y"]
    wanted, _ = module.core(inputs, module.core.initial_state(2), is_init)
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-10)
    for of_module, of_core in zip(
        *(torch.autograd.grad(y.square().sum(), learned) for y in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(of_module, of_core, rtol=0.0, atol=1e-10)


@pytest.mark.parametrize("recurrent", [False, True], ids=["step mode", "recurrent mode"])
@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_it_does_what_torchrls_own_module_does(name: str, recurrent: bool) -> None:
    states = {"lstm": ["h", "c"], "gru": ["h"]}[name]
    in_keys, out_keys = ["x", *states], ["y", *(("next", state) for state in states)]
    module = MemoryModule(make_core(name, DIM, layers=2), in_keys=in_keys, out_keys=out_keys)
    own = module.core.recurrence
    peer: nn.Module = (
        LSTMModule(lstm=own, in_keys=in_keys, out_keys=out_keys)
        if name == "lstm"
        else GRUModule(gru=own, in_keys=in_keys, out_keys=out_keys)
    )
    assert module.in_keys == peer.in_keys
    assert module.out_keys == peer.out_keys
    torch.manual_seed(0)
    stored = TensorDict({"x": torch.randn(3, 11, DIM), "is_init": torch.rand(3, 11, 1) < 0.2}, [3, 11])
    for state in states:
        stored[state] = torch.randn(3, 11, 2, DIM)
    with set_recurrent_mode(recurrent), torch.no_grad():
        found, wanted = module(stored.clone()), peer(stored.clone())
    for key in out_keys:
        torch.testing.assert_close(found[key], wanted[key], rtol=0.0, atol=1e-5)
    for key, spec in peer.make_tensordict_primer().primers.items(True, True):
        assert module.make_tensordict_primer().primers[key] == spec


def policy_of(module: MemoryModule) -> ProbabilisticTensorDictSequential:
    return ProbabilisticTensorDictSequential(
        TensorDictModule(nn.Linear(4, DIM), ["observation"], ["x"]),
        module,
        TensorDictModule(nn.Linear(DIM, 2), ["y"], ["logits"]),
        ProbabilisticTensorDictModule(
            ["logits"], ["action"], distribution_class=torch.distributions.Categorical, return_log_prob=True
        ),
    )


def environment(*transforms: Any, limit: int = 7) -> TransformedEnv:
    cart_poles = SerialEnv(3, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True))
    return TransformedEnv(cart_poles, Compose(StepCounter(limit), *transforms))


def batches(env: TransformedEnv, policy: nn.Module, number: int, frames: int = 60) -> Iterator[TensorDictBase]:
    collector = Collector(env, policy, frames_per_batch=frames, total_frames=-1, auto_register_policy_transforms=False)
    try:
        for _, batch in zip(range(number), collector, strict=False):
            yield batch
    finally:
        collector.shutdown()


@some_cores
def test_in_a_stock_collector_the_log_probabilities_are_recomputed_as_they_were_collected(name: str) -> None:
    torch.manual_seed(0)
    module = module_of(name).float()
    policy = policy_of(module)
    env = environment(InitTracker(), module.make_tensordict_primer())
    check_env_specs(env)
    for batch in batches(env, policy, 2):
        assert batch["is_init"][:, 1:].any()
        with set_recurrent_mode(True), torch.no_grad():
            again = policy.get_dist(batch.select(*policy.in_keys)).log_prob(batch["action"])
        torch.testing.assert_close(again, batch["action_log_prob"], rtol=0.0, atol=1e-5)


@some_cores
def test_clip_ppo_trains_it_with_advantages_from_gae(name: str) -> None:
    torch.manual_seed(0)
    module = module_of(name).float()
    policy = policy_of(module)
    critic = TensorDictModule(nn.Linear(DIM, 1), ["y"], ["state_value"])  # reads what the actor's trunk wrote
    loss = ClipPPOLoss(policy, critic, entropy_coeff=0.01)
    env = environment(InitTracker(), module.make_tensordict_primer())
    optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
    for batch in batches(env, policy, 2):
        value_network = TensorDictSequential(policy[0], policy[1], critic)
        with set_recurrent_mode(True), torch.no_grad():
            GAE(gamma=0.9, lmbda=0.9, value_network=value_network, deactivate_vmap=True)(batch)
        losses = loss(batch)
        assert abs(float(losses["kl_approx"])) < 1e-6
        assert float(losses["clip_fraction"]) == 0.0
        optimizer.zero_grad()
        sum(losses[key] for key in ("loss_objective", "loss_critic", "loss_entropy")).backward()
        for parameter in module.parameters():
            assert parameter.grad is not None
            assert bool(parameter.grad.isfinite().all())
        assert any(bool(parameter.grad.any()) for parameter in module.parameters())
        optimizer.step()


@some_cores
def test_gae_over_the_value_network_equals_gae_over_the_values_of_the_steps(name: str) -> None:
    # The "next" stream of GAE is where loading a state and dropping it differ, at episodes that are truncated.
    torch.manual_seed(0)
    module = module_of(name).float()
    policy = policy_of(module)
    value = TensorDictModule(nn.Linear(DIM, 1), ["y"], ["state_value"])
    network = TensorDictSequential(policy[0], policy[1], value)
    env = environment(InitTracker(), module.make_tensordict_primer())
    (batch,) = batches(env, policy, 1)
    assert batch["next", "truncated"].any()

    by_network = batch.clone()
    with set_recurrent_mode(True), torch.no_grad():
        GAE(gamma=0.9, lmbda=0.9, value_network=network, deactivate_vmap=True)(by_network)

    by_steps = with_values(batch, network)
    GAE(gamma=0.9, lmbda=0.9, value_network=None)(by_steps)
    torch.testing.assert_close(by_network["advantage"], by_steps["advantage"], rtol=0.0, atol=1e-4)


def with_values(batch: TensorDictBase, network: nn.Module) -> TensorDictBase:
    """The batch with the value of every step and of every next observation, one step at a time."""
    here, there = [], []
    with torch.no_grad():
        for t in range(batch.shape[1]):
            here.append(network(batch[:, t].select(*network.in_keys))["state_value"])
            following = batch[:, t]["next"].select(*network.in_keys)
            following["is_init"] = torch.zeros_like(following["is_init"])
            there.append(network(following)["state_value"])
    valued = batch.clone()
    valued["state_value"], valued["next", "state_value"] = torch.stack(here, 1), torch.stack(there, 1)
    return valued


@pytest.mark.parametrize("name", ["gated_delta", "lstm", "softmax", "gtrxl"])
def test_forgetting_the_primer_is_an_error_that_says_what_to_do(name: str) -> None:
    module = module_of(name).float()
    with pytest.raises(
        RuntimeError, match=r"forget everything at every step: append memory\.make_tensordict_primer\(\)"
    ):
        list(batches(environment(InitTracker()), policy_of(module), 1))


@some_cores
def test_forgetting_the_init_tracker_is_an_error_that_says_what_to_do(name: str) -> None:
    module = module_of(name).float()
    with pytest.raises(RuntimeError, match=r"found no is_init .*append torchrl\.envs\.InitTracker\(\)"):
        list(batches(environment(module.make_tensordict_primer()), policy_of(module), 1))


def test_states_may_be_kept_under_keys_of_the_users_own_nested_or_not() -> None:
    core = make_core("gated_delta", DIM, heads=2, head_dim=4)
    for states in ([("deep", "inside", "W"), ("deep", "tail")], ["W", "tail"]):
        module = MemoryModule(core, in_keys=["x", *states], out_key="y")
        assert module.in_keys == ["x", *states, "is_init"]
        policy = policy_of(module)
        env = environment(InitTracker(), module.make_tensordict_primer())
        (batch,) = batches(env, policy, 1)
        assert batch[states[0]].shape == (3, 20, 2, 4, 4)
        with set_recurrent_mode(True), torch.no_grad():
            again = policy.get_dist(batch.select(*policy.in_keys)).log_prob(batch["action"])
        torch.testing.assert_close(again, batch["action_log_prob"], rtol=0.0, atol=1e-5)


def test_the_primers_zeros_begin_a_life_as_a_learned_reset_state_does() -> None:
    module = module_of("gtrxl")
    fresh = module.core.initial_state(3)
    torch.manual_seed(2)
    batch = {"x": torch.randn(3, 7, DIM, dtype=torch.float64), "is_init": torch.zeros(3, 7, 1, dtype=torch.bool)}
    batch["is_init"][:, [0, 4]] = True
    stored = TensorDict(batch, [3, 7])
    for state, (shape, dtype) in zip(module.state_keys, module._specs, strict=True):
        stored[state] = torch.zeros(3, 7, *shape, dtype=dtype)
    with set_recurrent_mode(True):
        found = module(stored)["y"]
    wanted = module.core(batch["x"], fresh, batch["is_init"][..., 0])[0]
    torch.testing.assert_close(found, wanted, rtol=0.0, atol=1e-12)
    learned = [p for name, p in module.named_parameters() if "learned" in name]
    assert len(learned) == 1
    for a, b in zip(*(torch.autograd.grad(y.square().sum(), learned) for y in (found, wanted)), strict=True):
        assert b.any()
        torch.testing.assert_close(a, b, rtol=0.0, atol=1e-10)


def test_the_primers_zeros_begin_a_life_where_a_core_of_ones_own_begins_elsewhere() -> None:
    class Own(MemoryCore):
        def initial_state(self, batch_size, device=None, dtype=None):
            return TensorDict(
                {"sum": self._zeros(batch_size, self.dim, device=device, dtype=dtype) + 1.0}, [batch_size]
            )

        def step(self, inputs, state, reset=None):
            start = self.initial_state(len(inputs), dtype=inputs.dtype)["sum"]
            new = inputs + (state["sum"] if reset is None else torch.where(reset.unsqueeze(1), start, state["sum"]))
            return new, TensorDict({"sum": new}, [len(inputs)])

        def forward(self, inputs, state, reset=None):
            outputs = []
            for t in range(inputs.shape[1]):
                output, state = self.step(inputs[:, t], state, None if reset is None else reset[:, t])
                outputs.append(output)
            return torch.stack(outputs, 1), state

    module = MemoryModule(Own(DIM), in_key="x", out_key="y")
    is_init = torch.zeros(2, 5, 1, dtype=torch.bool)
    is_init[:, [0, 3]] = True
    batch = {"x": torch.ones(2, 5, DIM), "is_init": is_init, "memory": {"sum": torch.zeros(2, 5, DIM)}}
    with set_recurrent_mode(True):
        found = module(TensorDict(batch, [2, 5]))["y"]
    assert found[0, :, 0].tolist() == [2.0, 3.0, 4.0, 2.0, 3.0]


def test_it_works_in_environments_that_run_in_processes() -> None:
    module = module_of("softmax").float()
    envs = ParallelEnv(2, lambda: GymEnv("CartPole-v1", categorical_action_encoding=True), mp_start_method="fork")
    env = TransformedEnv(envs, Compose(StepCounter(7), InitTracker(), module.make_tensordict_primer()))
    policy = policy_of(module)
    (batch,) = batches(env, policy, 1, frames=40)
    assert batch["is_init"][:, 1:].any()
    assert int(batch["memory", "life_step"].max()) == 6  # a life has 7 steps
    with set_recurrent_mode(True), torch.no_grad():
        again = policy.get_dist(batch.select(*policy.in_keys)).log_prob(batch["action"])
    torch.testing.assert_close(again, batch["action_log_prob"], rtol=0.0, atol=1e-5)


def test_one_environment_without_a_batch_axis_is_served_too() -> None:
    module = module_of("gated_delta").float()
    transforms = Compose(InitTracker(), module.make_tensordict_primer())
    env = TransformedEnv(GymEnv("CartPole-v1", categorical_action_encoding=True), transforms)
    rollout = env.rollout(5, policy_of(module), break_when_any_done=False)
    assert rollout["y"].shape == (5, DIM)
    assert bool(rollout["memory", "layer_0", "fast_weights"][1].any())


def test_the_default_mode_can_be_recurrent_and_the_context_manager_wins() -> None:
    module = MemoryModule(make_core("gru", DIM), in_key="x", out_key="y", default_recurrent_mode=True)
    assert module.recurrent_mode
    with set_recurrent_mode(False):
        assert not module.recurrent_mode


def test_mistaken_keys_are_refused_in_plain_words() -> None:
    core = make_core("lstm", DIM)
    with pytest.raises(ValueError, match="either in_key or in_keys, and either out_key or out_keys"):
        MemoryModule(core, in_key="x", in_keys=["x", "h", "c"], out_key="y")
    with pytest.raises(ValueError, match=r"needs 3 in_keys .* one for each of \['hidden', 'cell'\]"):
        MemoryModule(core, in_keys=["x", "h"], out_key="y")
    module = MemoryModule(core, in_keys=["x", "h", "c"], out_keys=["y", ("next", "h"), ("next", "cc")])
    with pytest.raises(RuntimeError, match=r"so the state c must be written to \('next', 'c'\)"):
        module.make_tensordict_primer()


def test_recurrent_mode_without_a_time_axis_is_refused() -> None:
    module = module_of("gru")
    step: dict[str, Tensor] = {"x": torch.zeros(DIM), "is_init": torch.zeros(1, dtype=torch.bool)}
    with set_recurrent_mode(True), pytest.raises(ValueError, match="time axis"):
        module(TensorDict(step, []))
