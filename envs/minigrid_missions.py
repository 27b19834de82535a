"""Missions of MiniGrid and BabyAI as token ids, over a fixed vocabulary."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np

PADDING, UNKNOWN = 0, 1
_FIRST_WORD = 2

# Every word of the missions of minigrid 3.2. Ids are positions: append, never insert, or old embeddings change meaning.
_WORDS = (
    "a after and at avoid ball behind blue box door end fetch find from front get go goal green grey "
    "hallway in key lava left matching maze must near next object of on open opening pick purple put "
    "reach red right room rooms square the then to traverse unlock up use yellow you your"
)
WORDS = tuple(_WORDS.split())
VOCABULARY_SIZE = _FIRST_WORD + len(WORDS)
#: "put a grey ball in front of you next to a grey box in front of you", four times, joined: the longest BabyAI can say.
LONGEST_MISSION = 72

_IDS = {word: _FIRST_WORD + position for position, word in enumerate(WORDS)}


class MissionTokens:
    """mission -> int64 [length]: one id per word, 0 after the end, 1 for unknown words. Punctuation is dropped."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, mission: str) -> np.ndarray:
        return _tokens(mission, self.length)


@lru_cache(maxsize=1 << 12)
def _tokens(mission: str, length: int) -> np.ndarray:
    words = re.findall(r"\w+", mission.lower())
    if len(words) > length:
        raise ValueError(f"the mission {mission!r} has {len(words)} words, more than mission_length={length}")
    ids = np.full(length, PADDING, np.int64)
    ids[: len(words)] = [_IDS.get(word, UNKNOWN) for word in words]
    ids.flags.writeable = False
    return ids
