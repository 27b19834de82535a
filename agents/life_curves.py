"""What happens along a life, in constant memory: recall by age, recovery after changes, reward by time since a change.

Fed one step at a time, whatever the life's length. Counters are int64, sums float64. What an environment does not say
of itself (``query`` and ``age``, ``steps_since_change``) makes no curve.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

# Ages and times since a change are counted in bins of a third of a decade, up to 10^12 steps.
_PER_DECADE = 3
_BINS = 12 * _PER_DECADE
# Steps up to which times to recovery are resolved to the step; a longer one is censored there.
_LONGEST = 10_000
_LIFE_DECADES = 10


def bin_starts() -> list[int]:
    """First age of every bin: 0, 1, then ceil(10^(i / 3))."""
    return [0, *(int(-(-(10 ** (index / _PER_DECADE)) // 1)) for index in range(_BINS))]


class LifeCurves:
    """Of B lives that go on together.

    Recall: at a step that asks (``query``), whether the action was the right one (``oracle_action``), by how long ago
    the answer was last shown (``age``), hits and trials per life.

    Recovery: ``lifelong.experiments.metrics.recovery.recovery_times``, step by step: after a change, the first tau at
    which the mean score of steps tau .. tau + w - 1 is at least ``share`` of the mean of the last w before the change;
    censored where the next change or the end of the life comes first, or after 10^4 steps, or where the life has come
    to now. A change is left away where it cannot be judged: fewer than w steps before it since the last one, or after
    it, or nothing had clearly been learned that could be lost (see ``floor`` and ``errors`` there). Counted by the
    decade of the life's step at which the change came; so are all changes, judged or not.

    Adaptation: sum of rewards and count of steps by the time since the last change.

    Args:
        lives: B.
        level: reward of a step that scores 0, and of one that scores 1 (random and oracle); None where they are not
            known: then nobody can say what was learned, and recovery is not counted.
        window: w, in steps, 2 or more.
        share: of the former level that counts as recovered.
        floor, errors: what the former level must be at least, as a score and in standard errors, to be judged.
    """

    def __init__(
        self,
        lives: int,
        level: tuple[float, float] | None = (0.0, 1.0),
        window: int = 20,
        share: float = 0.9,
        floor: float = 0.25,
        errors: float = 3.0,
    ) -> None:
        self.level, self.window, self.share, self.floor, self.errors = level, window, share, floor, errors
        self._starts = torch.tensor(bin_starts()[1:])
        bins = len(self._starts) + 1
        self.hits = torch.zeros(lives, bins, dtype=torch.int64)
        self.trials = torch.zeros(lives, bins, dtype=torch.int64)
        self.adapted = torch.zeros(bins, dtype=torch.float64)
        self.adapting = torch.zeros(bins, dtype=torch.int64)
        self.recovered = torch.zeros(_LIFE_DECADES, _LONGEST + 1, dtype=torch.int64)
        self.censored = torch.zeros(_LIFE_DECADES, _LONGEST + 1, dtype=torch.int64)
        self.changes = torch.zeros(_LIFE_DECADES, dtype=torch.int64)  # all, judged or not
        # Of the stretch between two changes that every life is in.
        self.scores = torch.zeros(lives, window, dtype=torch.float64)  # ring of the last w, by step of the stretch
        self.length = torch.zeros(lives, dtype=torch.int64)  # steps so far
        self.reference = torch.zeros(lives, dtype=torch.float64)  # mean score before it
        self.pending = torch.zeros(lives, dtype=torch.bool)  # a change to be judged that has not been recovered from
        self.began = torch.zeros(lives, dtype=torch.int64)  # life step of its change

    def add(
        self, situation: Mapping[str, Tensor], action: Tensor, reward: Tensor, life_end: Tensor, life_step: Tensor
    ) -> None:
        """One step of all lives.

        Args:
            situation: what the environment says of the situation that was acted in, [B] each.
            action, reward, life_end: of the step, [B].
            life_step: [B], steps that the lives had before it.
        """
        if "query" in situation and "age" in situation:
            asked = situation["query"].nonzero().squeeze(1)
            column = self._bin(situation["age"][asked])
            right = (action[asked] == situation["oracle_action"][asked]).long()
            self.trials.index_put_((asked, column), torch.ones_like(right), accumulate=True)
            self.hits.index_put_((asked, column), right, accumulate=True)
        if "steps_since_change" in situation:
            since = situation["steps_since_change"]
            column = self._bin(since)
            self.adapted.index_add_(0, column, reward.double())
            self.adapting.index_add_(0, column, torch.ones_like(column))
            if self.level is not None:
                low, high = self.level
                score = (reward.double() - low) / (high - low)
                self._add_score(score, (since == 0) & (life_step > 0), life_end, life_step)

    def _add_score(self, score: Tensor, changed: Tensor, life_end: Tensor, life_step: Tensor) -> None:
        """A step's score; ``changed``: it is the first under a new rule."""
        if changed.any():
            self._censor(changed)
            self.changes += self._decade(life_step[changed]).bincount(minlength=_LIFE_DECADES)
            self.reference = torch.where(changed, self.scores.mean(1), self.reference)
            self.pending = torch.where(changed, self._learned(), self.pending)
            self.began = torch.where(changed, life_step, self.began)
            self.length.masked_fill_(changed, 0)
        self.scores.scatter_(1, (self.length % self.window).unsqueeze(1), score.unsqueeze(1))
        self.length += 1
        if self.pending.any():
            tau = self.length - self.window
            back = self.pending & (tau >= 0) & (self.scores.mean(1) >= self.share * self.reference)
            if back.any():
                self._count(self.recovered, back, tau)
                self.pending &= ~back
            overdue = self.pending & (tau >= _LONGEST)
            if overdue.any():
                self._censor(overdue)
        if life_end.any():
            self._censor(life_end)
            self.length.masked_fill_(life_end, 0)

    def _learned(self) -> Tensor:
        """Where the last w steps are clearly better than random ones: [B] bool."""
        mean, error = self.scores.mean(1), self.scores.std(1) / self.window**0.5
        return (self.length >= self.window) & (mean >= self.floor) & (mean >= self.errors * error)

    def _censor(self, lives: Tensor) -> None:
        """The stretch of ``lives`` ends without recovery."""
        self._count_left(self.censored, lives)
        self.pending &= ~lives

    def _count_left(self, table: Tensor, lives: Tensor) -> None:
        """Those of ``lives`` that have not recovered; a stretch of fewer than w steps is not judged."""
        left = lives & self.pending & (self.length >= self.window)
        if left.any():
            self._count(table, left, self.length - self.window)

    def _count(self, table: Tensor, lives: Tensor, steps: Tensor) -> None:
        chosen = lives.nonzero().squeeze(1)
        place = self._decade(self.began[chosen]), steps[chosen].clamp_max(_LONGEST)
        table.index_put_(place, torch.ones_like(chosen), accumulate=True)

    def _decade(self, life_step: Tensor) -> Tensor:
        return life_step.double().clamp_min(1).log10().long().clamp_max(_LIFE_DECADES - 1)

    def _bin(self, age: Tensor) -> Tensor:
        return torch.bucketize(age, self._starts, right=True)

    def records(self) -> dict[str, list[dict[str, Any]]]:
        """The curves as plain data. Stretches that are still open are censored where they have come to.

        ``recall_by_age``: age (the first of the bin), hits and trials per life. ``recovery``: change_decade (life step
        of the change, 10^d .. 10^(d + 1)), steps, censored, count. ``changes``: change_decade, and how many were judged
        of all. ``adaptation``: steps_since_change (the first of the bin), reward (mean), count.
        """
        censored = self.censored.clone()
        self._count_left(censored, torch.ones_like(self.pending))
        starts = bin_starts()
        asked = self.trials.sum(0).nonzero().squeeze(1).tolist()
        recall = [
            {"age": starts[place], "hits": self.hits[:, place].tolist(), "trials": self.trials[:, place].tolist()}
            for place in asked
        ]
        recovery = [
            {
                "change_decade": decade,
                "steps": steps,
                "censored": table is censored,
                "count": int(table[decade, steps]),
            }
            for table in (self.recovered, censored)
            for decade, steps in table.nonzero().tolist()
        ]
        judged = (self.recovered + censored).sum(1)
        changes = [
            {"change_decade": decade, "judged": int(judged[decade]), "all": int(self.changes[decade])}
            for decade in self.changes.nonzero().squeeze(1).tolist()
        ]
        adaptation = [
            {
                "steps_since_change": starts[place],
                "reward": float(self.adapted[place] / self.adapting[place]),
                "count": int(self.adapting[place]),
            }
            for place in self.adapting.nonzero().squeeze(1).tolist()
        ]
        curves = {"recall_by_age": recall, "recovery": recovery, "changes": changes, "adaptation": adaptation}
        return {name: rows for name, rows in curves.items() if rows}

    def state_dict(self) -> dict[str, Any]:
        """Tensors only."""
        return {name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value.clone())
