"""The batched suite, whole: importing this module registers every environment of it."""

from __future__ import annotations

from typing import Any

from lifelong.envs.associative_recall import AssociativeRecall
from lifelong.envs.batched import TensorEnv
from lifelong.envs.delayed_credit import DelayedCredit
from lifelong.envs.drift_bandit import DriftBandit
from lifelong.envs.drift_control import DriftControl
from lifelong.envs.drift_torus import DriftTorus
from lifelong.envs.forage import Forage
from lifelong.envs.goal_memory import GoalMemory
from lifelong.envs.long_tmaze import LongTMaze
from lifelong.envs.markov_stream import MarkovStream
from lifelong.envs.recall_stream import RecallStream
from lifelong.envs.switching_bandit import SwitchingBandit

BATCHED_ENVS: tuple[type[TensorEnv[Any]], ...] = (
    AssociativeRecall,
    DelayedCredit,
    DriftBandit,
    DriftControl,
    DriftTorus,
    Forage,
    GoalMemory,
    LongTMaze,
    MarkovStream,
    RecallStream,
    SwitchingBandit,
)
