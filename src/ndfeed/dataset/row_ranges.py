"""Ranges of rows, which take no memory however long they are: several in turn, and composed.

Several in turn are what a sum is: ``ds.take(range(n)) + other.take(range(m))``.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ndfeed.dataset.arguments import lazy
from ndfeed.index.table import Ints


class Ranges:
    """The rows of some ranges, in turn. None of them is empty."""

    def __init__(self, ranges: Iterable[range]) -> None:
        self.ranges = tuple(ranges)
        self._ends = [0, *accumulate(map(len, self.ranges))]

    def __len__(self) -> int:
        return self._ends[-1]

    @lazy
    def _as_arrays(self) -> tuple[Ints, Ints, Ints]:
        """Where each range begins here, its step, and what row 0 would be if it went back to it."""
        starts = np.array(self._ends, np.int64)
        steps = np.array([one.step for one in self.ranges], np.int64)
        first = np.array([one.start for one in self.ranges], np.int64)
        return starts, steps, first - starts[:-1] * steps

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return self.select(np.arange(len(self))).astype(dtype or np.int64, copy=False)

    def __reduce__(self) -> tuple[Callable[..., "Ranges"], tuple[Any, ...]]:
        return Ranges, (self.ranges,)

    def select(self, wanted: Ints) -> Ints:
        """Return the elements at ``wanted``."""
        starts, steps, origins = self._as_arrays
        which = np.searchsorted(starts, wanted, side="right") - 1
        found: Ints = origins[which] + wanted * steps[which]
        return found

    def choose(self, further: range) -> list[range]:
        """Return the elements at the places of a range, as ranges."""
        rising = further if further.step > 0 else further[::-1]
        found = [
            one[rising[low] - first : rising[high - 1] - first + 1 : rising.step]
            for one, (first, end) in zip(self.ranges, pairwise(self._ends), strict=True)
            for low, high in [(_count_below(rising, first), _count_below(rising, end))]
            if low < high
        ]
        return found if further.step > 0 else [one[::-1] for one in reversed(found)]


def _count_below(rising: range, end: int) -> int:
    """Return how many elements of a rising range are below ``end``."""
    return min(max(-((rising.start - end) // rising.step), 0), len(rising))


def ranges_of(rows: range | Ranges) -> tuple[range, ...]:
    """Return the ranges that rows consist of."""
    return rows.ranges if isinstance(rows, Ranges) else (rows,)


def compose_ranges(rows: range | Ranges, further: range | Ranges) -> range | Ranges:
    """Return the elements of ``rows`` at ``further``."""
    if isinstance(rows, range) and isinstance(further, range):
        start, step = rows.start + further.start * rows.step, rows.step * further.step
        return range(start, start + len(further) * step, step)
    chosen = [Ranges(ranges_of(rows)).choose(one) for one in ranges_of(further)]
    return _as_rows(_chain(one for each in chosen for one in each))


def join_ranges(first: range | Ranges, second: range | Ranges, shift: int) -> range | Ranges:
    """Return the rows of both in turn, those of the second with ``shift`` added."""
    theirs = (range(r.start + shift, r.stop + shift, r.step) for r in ranges_of(second))
    *mine, last = ranges_of(first)
    return _as_rows([*mine, *_chain([last, *theirs])])


def _as_rows(ranges: list[range]) -> range | Ranges:
    """Return the rows of some ranges in turn, none of which is empty."""
    if len(ranges) > 1:
        return Ranges(ranges)
    return ranges[0] if ranges else range(0)


def _chain(ranges: Iterable[range]) -> list[range]:
    """Return ranges without those that are empty; those that continue each other become one."""
    made: list[range] = []
    for one in ranges:
        if not one:
            continue
        joined = _join(made[-1], one) if made else None
        if joined is None:
            made.append(one)
        else:
            made[-1] = joined
    return made


def _join(first: range, second: range) -> range | None:
    """Return both as one range, if the second goes on where the first ends."""
    gap = second[0] - first[-1]
    steps = {one.step for one in (first, second) if len(one) > 1}
    if not gap or steps - {gap}:
        return None
    return range(first[0], second[-1] + gap, gap)


def find_cuts(rows: range | Ranges, starts: Ints) -> Ints | None:
    """Return the elements before which rows are interrupted, or a part starts, and the end.

    ``starts`` has the first row of every part, and the end. ``None`` if rows are left out evenly.
    """
    ranges = ranges_of(rows)
    if any(one.step != 1 and len(one) > 1 for one in ranges):
        return None
    cuts, end = [np.zeros(1, np.int64)], 0
    for one in filter(None, ranges):
        low, high = np.searchsorted(starts, [one[0], one[-1]], side="right")
        cuts.append(starts[low:high] - one[0] + end)
        end += len(one)
        cuts.append(np.array([end]))
    return np.unique(np.concatenate(cuts))


def find_parts(rows: range | Ranges, starts: Ints) -> tuple[Ints, Ints]:
    """Return the parts that rows lie in, and the place of an element in each.

    ``starts`` has the first row of every part, and the end. A part may come several times.
    """
    parts, places, begin = [], [], 0
    for one in ranges_of(rows):
        rising = one if one.step > 0 else one[::-1]
        ahead = np.maximum(-((rising.start - starts[:-1]) // rising.step), 0)
        next_row = rising.start + ahead * rising.step
        used = np.flatnonzero(next_row < np.minimum(starts[1:], rising.stop))
        parts.append(used)
        places.append(begin + (ahead[used] if one.step > 0 else len(one) - 1 - ahead[used]))
        begin += len(one)
    return np.concatenate(parts), np.concatenate(places)


def find_steps(ranges: Iterable[range]) -> Iterator[tuple[int, int]]:
    """Yield the steps from each row to the next, and how many are the same in a row."""
    step = count = 0
    for own, times in _list_steps(ranges):
        if own != step and count:
            yield step, count
            count = 0
        step, count = own, count + times
    if count:
        yield step, count


def _list_steps(ranges: Iterable[range]) -> Iterator[tuple[int, int]]:
    last: int | None = None
    for one in ranges:
        if last is not None:
            yield one[0] - last, 1
        if len(one) > 1:
            yield one.step, len(one) - 1
        last = one[-1]


def stretches(count: int, breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Cut [0, count) between i and i + 1 wherever ``breaks[i]``; return each start and end."""
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), count]
    return list(zip([0, *ends], ends, strict=False))
