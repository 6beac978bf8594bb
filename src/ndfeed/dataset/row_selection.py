"""Selections of rows: what callers may write, how they compose, how they are pickled."""

import math
import operator
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.files.shared_memory import Shared
from ndfeed.index.table import Ints

Rows = range | Ints | None  # None: all of them

_SMALL = 1024
_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)


def stretches(count: int, breaks: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Cut [0, count) between i and i + 1 wherever ``breaks[i]``; return each start and end."""
    ends = [*(np.flatnonzero(breaks) + 1).tolist(), count]
    return list(zip([0, *ends], ends, strict=False))


def as_rows(rows: SupportsIndex | ArrayLike, count: int, *, from_end: bool = False) -> Ints:
    """Convert numbers or a mask to rows in [0, count); ``from_end`` allows negative numbers."""
    found = np.asarray(rows)
    # The common case in one pass: as unsigned numbers negative ones are large.
    if (
        found.dtype is _INT64
        and found.ndim == 1
        and len(found)
        and np.maximum.reduce(found.view(_UINT64)) < count
    ):
        return found
    return _check_range(found, count, from_end)


def _check_range(found: NDArray[Any], count: int, from_end: bool) -> Ints:
    if found.ndim != 1:
        problem = f"{found.ndim} of them" if found.ndim else f"{found.item()!r}"
        raise TypeError(f"rows must be a list or an array of one dimension, got {problem}")
    if found.dtype == bool:
        if len(found) != count:
            raise IndexError(f"a mask must have {count} elements, got {len(found)}")
        return np.flatnonzero(found)
    if not len(found):
        return np.zeros(0, np.int64)
    if found.dtype.kind not in "iu":
        raise TypeError(f"rows must be whole numbers, got {found.dtype}")
    low, high = int(found.min()), int(found.max())
    if low < (-count if from_end else 0) or high >= count:
        raise IndexError(
            f"rows must be in [{-count if from_end else 0}, {count}), got {low} to {high}"
        )
    whole = found.astype(np.int64, copy=False)
    return np.where(whole < 0, whole + count, whole) if low < 0 else whole


def take_rows(rows: ArrayLike, count: int) -> Ints:
    """Return the rows that ``take`` means; negative ones count from the end."""
    if isinstance(rows, SupportsIndex) and not isinstance(rows, bool) and not np.ndim(rows):
        number = operator.index(rows)
        raise TypeError(
            f"take({number}) could mean two things: take(range({number})) is the first {number} "
            f"samples, as ds[:{number}] reads them; take([{number}]) is sample {number} alone"
        )
    return as_rows(rows, count, from_end=True)


def split_rows(count: int, fractions: Sequence[float], seed: int) -> list[Ints]:
    """Assign every row of ``count`` to one of several parts at random; each part in order."""
    rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, count])))
    order = rng.permutation(count)
    # Cumulative rounding, so that all rows are used; the last takes the rest.
    cuts = [round(math.fsum(fractions[: i + 1]) * count) for i in range(len(fractions) - 1)]
    return [np.sort(order[a:b]) for a, b in pairwise([0, *cuts, count])]


def one_row(index: object, count: int) -> int | None:
    """Return the row that a single index means; ``None`` where it is not a single index."""
    if isinstance(index, str):
        raise TypeError(f"rows are numbers; select({index!r}) chooses a field")
    if isinstance(index, (bool, np.bool_)) or not isinstance(index, SupportsIndex):
        return None
    if getattr(index, "ndim", 0):  # an array or a tensor of any library
        return None
    at = operator.index(index)
    if not -count <= at < count:
        raise IndexError(f"row must be in [{-count}, {count}), got {at}")
    return at % count


def select_rows(rows: Rows, wanted: Ints) -> Ints:
    """Return the elements of ``rows`` at ``wanted``."""
    if rows is None:
        return wanted
    if isinstance(rows, range):
        return rows.start + wanted * rows.step
    return rows[wanted]


def compose(rows: Rows, further: range | Ints) -> range | Ints:
    """Return the selection ``further`` of the selection ``rows``."""
    if rows is None:
        return further
    if isinstance(rows, range) and isinstance(further, range):
        return rows[further.start : further.stop : further.step] if len(further) else range(0)
    return select_rows(rows, np.asarray(further, np.int64))


class Travelling:
    """Row numbers that pickle as a handle to shared memory where there are many."""

    def __init__(self, rows: range | Ints) -> None:
        self.rows = rows
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Travelling"], tuple[Any, ...]]:
        if isinstance(self.rows, range) or len(self.rows) <= _SMALL:
            return Travelling, (self.rows,)
        if self._memory is None:
            self._memory = Shared.of([np.ascontiguousarray(self.rows).view(np.uint8).data])
        return _unpickle, (self._memory,)


def _unpickle(memory: Shared) -> Travelling:
    return Travelling(memory.view().view(np.int64))
