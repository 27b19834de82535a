"""All probes and the two trainings behind them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from lifelong.experiments.probes import pairs, teachers
from lifelong.experiments.probes.capacity import CAPACITY
from lifelong.experiments.probes.correlated_keys import CORRELATED_KEYS
from lifelong.experiments.probes.drift import DRIFT
from lifelong.experiments.probes.learner import Learner
from lifelong.experiments.probes.length import LENGTH
from lifelong.experiments.probes.overwriting import OVERWRITING
from lifelong.experiments.probes.probe import Probe
from lifelong.experiments.probes.regression import REGRESSION
from lifelong.experiments.probes.retention import RETENTION


class Task(NamedTuple):
    """What a core is trained on before it is measured."""

    token_size: int
    answer_size: int
    loss: Callable[[Learner, torch.Generator], Tensor]


TASKS = {
    "pairs": Task(pairs.TOKEN, pairs.VALUES, pairs.training_loss),
    "teachers": Task(teachers.TOKEN, 1, teachers.training_loss),
}

PROBES: dict[str, Probe] = {
    probe.name: probe for probe in (RETENTION, CAPACITY, OVERWRITING, CORRELATED_KEYS, LENGTH, REGRESSION, DRIFT)
}
