"""What every benchmark shares: timing in turns, one JSON line a way, ratios against bars.

Ways of one question are timed in turns, round by round, so that a noisy machine disturbs all
of them alike. Every way is called with the same arguments, and its answer is compared before
anything is timed: a fast wrong answer is no answer.
"""

import itertools
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Way = Callable[[np.ndarray], Any]


def compare(
    question: str,
    ways: Mapping[str, Way],
    batches: Sequence[np.ndarray],
    expected: np.ndarray,
    *,
    unit: str = "rows",
    rounds: int = 9,
    seconds: float = 0.2,
) -> dict[str, float]:
    """Median rate of every way over ``batches`` of row numbers, in rows a second.

    ``expected`` is the right answer for the first batch.
    """
    for name, way in ways.items():
        found = way(batches[0])
        found = next(iter(found.values())) if isinstance(found, dict) else found
        np.testing.assert_array_equal(np.asarray(found), expected, err_msg=f"{question}: {name}")
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(_once(way, batches, seconds))
    rates = {}
    for name, taken in times.items():
        low, middle, high = (len(batches[0]) / t for t in statistics.quantiles(taken, n=4)[::-1])
        rates[name] = middle
        report(question=question, way=name, per_s=round(middle), unit=unit,
               quartiles=[round(low), round(high)])  # fmt: skip
    return rates


class Threads:
    """A way that several threads go at once, each with batches of its own, as a loader's do."""

    def __init__(self, way: Way, count: int = 2) -> None:
        self.way = way
        self.count = count

    def __call__(self, rows: np.ndarray) -> Any:
        """One batch, for comparing answers."""
        return self.way(rows)


def _once(way: Way, batches: Sequence[np.ndarray], seconds: float) -> float:
    """Seconds a batch, over at least ``seconds``."""
    if not isinstance(way, Threads):
        return _loop(way, batches, seconds)
    with ThreadPoolExecutor(way.count) as pool:
        taken = list(pool.map(lambda _: _loop(way.way, batches, seconds), range(way.count)))
    return 1 / sum(1 / one for one in taken)


def _loop(way: Way, batches: Sequence[np.ndarray], seconds: float) -> float:
    start = now = time.perf_counter()
    for done, batch in enumerate(itertools.cycle(batches), 1):
        way(batch)
        now = time.perf_counter()
        if now - start > seconds:
            return (now - start) / done
    raise AssertionError("no batches")


def report(**facts: Any) -> None:
    """One JSON line."""
    print(json.dumps(facts), flush=True)


def bar(question: str, what: str, ratio: float, wanted: float) -> None:
    """One line that holds a ratio against its bar."""
    report(question=question, bar=what, ratio=round(ratio, 2), wanted=wanted, met=ratio >= wanted)
