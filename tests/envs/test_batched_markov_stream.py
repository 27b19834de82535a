import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.markov_stream import MarkovStream, filter_rate, simulate_filter_rate
from lifelong.envs.markov_stream_filter import MarkovFilter, tell_regime
from lifelong.envs.measurement import estimate, measure


def test_the_symbol_moves_along_the_regimes_cycle_and_a_right_prediction_is_paid_in_its_time() -> None:
    symbols, regimes, lives = 5, 3, 16
    env = MarkovStream(
        lives, seed=0, symbols=symbols, regimes=regimes, hazard=0.2, noise=0.3, unpaid_steps=4, paid_steps=3
    )
    observation = env.reset()["observation"]
    for t, action in enumerate(torch.randint(symbols, (100, lives), generator=torch.Generator().manual_seed(0))):
        world = env.state.world
        hidden = env.privileged
        paid = (world.phase >= 4).float()
        assert observation[:, :symbols].sum(1).eq(1).all()
        assert observation[:, symbols].equal(paid)
        assert hidden["paid"].equal(paid.bool())
        step = env.step(action)
        after = env.state.world
        for life in range(lives):
            follows = int(world.successor[life, int(world.regime[life, 0]), world.symbol[life]])
            assert int(after.symbol[life]) == follows == int(hidden["oracle_action"][life])
        observation = step.observation["observation"]
        shown = observation[:, :symbols].argmax(1)
        assert step.reward.equal((action == shown).float() * paid)
        assert after.phase.equal((world.phase + 1) % 7)
        assert not (step.terminated | step.truncated | step.soft_reset).any(), t
    assert env.lifelong


def test_every_rule_is_one_cycle_through_all_symbols_and_all_cycles_are_as_likely() -> None:
    world = MarkovStream(3000, seed=0, symbols=4, regimes=2).initial_state().world
    start = torch.zeros(3000, 2, 1, dtype=torch.int64)
    path = [start]
    for _ in range(3):
        path.append(world.successor.gather(2, path[-1]))
    visited = torch.cat(path, dim=2)
    assert visited.sort(dim=2).values.eq(torch.arange(4)).all()
    assert world.successor.gather(2, path[-1]).eq(start).all()
    kinds = (visited[..., 1] * 16 + visited[..., 2] * 4 + visited[..., 3]).flatten().unique(return_counts=True)[1]
    assert len(kinds) == 6
    assert float(((kinds - 1000) ** 2 / 1000.0).sum()) < 20.5  # 99.9 % quantile, 5 degrees of freedom


def test_regimes_and_noise_come_at_their_stated_rates() -> None:
    env = MarkovStream(256, seed=1, symbols=4, hazard=0.1, noise=0.4)
    env.reset()
    changes, masked = [], []
    for _ in range(200):
        before = env.privileged["regime"]
        step = env.step(torch.zeros(256, dtype=torch.int64))
        changed = step.privileged["changed"]
        assert changed.equal(step.privileged["regime"] != before)
        assert step.privileged["steps_since_change"].eq(0).equal(changed)
        changes.append(changed.double())
        masked.append((env.state.world.shown != env.state.world.symbol).double())
    assert estimate(torch.stack(changes).mean(0)).agrees_with(0.1)
    assert estimate(torch.stack(masked).mean(0)).agrees_with(0.4 * 3 / 4)


@pytest.mark.parametrize(("symbols", "noise"), [(3, 0.0), (8, 0.1), (4, 0.7)])
def test_the_memoryless_reference_is_earned_by_any_symbol_but_the_one_seen(symbols: int, noise: float) -> None:
    def another(observation: dict[str, Tensor], privileged: object) -> Tensor:
        return (observation["observation"][:, :symbols].argmax(1) + 1) % symbols

    env = MarkovStream(1024, seed=2, symbols=symbols, noise=noise, hazard=0.1, life_steps=20)  # many lives: many cycles
    assert env.references.memoryless is not None
    assert measure(env, another, 200, "step").agrees_with(env.references.memoryless)


def forward_algorithm(successor: Tensor, noise: float, hazard: float, seen: list[int]) -> Tensor:
    """The definition: the belief [M, S] by the transition matrix of the whole hidden chain (regime, symbol)."""
    regimes, symbols = successor.shape
    chain = torch.zeros(regimes, symbols, regimes, symbols, dtype=torch.float64)
    for z in range(regimes):
        for x in range(symbols):
            for new in range(regimes):
                chance = 1 - hazard if new == z else hazard / (regimes - 1)
                chain[z, x, new, successor[z, x]] += chance
    belief = torch.full((regimes, symbols), 1 / (regimes * symbols), dtype=torch.float64)
    for t, symbol in enumerate(seen):
        if t:
            belief = torch.einsum("zx,zxyw->yw", belief, chain)
        likelihood = torch.full((symbols,), noise / symbols, dtype=torch.float64)
        likelihood[symbol] += 1 - noise
        belief = belief * likelihood
        belief = belief / belief.sum()
    return belief


def test_the_filter_is_the_forward_algorithm_of_the_hidden_chain() -> None:
    env = MarkovStream(3, seed=5, symbols=4, regimes=3, hazard=0.1, noise=0.2)
    env.reset()
    successor = env.state.world.successor
    seen = [env.state.world.shown]
    markov = MarkovFilter(successor, noise=0.2)
    belief = markov.begin(seen[0])
    for _ in range(25):
        env.step(torch.zeros(3, dtype=torch.int64))
        seen.append(env.state.world.shown)
        belief = markov.update(belief, seen[-1], 0.1)
    for life in range(3):
        expected = forward_algorithm(successor[life], 0.2, 0.1, [int(shown[life]) for shown in seen])
        torch.testing.assert_close(belief[life], expected, rtol=0, atol=1e-12)
    told = tell_regime(belief, torch.tensor([0, 1, 2]))
    torch.testing.assert_close(told.sum(2), torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-12)


def test_the_more_is_told_the_better_the_filter_predicts_and_without_noise_or_change_it_knows_all() -> None:
    rates = [simulate_filter_rate(5, 3, 0.05, 0.2, signal, 96, 100, 30) for signal in ("hidden", "flag", "always")]
    assert rates[0].mean < rates[1].mean < rates[2].mean < 1 - 0.2 + 0.2 / 5
    assert simulate_filter_rate(5, 3, 0.0, 0.0, "hidden", 32, 30, 40).mean == 1.0


def test_the_stored_filter_of_the_default_options_agrees_with_a_new_simulation() -> None:
    stored = filter_rate(8, 4, 0.005, 0.1, "hidden")
    new = simulate_filter_rate(8, 4, 0.005, 0.1, "hidden", lives=256, steps=150, burn_in=150, seed=7)
    assert abs(stored.mean - new.mean) <= 3 * (stored.standard_error**2 + new.standard_error**2) ** 0.5
    ideal = MarkovStream(1, 0).references.ideal_learner
    assert ideal == stored.mean
    assert MarkovStream(1, 0, unpaid_steps=300, paid_steps=100).references.ideal_learner == pytest.approx(ideal / 4)


@pytest.mark.parametrize("signal", ["flag", "cue", "always"])
def test_the_signal_tells_of_the_regime(signal: str) -> None:
    env = MarkovStream(16, seed=0, regimes=3, hazard=0.2, signal=signal)
    told = env.reset()["observation"][:, 9:]
    for _ in range(50):
        hidden = env.privileged
        fresh = (hidden["steps_since_change"] == 0)[:, None]
        code = torch.nn.functional.one_hot(hidden["regime"], 3).float()
        assert told.equal({"flag": fresh.float(), "cue": code * fresh, "always": code}[signal])
        told = env.step(torch.zeros(16, dtype=torch.int64)).observation["observation"][:, 9:]


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("symbols", 2, "markov_stream: symbols=2 is not allowed; allowed: an integer of at least 3"),
        ("regimes", 1, "markov_stream: regimes=1 is not allowed; allowed: an integer of at least 2"),
        ("hazard", 1.5, "markov_stream: hazard=1.5 is no probability; allowed: 0 to 1"),
        ("noise", -0.1, "markov_stream: noise=-0.1 is not allowed; allowed: a finite number of at least 0 and below 1"),
        ("unpaid_steps", -1, "markov_stream: unpaid_steps=-1 is not allowed; allowed: an integer from 0"),
        ("paid_steps", 0, "markov_stream: paid_steps=0 is not allowed; allowed: an integer from 1"),
        ("signal", "loud", "markov_stream: signal='loud' is unknown; allowed: hidden, flag, cue, always"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "markov_stream", "num_lives": 2, "seed": 0, option: value})
