import pytest
import torch
from torch import Tensor

from lifelong.envs import make_env
from lifelong.envs.delayed_credit import DelayedCredit
from lifelong.envs.measurement import estimate, measure


def test_the_answer_to_the_cue_is_paid_after_the_delay_by_the_rule_at_the_choice() -> None:
    env = DelayedCredit(64, seed=0, delay=3, noise=0.5, hazard=0.1)
    seen = env.reset()["observation"]
    generator = torch.Generator().manual_seed(0)
    noise = []
    for _ in range(20):
        hidden = env.privileged
        cue, rule = seen[:, :2].argmax(1), hidden["regime"]
        assert hidden["oracle_action"].equal(torch.where(rule == 0, cue, 1 - cue))
        answer = torch.randint(2, (64,), generator=generator)
        pay = torch.where(answer == hidden["oracle_action"], 1.0, -1.0)
        for position in range(5):
            expected = torch.zeros(64, 4)
            if position == 0:
                expected[torch.arange(64), cue] = 1
            expected[:, 2] = 1 <= position <= 3
            expected[:, 3] = position == 4
            assert seen.equal(expected)
            step = env.step(answer if position == 0 else torch.randint(2, (64,), generator=generator))
            if position in (0, 4):
                assert step.reward.equal(pay if position else torch.zeros(64))
            else:
                noise.append(step.reward)
            assert step.soft_reset.eq(position == 4).all()
            seen = step.observation["observation"]
    sample = torch.cat(noise)
    assert estimate(sample).agrees_with(0.0)
    assert sample.std().item() == pytest.approx(0.5, rel=0.05)


def test_a_changing_rule_changes_at_its_hazard_and_a_fixed_one_never() -> None:
    for rule, expected in (("changing", 0.05), ("fixed", 0.0)):
        env = DelayedCredit(256, seed=0, rule=rule, hazard=0.05)  # type: ignore[arg-type]
        env.reset()
        changes = []
        for _ in range(200):
            before = env.privileged["regime"]
            step = env.step(torch.zeros(256, dtype=torch.int64))
            assert (step.privileged["regime"] != before).equal(step.privileged["changed"])
            changes.append(step.privileged["changed"].double())
        assert estimate(torch.stack(changes).mean(0)).agrees_with(expected)


@pytest.mark.parametrize(("delay", "hazard"), [(2, 0.05), (8, 0.01), (1, 0.5)])
def test_answering_by_the_rule_of_the_last_choice_earns_the_ideal(delay: int, hazard: float) -> None:
    env = DelayedCredit(512, seed=0, delay=delay, hazard=hazard, noise=0.0)
    cycle = delay + 2
    rule = torch.zeros(512, dtype=torch.int64)  # what the last payoff told
    seen = env.reset()["observation"]
    answer = cue = rule
    paid: list[Tensor] = []
    for t in range(20 * cycle):
        if t % cycle == 0:
            cue = seen[:, :2].argmax(1)
            answer = cue ^ rule
        step = env.step(answer)
        if t % cycle == cycle - 1:
            rule = torch.where(step.reward > 0, answer ^ cue, 1 - (answer ^ cue))
            if t >= cycle:
                paid.append(step.reward)
        seen = step.observation["observation"]
    ideal = env.references.ideal_learner
    assert ideal is not None
    assert estimate(torch.stack(paid).mean(0)).agrees_with(ideal), (estimate(torch.cat(paid)), ideal)


def test_without_memory_a_fixed_rule_is_all_that_can_be_followed() -> None:
    def follow(observation: dict[str, Tensor], privileged: object) -> Tensor:
        return observation["observation"][:, :2].argmax(1)

    fixed, changing = DelayedCredit(256, 0, rule="fixed"), DelayedCredit(256, 0, hazard=0.05)
    assert measure(fixed, follow, 240, "episode").agrees_with(1.0)
    assert fixed.references.memoryless == 1.0
    assert measure(changing, follow, 240, "episode").agrees_with(0.0)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("delay", 0, "delayed_credit: delay=0 is not allowed; allowed: an integer from 1"),
        ("noise", -1.0, "delayed_credit: noise=-1.0 is not allowed; allowed: a finite number of at least 0"),
        ("hazard", 2.0, "delayed_credit: hazard=2.0 is no probability; allowed: 0 to 1"),
        ("rule", "none", "delayed_credit: rule='none' is unknown; allowed: changing, fixed"),
    ],
)
def test_options_out_of_range_are_named(option: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_env({"name": "delayed_credit", "num_lives": 2, "seed": 0, option: value})
