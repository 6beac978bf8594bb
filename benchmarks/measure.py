"""Shared by all benchmarks: alternating timings, one JSON line per measurement, targets.

The solutions to a question are timed in turn, round by round, so that a noisy machine disturbs all
of them alike. Each is called with the same arguments, and its result is compared before anything
is timed: a fast wrong answer is not an answer.
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
    """Return the median rate of every way over ``batches`` of row numbers, in rows per second.

    ``expected`` is the right result for the first batch.
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
    """A way run by several threads at once, each with its own batches, like a loader's threads."""

    def __init__(self, way: Way, count: int = 2) -> None:
        self.way = way
        self.count = count

    def __call__(self, rows: np.ndarray) -> Any:
        """Return one batch, to compare results."""
        return self.way(rows)


def _once(way: Way, batches: Sequence[np.ndarray], seconds: float) -> float:
    """Return seconds per batch, measured over at least ``seconds``."""
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
    """Print one JSON line."""
    print(json.dumps(facts), flush=True)


def bar(question: str, what: str, ratio: float, wanted: float) -> None:
    """Print one line that compares a ratio with its target."""
    report(question=question, bar=what, ratio=round(ratio, 2), wanted=wanted, met=ratio >= wanted)
