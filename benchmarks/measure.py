"""What every benchmark shares: timing in turns, one JSON line a way, ratios at the end.

Ways of one question are timed in turns, round by round, so that a noisy machine disturbs all
of them alike. Ratios compare medians over the rounds. Answers are compared before anything is
timed: a fast wrong answer is no answer.
"""

import json
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def compare(
    question: str,
    ways: Mapping[str, Callable[[], Any]],
    check: Callable[[Any], None],
    *,
    rounds: int = 7,
    seconds: float = 0.15,
    unit: str = "rows",
    work: int = 1,
) -> dict[str, float]:
    """Median rate of every way, in ``unit`` a second for ``work`` of them a call."""
    repeats = {}
    for name, call in ways.items():
        check(call())
        start = time.perf_counter()
        call()
        repeats[name] = max(1, int(seconds / max(time.perf_counter() - start, 1e-6)))
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, call in ways.items():
            start = time.perf_counter()
            for _ in range(repeats[name]):
                call()
            times[name].append((time.perf_counter() - start) / repeats[name])
    rates = {}
    for name, taken in times.items():
        low, middle, high = statistics.quantiles(taken, n=4)
        rates[name] = work / middle
        report(
            question=question,
            way=name,
            per_s=round(work / middle),
            unit=unit,
            quartiles=[round(work / high), round(work / low)],
        )
    return rates


def report(**facts: Any) -> None:
    """One JSON line."""
    print(json.dumps(facts), flush=True)


def bar(question: str, what: str, ratio: float, wanted: float) -> None:
    """One line that holds a ratio against its bar."""
    report(question=question, bar=what, ratio=round(ratio, 2), wanted=wanted, met=ratio >= wanted)


def same(expected: Mapping[str, np.ndarray]) -> Callable[[Any], None]:
    """A check that a batch holds exactly these arrays."""

    def check(batch: Any) -> None:
        for name, array in expected.items():
            np.testing.assert_array_equal(np.asarray(batch[name]), array)

    return check
