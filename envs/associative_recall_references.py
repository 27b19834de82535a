"""What can be earned in associative recall without knowing which value went with which key, exactly."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from math import comb, factorial, prod

_Bag = tuple[tuple[int, int], ...]  # per value: (copies left, past queries that it was a wrong answer to)


def order_free_return(pairs: int, values: int) -> float:
    """Mean return of the policy that answers every query with the value that was shown most often.

    2 E[max] / n - 1 with max the largest count of a multinomial(n; 1/V, ..., 1/V), E[max] = sum_{m >= 1} P(max >= m).
    P(max <= m) counts the sequences that use no value more than m times, by a recursion over values:
    N_v(n) = sum_{k <= m} C(n, k) N_{v-1}(n - k). In exact integers until the last division.
    """
    total = values**pairs
    expectation = 0
    for most in range(pairs):  # P(max >= most + 1) = 1 - P(max <= most)
        counts = [1] + [0] * pairs
        for _ in range(values):
            counts = [sum(comb(n, k) * counts[n - k] for k in range(min(most, n) + 1)) for n in range(pairs + 1)]
        expectation += total - counts[pairs]
    return 2 * expectation / (total * pairs) - 1


def order_free_return_with_feedback(pairs: int, values: int) -> float:
    """Mean return of the best policy that knows which values were shown, not with which keys, and whether it was right
    so far.

    Each value shown is asked for once, so that being right uses up a copy: dynamic programming over the bag of copies
    left. Takes a second for 8 pairs, and grows fast.
    """
    expected_right = 0.0
    for counts in _partitions(pairs, values, pairs):
        sequences = factorial(pairs) // prod(map(factorial, counts))
        labellings = factorial(values) // prod(map(factorial, Counter(counts).values()))
        share = sequences * labellings / values**pairs
        expected_right += share * _most_right(tuple((count, 0) for count in counts), pairs)
    return 2 * expected_right / pairs - 1


def _partitions(total: int, parts: int, largest: int) -> Iterator[tuple[int, ...]]:
    """``total`` as a falling sequence of ``parts`` numbers, none above ``largest``."""
    if parts == 0:
        if total == 0:
            yield ()
        return
    for first in range(min(total, largest), -1, -1):
        for rest in _partitions(total - first, parts - 1, first):
            yield (first, *rest)


def _changed(bag: _Bag, index: int, copies: int = 0, wrong: int = 0) -> _Bag:
    entry = (bag[index][0] + copies, bag[index][1] + wrong)
    return (*bag[:index], entry, *bag[index + 1 :])


@cache
def _arrangements(bag: _Bag) -> int:
    """Ways to lay the copies left on the queries that are not answered rightly, each avoiding its wrong answer."""
    for index, (_, wrong) in enumerate(bag):
        if wrong:
            return sum(
                _arrangements(_changed(_changed(bag, other, copies=-1), index, wrong=-1))
                for other, (copies, _) in enumerate(bag)
                if other != index and copies
            )
    copies_left = [copies for copies, _ in bag]
    return factorial(sum(copies_left)) // prod(map(factorial, copies_left))


@cache
def _most_right(bag: _Bag, queries: int) -> float:
    """Largest expected number of right answers in the ``queries`` that are still to come."""
    if queries == 0:
        return 0.0
    best = 0.0
    for index, (copies, _) in enumerate(bag):
        if copies == 0:
            continue
        right = _changed(bag, index, copies=-1)
        chance = _arrangements(right) / _arrangements(bag)
        expected = chance * (1 + _most_right(right, queries - 1)) if chance > 0 else 0.0
        if chance < 1:
            expected += (1 - chance) * _most_right(_changed(bag, index, wrong=1), queries - 1)
        best = max(best, expected)
    return best
