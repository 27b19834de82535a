import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.base import Observation
from lifelong.envs.drift_bandit import DriftBandit, filter_rate, simulate_filter_rate
from lifelong.envs.drift_bandit_learners import filter_update, win_stay_lose_shift_rate
from lifelong.envs.measurement import estimate, measure, oracle_policy, random_policy

ZEROS = torch.zeros(256, dtype=torch.int64)


def test_an_arm_pays_with_its_probability() -> None:
    env = DriftBandit(256, seed=0, arms=3, high=0.8, low=0.3, hazard=0.05)
    env.reset()
    paid: dict[bool, list[Tensor]] = {True: [], False: []}
    for action in torch.randint(3, (400, 256), generator=torch.Generator().manual_seed(0)):
        best = env.privileged["regime"] == action
        reward = env.step(action).reward
        for which in (True, False):
            paid[which].append(reward[best == which])
    assert estimate(torch.cat(paid[True])).agrees_with(0.8)
    assert estimate(torch.cat(paid[False])).agrees_with(0.3)


def test_the_best_arm_changes_at_its_hazard_to_another_arm() -> None:
    env = DriftBandit(256, seed=0, arms=4, hazard=0.05)
    env.reset()
    changes, shift, age = [], [], ZEROS
    for _ in range(400):
        before = env.privileged["regime"]
        step = env.step(ZEROS)
        changed = step.privileged["changed"]
        assert (step.privileged["regime"] != before).equal(changed)
        age = (age + 1).masked_fill(changed, 0)
        assert step.privileged["steps_since_change"].equal(age)
        shift.append((step.privileged["regime"] - before)[changed].remainder(4))
        changes.append(changed.double())
    assert estimate(torch.stack(changes).mean(0)).agrees_with(0.05)
    shares = torch.cat(shift).bincount(minlength=4) / len(torch.cat(shift))
    assert shares.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.03)


def test_the_observation_says_nothing_when_the_regime_is_hidden() -> None:
    env = DriftBandit(256, seed=0)
    assert env.reset()["observation"].equal(torch.ones(256, 1))
    assert env.step(ZEROS).observation["observation"].equal(torch.ones(256, 1))


@pytest.mark.parametrize(("signal", "width"), [("flag", 1), ("cue", 5), ("always", 5)])
def test_the_signal_tells_of_the_best_arm(signal: str, width: int) -> None:
    env = DriftBandit(256, seed=0, hazard=0.1, signal=signal)
    told = env.reset()["observation"][:, 1:]
    for _ in range(50):
        hidden = env.privileged
        fresh = (hidden["steps_since_change"] == 0)[:, None]
        code = torch.nn.functional.one_hot(hidden["regime"], 5).float()
        expected = {"flag": fresh.float(), "cue": code * fresh, "always": code}[signal]
        assert told.shape == (256, width)
        assert told.equal(expected)
        told = env.step(ZEROS).observation["observation"][:, 1:]


@pytest.mark.parametrize(("arms", "published"), [((5, 0.9, 0.1, 0.01), 0.639), ((10, 0.9, 0.1, 1e-3), 0.498)])
def test_win_stay_lose_shift_earns_its_closed_form(arms: tuple[int, float, float, float], published: float) -> None:
    rate = win_stay_lose_shift_rate(*arms)
    assert rate == pytest.approx(published, abs=0.0006)
    env = DriftBandit(256, seed=1, arms=arms[0], high=arms[1], low=arms[2], hazard=arms[3])
    generator = torch.Generator().manual_seed(0)
    env.reset()
    arm, total = ZEROS, torch.zeros(256, dtype=torch.float64)
    for t in range(1200):
        reward = env.step(arm).reward
        total += reward * (t >= 200)
        shifted = (arm + 1 + torch.randint(arms[0] - 1, (256,), generator=generator)) % arms[0]
        arm = torch.where(reward > 0.5, arm, shifted)
    assert estimate(total / 1000).agrees_with(rate)


def test_the_filter_is_bayes_rule_and_then_the_chain() -> None:
    arms, high, low, hazard = 3, 0.7, 0.2, 0.1
    belief = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)
    for arm in range(arms):
        for reward in (0.0, 1.0):
            joint = []  # by hand: P(best) P(reward | best, arm)
            for best in range(arms):
                chance = high if best == arm else low
                joint.append(float(belief[0, best]) * (chance if reward else 1 - chance))
            posterior = [value / sum(joint) for value in joint]
            expected = [
                sum(p * (1 - hazard if i == j else hazard / (arms - 1)) for i, p in enumerate(posterior))
                for j in range(arms)
            ]
            updated = filter_update(belief, torch.tensor([arm]), torch.tensor([reward]), high, low, hazard)
            assert updated[0].tolist() == pytest.approx(expected, abs=1e-12)


def test_the_stored_ideal_of_the_default_options_agrees_with_a_new_simulation_and_with_the_published_one() -> None:
    stored, new = filter_rate(5, 0.9, 0.1, 0.01, False), simulate_filter_rate(5, 0.9, 0.1, 0.01, False, seed=7)
    assert abs(stored.mean - new.mean) <= 3 * (stored.standard_error**2 + new.standard_error**2) ** 0.5
    assert stored.mean == pytest.approx(0.851, abs=0.001)
    assert (
        win_stay_lose_shift_rate(5, 0.9, 0.1, 0.01) < stored.mean < simulate_filter_rate(5, 0.9, 0.1, 0.01, True).mean
    )


@pytest.mark.parametrize("arms", [2, 6])
def test_restless_arms_earn_their_closed_forms(arms: int) -> None:
    def build() -> DriftBandit:
        return DriftBandit(512, seed=0, arms=arms, kind="restless", high=0.8, low=0.2, deviation=0.1)

    references = build().references
    assert measure(build(), oracle_policy, 500, "step").agrees_with(references.oracle)
    assert measure(build(), random_policy(arms, seed=0), 500, "step").agrees_with(references.random)


def test_restless_arms_move_each_on_its_own_and_the_oracle_pulls_the_best_of_them() -> None:
    env = DriftBandit(256, seed=0, arms=3, kind="restless", deviation=0.02)
    env.reset()
    moves = []
    for _ in range(200):
        before = env.state.world.schedule
        assert env.privileged["oracle_action"].equal(before.argmax(1))
        assert env.privileged["oracle_rate"].equal(before.max(1).values)
        step = env.step(ZEROS)
        moves.append(env.state.world.schedule - before)
        assert (step.privileged["regime"] != before.argmax(1)).equal(step.privileged["changed"])
    moved = torch.stack(moves).flatten(0, 1)
    assert moved.std().item() == pytest.approx(0.02, rel=0.03)
    correlation = torch.corrcoef(moved.T) - torch.eye(3)
    assert correlation.abs().max().item() < 0.02


def test_always_telling_makes_memory_superfluous_and_the_reference_says_so() -> None:
    def follow(observation: Observation, privileged: object) -> Tensor:
        return observation["observation"][:, 1:].argmax(1)

    env = DriftBandit(256, seed=0, signal="always")
    assert env.references.memoryless is not None
    assert measure(env, follow, 300, "step").agrees_with(env.references.memoryless)
    cue = DriftBandit(256, seed=0, signal="cue", life_steps=10)
    assert cue.references.memoryless is not None
    assert measure(cue, follow, 300, "step").agrees_with(cue.references.memoryless)


def test_short_lives_have_no_stored_ideal() -> None:
    assert DriftBandit(1, 0, life_steps=50).references.ideal_learner is None


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("arms", 1, "drift_bandit: arms=1 is not allowed; allowed: an integer of at least 2"),
        ("high", 1.2, "drift_bandit: high=1.2 is no probability; allowed: 0 to 1"),
        ("high", 0.1, "drift_bandit: high=0.1 is not allowed; allowed: a finite number above 0.1"),
        ("kind", "moving", "drift_bandit: kind='moving' is unknown; allowed: switching, restless"),
        ("deviation", 0.0, "drift_bandit: deviation=0.0 is not allowed; allowed: a finite number above 0"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "drift_bandit", "num_lives": 2, "seed": 0, option: value})
