"""What can be reached on the switching bandit by learning the hidden mapping inside a life.

Two learners that know K, A and the hazard h, but not when the mapping changes:

* the *Bayes learner* keeps the exact posterior of the mapping and answers what is most probably right,
* the *elimination learner* strikes out what failed, keeps what succeeded, and starts over at the first contradiction.

A learner who is told of a change makes (A - 1) / 2 errors per context on average until it knows all, and none can make
fewer: when changes are rare, 1 - h K (A - 1) / 2 per step is the limit (``told_rate`` is exact). The elimination
learner also forgets what proved to be right between the change and its first contradiction, and loses (1 - A^-K) (K (A
- 1) + 1) / 2 per change. The exact rates are higher, because a change spares the errors that were still to be made on
the last one.
"""

from __future__ import annotations

from collections import defaultdict
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.envs.base import BatchedEnv
from lifelong.envs.measurement import Estimate, estimate


class Belief(NamedTuple):
    """Exact posterior of the Bayes learner over the mapping, by the time since when it holds.

    Feedback is deterministic, so that hypotheses "the last change was just before step s" which know the same answers
    are one hypothesis. What they know only differs at the last trials of the K A pairs: slot (c, a) stands for all s
    between the last trial of (c, a), included, and the next older last trial; the extra slot for a change just now.
    """

    last_trial: Tensor  # [B, K, A] int64: step of the last trial of the pair, -1 if never
    success: Tensor  # [B, K, A] bool: what came of it
    weight: Tensor  # [B, K A + 1] float64: probability of each slot


class BayesLearner:
    """Acts greedily on the exact posterior of the mapping (a change point filter; Adams and MacKay 2007, exact here).

    Args:
        contexts, actions, hazard: K, A and h of the bandit.
    """

    def __init__(self, contexts: int, actions: int, hazard: float) -> None:
        self.contexts, self.actions, self.hazard = contexts, actions, hazard

    def initial_belief(self, num_lives: int, device: torch.device | str = "cpu") -> Belief:
        pairs = (num_lives, self.contexts, self.actions)
        weight = torch.zeros(num_lives, self.contexts * self.actions + 1, dtype=torch.float64, device=device)
        weight[:, -1] = 1.0
        last_trial = torch.full(pairs, -1, dtype=torch.int64, device=device)
        return Belief(last_trial, torch.zeros(pairs, dtype=torch.bool, device=device), weight)

    def probability_by_slot(self, belief: Belief, context: Tensor) -> Tensor:
        """[B, K A + 1, A]: probability that an action is right in ``context`` [B], given each slot of the belief."""
        row = context[:, None, None].expand(-1, 1, self.actions)
        tried = belief.last_trial.gather(1, row)  # [B, 1, A]
        success = belief.success.gather(1, row)
        since = belief.last_trial.flatten(1)[:, :, None]  # [B, K A, 1]
        known = (tried >= since) & (tried >= 0)
        known = torch.cat([known, torch.zeros_like(known[:, :1])], dim=1)  # a change just now: nothing is known
        right, wrong = known & success, known & ~success
        candidates = (self.actions - wrong.sum(-1, keepdim=True)).clamp(min=1)
        return torch.where(right.any(-1, keepdim=True), right.double(), (~wrong).double() / candidates)

    def probability(self, belief: Belief, context: Tensor) -> Tensor:
        """[B, A]: posterior probability that an action is right in ``context`` [B]."""
        return (belief.weight[:, :, None] * self.probability_by_slot(belief, context)).sum(1)

    def update(self, belief: Belief, context: Tensor, action: Tensor, success: Tensor, step: int) -> Belief:
        """The belief before step + 1, from what came of ``action`` [B] int64 in ``context`` [B] at ``step``."""
        by_slot = self.probability_by_slot(belief, context)
        chance = by_slot.gather(2, action[:, None, None].expand(-1, by_slot.shape[1], 1))[:, :, 0]
        weight = belief.weight * torch.where(success[:, None], chance, 1 - chance)
        weight = weight / weight.sum(1, keepdim=True)

        # The pair's last trial moves to now: its old slot joins the next newer one, that of "just now" becomes its own.
        slot = (context * self.actions + action)[:, None]
        trials = belief.last_trial.flatten(1)
        newer = torch.where(trials > trials.gather(1, slot), trials, torch.iinfo(torch.int64).max)
        oldest_newer = newer.min(1, keepdim=True)
        heir = torch.where(oldest_newer.values < torch.iinfo(torch.int64).max, oldest_newer.indices, slot)
        old = weight.gather(1, slot)
        weight = weight.scatter(1, slot, weight[:, -1:]).scatter_add(1, heir, old)
        weight = weight * (1 - self.hazard)
        weight[:, -1] = self.hazard

        shape = belief.last_trial.shape
        last_trial = trials.scatter(1, slot, step).reshape(shape)
        outcome = belief.success.flatten(1).scatter(1, slot, success[:, None]).reshape(shape)
        return Belief(last_trial, outcome, weight)


def simulate_bayes_learner(
    env: BatchedEnv, learner: BayesLearner, steps: int, burn_in: int, life_steps: int | None = None
) -> Estimate:
    """Mean reward per step of the Bayes learner on a switching bandit whose lives have no end.

    Args:
        env: a new switching bandit with the learner's contexts, actions and hazard, and without ``life_steps``.
        learner: the learner.
        steps: steps to average over, once the start of the life is forgotten.
        burn_in: steps until then.
        life_steps: length L of the lives that the figure is for: the first ``burn_in`` steps and L - ``burn_in`` steps
            like the later ones; None: lives without end.

    Returns:
        The mean, and its standard error over lives, which are independent.
    """
    weights = torch.full((burn_in + steps,), 1 / steps, dtype=torch.float64)
    if life_steps is None:
        weights[:burn_in] = 0.0
    elif life_steps <= burn_in + steps:
        weights = torch.full((life_steps,), 1 / life_steps, dtype=torch.float64)
    else:
        weights[:burn_in] = 1 / life_steps
        weights[burn_in:] *= 1 - burn_in / life_steps
    belief = learner.initial_belief(env.num_lives, env.device)
    context = env.reset()["observation"].argmax(1)
    rate = torch.zeros(env.num_lives, dtype=torch.float64, device=env.device)
    for step, weight in enumerate(weights.tolist()):
        action = learner.probability(belief, context).argmax(1)
        result = env.step(action)
        belief = learner.update(belief, context, action, result.reward > 0.5, step)
        context = result.observation["observation"].argmax(1)
        rate += weight * result.reward
    return estimate(rate)


def told_rate(contexts: int, actions: int, hazard: float, life_steps: int | None = None) -> float:
    """Exact mean reward per step of the learner that is told when the mapping changes: no learner does better untold.

    A context that was shown v times since the change is answered rightly with probability min(v + 1, A) / A. In a life
    without end v is geometric, P(v >= j) = q^j with q = s / (h + s), s = (1 - h) / K, and the rate is (1 - q^A) / (A (1
    - q)). In a life of ``life_steps`` steps the law of min(v, A - 1) is followed from its beginning, until it has
    settled.
    """
    share = (1 - hazard) / contexts
    if life_steps is None:
        again = share / (hazard + share)  # P(the context is shown once more before the next change)
        return sum(again**j for j in range(actions)) / actions
    law, rate, total = [1.0] + [0.0] * (actions - 1), 0.0, 0.0
    for step in range(life_steps):
        before, rate = rate, sum(probability * (v + 1) for v, probability in enumerate(law)) / actions
        if abs(rate - before) < 1e-15:
            return (total + (life_steps - step) * rate) / life_steps
        total += rate
        moved = [p * (1 - 1 / contexts) + (law[v - 1] / contexts if v else 0.0) for v, p in enumerate(law)]
        moved[-1] += law[-1] / contexts
        law = [(1 - hazard) * p + (hazard if v == 0 else 0.0) for v, p in enumerate(moved)]
    return total / life_steps


@lru_cache(maxsize=64)
def elimination_rate(contexts: int, actions: int, hazard: float) -> float:
    """Exact mean reward per step of the elimination learner, from the stationary law of a Markov chain.

    The learner tries, in each context, an action that it has not struck out; a success is kept, a failure struck out. A
    kept action that fails, or a context with nothing left, is a contradiction: it then forgets all but the failure just
    seen.

    The chain counts the contexts by kind. A kind is (struck out, of these since the last change), or ``kept`` since the
    last change or before it: given these, the right action is uniform over what was not struck out since the last
    change.
    """
    kept, outdated = (-1, 1), (-1, 0)
    fresh = (0, 0)

    def try_once(kind: tuple[int, int]) -> tuple[float, tuple[int, int] | None]:
        """Chance of success in a context of that kind, and its kind after a failure (None: a contradiction)."""
        if kind == kept:
            return 1.0, kept
        if kind == outdated:
            return 1 / actions, None
        struck, since = kind
        return 1 / (actions - since), (struck + 1, since + 1) if struck + 1 < actions else None

    def changed(kind: tuple[int, int]) -> tuple[int, int]:
        return kind[0], 0

    State = tuple[tuple[int, int], ...]  # the kinds of all contexts, sorted: contexts are exchangeable
    start: State = (fresh,) * contexts
    index: dict[State, int] = {start: 0}
    queue, success_chance = [start], []
    flow: defaultdict[tuple[int, int], float] = defaultdict(float)
    for state in queue:
        chance = 0.0
        for kind in set(state):
            share = state.count(kind) / contexts
            right, failed = try_once(kind)
            chance += share * right
            others = list(state)
            others.remove(kind)
            outcomes = [(share * right, [*others, kept])]
            if right < 1:
                after = [*others, failed] if failed is not None else [fresh] * (contexts - 1) + [(1, 1)]
                outcomes.append((share * (1 - right), after))
            for probability, kinds in outcomes:
                for weight, result in ((1 - hazard, kinds), (hazard, [changed(k) for k in kinds])):
                    successor = tuple(sorted(result))
                    if successor not in index:
                        index[successor] = len(queue)
                        queue.append(successor)
                    flow[index[state], index[successor]] += probability * weight
        success_chance.append(chance)

    source, target = torch.tensor(list(flow)).T
    rates = torch.tensor(list(flow.values()), dtype=torch.float64)
    law = torch.zeros(len(queue), dtype=torch.float64)
    law[0] = 1.0
    # Two copies of the chain that meet the same changes forget their start once both know all contexts: tens of steps.
    for _ in range(100_000):
        next_law = torch.zeros_like(law).index_add_(0, target, law[source] * rates)
        moved = float((next_law - law).abs().sum())
        law = next_law
        if moved < 1e-13:
            return float(law @ torch.tensor(success_chance, dtype=torch.float64))
    raise RuntimeError(f"the law of the elimination learner did not settle for K={contexts}, A={actions}, h={hazard}")
