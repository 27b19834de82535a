import itertools

import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.base import References
from lifelong.envs.measurement import estimate
from lifelong.envs.switching_bandit import SwitchingBandit, ideal_rate, simulate_ideal_rate
from lifelong.envs.switching_bandit_learners import (
    BayesLearner,
    Belief,
    elimination_rate,
    simulate_bayes_learner,
    told_rate,
)


def test_the_reward_is_one_for_the_hidden_action_of_the_context_and_the_context_is_all_that_is_seen() -> None:
    env = SwitchingBandit(num_lives=8, seed=0, contexts=5, actions=3)
    observation = env.reset()
    for action in torch.randint(3, (200, 8), generator=torch.Generator().manual_seed(0)):
        world = env.state.world
        assert observation["observation"].argmax(1).equal(world.context)
        assert observation["observation"].sum(1).eq(1).all()
        right = [int(world.mapping[life, world.context[life]]) for life in range(8)]
        step = env.step(action)
        assert step.reward.tolist() == [float(a == b) for a, b in zip(action.tolist(), right, strict=True)]
        assert not (step.terminated | step.truncated | step.soft_reset).any()
        observation = step.observation
    assert env.lifelong


def test_the_whole_mapping_is_redrawn_at_the_stated_hazard_and_only_then() -> None:
    env = SwitchingBandit(num_lives=256, seed=0, contexts=6, actions=4, hazard=0.02)
    env.reset()
    changes, redrawn, age = [], [], torch.zeros(256, dtype=torch.int64)
    for _ in range(500):
        before = env.state.world.mapping
        step = env.step(torch.zeros(256, dtype=torch.int64))
        changed = step.privileged["changed"]
        kept = (env.state.world.mapping == before).float().mean(1)
        assert (kept[~changed] == 1).all()
        redrawn.append(kept[changed])
        age = (age + 1).masked_fill(changed, 0)
        assert step.privileged["steps_since_change"].equal(age)
        changes.append(changed.double())
    assert estimate(torch.stack(changes).mean(0)).agrees_with(0.02)
    assert estimate(torch.cat(redrawn)).agrees_with(1 / 4)  # each context keeps its action by chance only


@pytest.mark.parametrize(("hazard", "changes"), [(0.0, False), (1.0, True)])
def test_the_ends_of_the_hazard_are_never_and_always(hazard: float, changes: bool) -> None:
    env = SwitchingBandit(num_lives=4, seed=0, hazard=hazard)
    env.reset()
    for _ in range(20):
        assert (env.step(torch.zeros(4, dtype=torch.int64)).privileged["changed"] == changes).all()


class FilterOverMappings:
    """The definition of the Bayes learner: a hidden Markov filter over all A^K mappings."""

    def __init__(self, contexts: int, actions: int, hazard: float) -> None:
        self.mappings = torch.tensor(list(itertools.product(range(actions), repeat=contexts)))  # [A^K, K]
        self.actions, self.hazard = actions, hazard
        self.weight = torch.full((len(self.mappings),), 1 / len(self.mappings), dtype=torch.float64)

    def probability(self, context: int) -> Tensor:
        return torch.stack([self.weight[self.mappings[:, context] == a].sum() for a in range(self.actions)])

    def update(self, context: int, action: int, success: bool) -> None:
        weight = self.weight * ((self.mappings[:, context] == action) == success)
        self.weight = (1 - self.hazard) * weight / weight.sum() + self.hazard / len(self.mappings)


@pytest.mark.parametrize(("contexts", "actions", "hazard"), [(1, 2, 0.3), (2, 3, 0.1), (3, 4, 0.02), (4, 2, 0.5)])
def test_the_bayes_learner_holds_the_posterior_over_all_mappings(contexts: int, actions: int, hazard: float) -> None:
    lives = 6
    env = SwitchingBandit(lives, seed=4, contexts=contexts, actions=actions, hazard=hazard)
    learner = BayesLearner(contexts, actions, hazard)
    belief: Belief = learner.initial_belief(lives)
    filters = [FilterOverMappings(contexts, actions, hazard) for _ in range(lives)]
    context = env.reset()["observation"].argmax(1)
    generator = torch.Generator().manual_seed(0)
    for t in range(150):
        for c in range(contexts):
            asked = torch.full((lives,), c)
            expected = torch.stack([each.probability(c) for each in filters])
            torch.testing.assert_close(learner.probability(belief, asked), expected, rtol=0, atol=1e-12)
        greedy = learner.probability(belief, context).argmax(1)
        explore = torch.rand(lives, generator=generator) < 0.3  # the posterior is exact whatever the actions
        action = torch.where(explore, torch.randint(actions, (lives,), generator=generator), greedy)
        step = env.step(action)
        success = step.reward > 0.5
        for life, each in enumerate(filters):
            each.update(int(context[life]), int(action[life]), bool(success[life]))
        belief = learner.update(belief, context, action, success, t)
        context = step.observation["observation"].argmax(1)


def simulate_elimination_learner(env: SwitchingBandit, steps: int, burn_in: int) -> Tensor:
    """Mean reward of each life, by doing what the docstring of ``elimination_rate`` says."""
    lives = torch.arange(env.num_lives)
    possible = torch.ones(env.num_lives, env.contexts, env.actions, dtype=torch.bool)
    context = env.reset()["observation"].argmax(1)
    total = torch.zeros(env.num_lives, dtype=torch.float64)
    for t in range(burn_in + steps):
        action = possible[lives, context].float().argmax(1)
        step = env.step(action)
        success = step.reward > 0.5
        possible[lives[success], context[success]] = False
        possible[lives[success], context[success], action[success]] = True
        failed = lives[~success]
        possible[failed, context[failed], action[failed]] = False
        contradicted = failed[~possible[failed, context[failed]].any(1)]
        possible[contradicted] = True
        possible[contradicted, context[contradicted], action[contradicted]] = False
        context = step.observation["observation"].argmax(1)
        total += step.reward * (t >= burn_in)
    return total / steps


@pytest.mark.parametrize(("contexts", "actions", "hazard"), [(1, 2, 0.3), (3, 2, 0.05), (2, 4, 0.1), (6, 4, 1 / 100)])
def test_the_elimination_learner_earns_its_closed_form(contexts: int, actions: int, hazard: float) -> None:
    env = SwitchingBandit(256, seed=1, contexts=contexts, actions=actions, hazard=hazard)
    measured = estimate(simulate_elimination_learner(env, steps=600, burn_in=100))
    assert measured.agrees_with(elimination_rate(contexts, actions, hazard)), measured


@pytest.mark.parametrize(("contexts", "actions"), [(1, 2), (3, 3), (6, 4)])
def test_the_elimination_learner_loses_its_closed_form_per_change_when_changes_are_rare(
    contexts: int, actions: int
) -> None:
    hazard = 1e-6
    per_change = (1 - actions**-contexts) * (contexts * (actions - 1) + 1) / 2
    assert (1 - elimination_rate(contexts, actions, hazard)) / hazard == pytest.approx(per_change, rel=1e-3)


def simulate_told_learner(env: SwitchingBandit, steps: int, burn_in: int) -> Tensor:
    """Mean reward of each life, striking out what failed and starting over at each flag."""
    lives = torch.arange(env.num_lives)
    possible = torch.ones(env.num_lives, env.contexts, env.actions, dtype=torch.bool)
    observation = env.reset()["observation"]
    total = torch.zeros(env.num_lives, dtype=torch.float64)
    for t in range(burn_in + steps):
        context, flag = observation[:, : env.contexts].argmax(1), observation[:, -1] > 0
        possible[flag] = True
        action = possible[lives, context].float().argmax(1)
        step = env.step(action)
        failed = step.reward < 0.5
        possible[lives[failed], context[failed], action[failed]] = False
        observation = step.observation["observation"]
        total += step.reward * (t >= burn_in)
    return total / steps


@pytest.mark.parametrize(("contexts", "actions", "hazard"), [(1, 2, 0.3), (2, 4, 0.1), (6, 4, 1 / 100), (3, 2, 1.0)])
def test_a_learner_that_is_told_of_changes_earns_its_closed_form(contexts: int, actions: int, hazard: float) -> None:
    options = {"contexts": contexts, "actions": actions, "hazard": hazard, "signal": "flag"}
    env = SwitchingBandit(256, seed=1, **options)  # type: ignore[arg-type]
    measured = estimate(simulate_told_learner(env, steps=500, burn_in=200))
    assert measured.agrees_with(told_rate(contexts, actions, hazard)), measured
    assert env.references.ideal_learner == told_rate(contexts, actions, hazard)
    short = estimate(simulate_told_learner(SwitchingBandit(512, seed=2, **options), steps=20, burn_in=0))  # type: ignore[arg-type]
    assert short.agrees_with(told_rate(contexts, actions, hazard, life_steps=20)), short


def test_the_told_rate_of_a_long_life_is_that_of_a_life_without_end_and_bounds_the_untold() -> None:
    assert told_rate(6, 4, 1 / 300, life_steps=10**9) == pytest.approx(told_rate(6, 4, 1 / 300), abs=1e-6)
    assert told_rate(6, 4, 0.0) == 1.0
    for contexts, actions, hazard in ((6, 4, 1 / 300), (3, 2, 0.05), (2, 4, 0.1)):
        assert elimination_rate(contexts, actions, hazard) <= told_rate(contexts, actions, hazard)
    ideal = ideal_rate(6, 4, 1 / 300, None)
    assert ideal.mean <= told_rate(6, 4, 1 / 300) + 3 * ideal.standard_error


@pytest.mark.parametrize("signal", ["hidden", "flag", "cue", "always"])
def test_the_signal_tells_what_it_says_of_the_mapping_and_no_more(signal: str) -> None:
    env = SwitchingBandit(16, seed=0, contexts=3, actions=2, hazard=0.1, signal=signal)
    told = env.reset()["observation"][:, 3:]
    for t in range(100):
        world = env.state.world
        fresh = world.steps_since_change == 0
        code = torch.nn.functional.one_hot(world.mapping, 2).flatten(1).float()
        expected = {
            "hidden": torch.zeros(16, 0),
            "flag": fresh[:, None].float(),
            "cue": torch.where(fresh[:, None], code, 0.0),
            "always": code,
        }
        assert told.equal(expected[signal]), t
        told = env.step(torch.zeros(16, dtype=torch.int64)).observation["observation"][:, 3:]


def test_references_follow_the_signal() -> None:
    def references(signal: str) -> References:
        return SwitchingBandit(1, 0, signal=signal, hazard=0.01).references

    assert references("always").memoryless == 1.0
    assert references("cue").memoryless == pytest.approx(0.25 + 0.01 * 0.75)
    assert references("flag").memoryless == 0.25
    assert references("cue").ideal_learner == 1.0
    assert "closed form" in references("flag").notes["ideal_learner"]


def test_finding_a_mapping_costs_the_bayes_learner_half_the_other_actions_per_context() -> None:
    env = SwitchingBandit(1024, seed=2, hazard=0.0)
    rate = simulate_bayes_learner(env, BayesLearner(6, 4, 0.0), steps=1, burn_in=99, life_steps=100)
    errors = (1 - rate.mean) * 100
    assert abs(errors - 6 * (4 - 1) / 2) < 3 * rate.standard_error * 100


def test_the_stored_ideal_of_the_default_options_agrees_with_a_new_simulation() -> None:
    stored, new = (
        ideal_rate(6, 4, 1 / 300, None),
        simulate_ideal_rate(6, 4, 1 / 300, None, seed=7),
    )
    assert abs(stored.mean - new.mean) <= 3 * (stored.standard_error**2 + new.standard_error**2) ** 0.5
    assert stored.mean > elimination_rate(6, 4, 1 / 300)


def test_the_ideal_of_short_lives_includes_their_beginning() -> None:
    # K = 1, A = 2, no changes: half of the lives lose exactly their first step.
    for life_steps in (10, 2000):
        rate = simulate_ideal_rate(1, 2, 0.0, life_steps)
        assert abs(rate.mean - (1 - 0.5 / life_steps)) <= 3 * rate.standard_error
    assert simulate_ideal_rate(1, 2, 0.0, None).mean == pytest.approx(1.0)


def test_references_are_those_of_the_options() -> None:
    references = make_env({"name": "switching_bandit", "num_lives": 1, "seed": 0}).references
    assert references is not None
    assert (references.per, references.random, references.memoryless, references.oracle) == ("step", 0.25, 0.25, 1.0)
    assert references.ideal_learner == pytest.approx(0.971, abs=1e-3)
    small = SwitchingBandit(1, 0, contexts=2, actions=3, hazard=0.1).references
    assert small.random == pytest.approx(1 / 3)
    assert small.ideal_learner == pytest.approx(elimination_rate(2, 3, 0.1), abs=0.05)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("hazard", 1.5, "switching_bandit: hazard=1.5 is no probability; allowed: 0 to 1"),
        ("hazard", float("nan"), "switching_bandit: hazard=nan is no probability; allowed: 0 to 1"),
        ("contexts", 0, "switching_bandit: contexts=0 is not allowed; allowed: an integer of at least 1"),
        ("signal", "loud", "switching_bandit: signal='loud' is unknown; allowed: hidden, flag, cue, always"),
        ("actions", 1, "switching_bandit: actions=1 is not allowed; allowed: an integer of at least 2"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "switching_bandit", "num_lives": 2, "seed": 0, option: value})
