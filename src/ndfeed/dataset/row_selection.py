"""Selections of rows: what callers may write, how they compose, how they are pickled."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple, SupportsIndex, Union, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndfeed.dataset.row_ranges import (
    Ranges,
    compose_ranges,
    find_parts,
    join_ranges,
    ranges_of,
)
from ndfeed.files.shared_memory import Shared
from ndfeed.index.table import Ints

Listed = range | Ranges | Ints
Rows = Union[Listed, "Drawn", None]  # None: all of them

_SMALL = 1024
_MOST_NUMBERED = (1 << 63) - 1
_INT64 = np.dtype(np.int64)
_UINT64 = np.dtype(np.uint64)


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


def take_rows(rows: ArrayLike, count: int) -> "range | Ints":
    """Return the rows that ``take`` means; negative ones count from the end."""
    if isinstance(rows, SupportsIndex) and not isinstance(rows, bool) and not np.ndim(rows):
        number = operator.index(rows)
        raise TypeError(
            f"take({number}) could mean two things: take(range({number})) is the first {number} "
            f"samples, as ds[:{number}] reads them; take([{number}]) is sample {number} alone"
        )
    given: object = rows
    if isinstance(given, range):
        return _take_range(given, count)
    return as_rows(rows, count, from_end=True)


def _take_range(rows: range, count: int) -> "range | Ints":
    """Do the same for a range, which takes no memory, however long it is."""
    if not len(rows):
        return range(0)
    low, high = sorted((rows[0], rows[-1]))
    if low < -count or high >= count:
        raise IndexError(f"rows must be in [{-count}, {count}), got {low} to {high}")
    if low >= 0:
        return rows
    if high < 0:
        return range(rows.start + count, rows.stop + count, rows.step)
    return as_rows(rows, count, from_end=True)


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


class PartNumbers:
    """For each sample the number of its part, computed when asked for.

    ``starts`` has the first sample of each part, and the end.
    """

    def __init__(self, starts: Ints) -> None:
        self.starts = starts

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, samples: Ints) -> Ints:
        return np.searchsorted(self.starts, samples, side="right") - 1


def select_rows(rows: Rows | PartNumbers, wanted: Ints) -> Ints:
    """Return the elements of ``rows`` at ``wanted``."""
    if rows is None:
        return wanted
    if isinstance(rows, Drawn | Ranges):
        return rows.select(wanted)
    if isinstance(rows, range):
        return rows.start + wanted * rows.step
    return rows[wanted]


def freeze(rows: Rows) -> Listed | None:
    """Return the rows with those that are drawn fixed."""
    return select_rows(rows, np.arange(len(rows))) if isinstance(rows, Drawn) else rows


@overload
def compose(rows: Rows, further: Listed) -> "Listed | Drawn": ...


@overload
def compose(rows: "Rows | PartNumbers", further: Listed) -> "Listed | Drawn | PartNumbers": ...


def compose(rows: "Rows | PartNumbers", further: Listed) -> "Listed | Drawn | PartNumbers":
    """Return the selection ``further`` of the selection ``rows``."""
    if rows is None:
        return further
    if isinstance(rows, Drawn):
        return rows.choose(further)
    if isinstance(rows, PartNumbers) and isinstance(further, range) and further.step == 1:
        return PartNumbers(np.clip(rows.starts - further.start, 0, len(further)))
    if isinstance(rows, range | Ranges) and isinstance(further, range | Ranges):
        return compose_ranges(rows, further)
    return select_rows(rows, np.asarray(further, np.int64))


class Runs(NamedTuple):
    """Consecutive cases with as many crops each: the first case of every run, and places by axis.

    ``counts`` are the crops of every case of a run, and ``starts`` the number of its first crop,
    and the end. Cases between runs have no crops.
    """

    first: Ints
    places: Ints
    counts: Ints
    starts: Ints

    @classmethod
    def of(cls, first: Ints, cases: Ints, places: Ints) -> "Runs":
        """Return runs of so many cases each."""
        counts: Ints = places.prod(axis=1)
        return cls(first, places, counts, np.append(0, np.cumsum(counts * cases)))

    @property
    def cases(self) -> Ints:
        """The number of cases of every run."""
        return np.diff(self.starts) // self.counts

    def find(self, cases: Ints) -> Ints:
        """Return the run of each case."""
        return np.searchsorted(self.first, cases, side="right") - 1

    def number(self, cases: Ints, which: Ints) -> Ints:
        """Return the numbers of some crops: ``which`` of those of their case they are."""
        run = self.find(cases)
        found: Ints = self.starts[run] + (cases - self.first[run]) * self.counts[run] + which
        return found


def find_used(rows: Rows, starts: Ints) -> Ints:
    """Return the parts that some rows lie in, given the first row of each part, and the end."""
    if rows is None:
        return np.flatnonzero(starts[:-1] < starts[1:])
    if not isinstance(rows, range | Ranges):
        every = select_rows(rows, np.arange(len(rows)))
        return np.unique(np.searchsorted(starts, every, side="right") - 1)
    return np.unique(find_parts(rows, starts)[0])


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """What some rows stand for: any crop of a case, with ``each`` rows for every one of ``cases``.

    Without ``runs`` a row stands for one sample, and ``cases`` are their numbers. ``shift`` is how
    many samples come before these in a sum of datasets.
    """

    runs: Runs | None
    cases: Listed
    each: int = 1
    shift: int = 0

    @property
    def count(self) -> int:
        """How many rows there are."""
        return len(self.cases) * self.each

    @property
    def most(self) -> int:
        """The most samples that a row may stand for."""
        return 1 if self.runs is None else int(self.runs.counts.max(initial=1))

    def counts(self, rows: Ints) -> Ints:
        """Return how many samples each row may stand for."""
        if self.runs is None:
            return np.ones_like(rows)
        return self.runs.counts[self.runs.find(select_rows(self.cases, rows // self.each))]

    def number(self, rows: Ints, drawn: Ints) -> Ints:
        """Return the numbers of samples: of each row the one that ``drawn`` counts from 1 on.

        Where it is 0 the sample is fixed by the row.
        """
        case = select_rows(self.cases, rows // self.each)
        if self.runs is None:
            return case + self.shift
        fixed = draw_numbers(rows, _FIXED, self.runs.counts[self.runs.find(case)])
        return self.runs.number(case, np.where(drawn > 0, drawn - 1, fixed)) + self.shift

    def describe(self) -> bytes:
        """Return what identifies these rows."""
        kind = "chosen" if self.runs is None else f"drawn {self.each}"
        return kind.encode() + np.asarray(self.cases, np.int64).tobytes()


class Drawn:
    """Rows that stand for any of the crops of a case, drawn when they are read.

    Row ``i + len * (1 + k)`` is crop ``k`` of the case of row ``i``. Row ``i`` itself is a crop
    that is fixed by ``i``, for those who read it without a seed. ``rows`` are those chosen of all
    that ``draws`` describe, which lie one after the other.
    """

    def __init__(self, draws: Sequence[Draw], rows: Listed) -> None:
        self.draws = tuple(draws)
        self.rows = rows
        self._starts = np.cumsum([0, *(one.count for one in draws)])
        if len(rows) * (1 + max(one.most for one in draws)) > _MOST_NUMBERED:
            raise ValueError("crops() are too many to be numbered; use a smaller each=")

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def all(self) -> int:
        """How many rows there are, chosen or not."""
        return int(self._starts[-1])

    def choose(self, further: Listed) -> "Drawn":
        """Return some of the rows."""
        chosen = compose(self.rows, further)
        if isinstance(chosen, Drawn):
            raise TypeError("rows of rows that are drawn")
        return Drawn(self.draws, chosen)

    def _divide(self, rows: Ints) -> "Iterator[tuple[Draw, slice | Ints, Ints]]":
        """Yield for every draw which of ``rows`` are its own, and their numbers in it."""
        numbers = select_rows(self.rows, rows)
        if len(self.draws) == 1:
            yield self.draws[0], slice(None), numbers
            return
        which = np.searchsorted(self._starts, numbers, side="right") - 1
        for one in np.unique(which).tolist():
            at = np.flatnonzero(which == one)
            yield self.draws[one], at, numbers[at] - self._starts[one]

    def select(self, wanted: Ints) -> Ints:
        """Return the numbers of the crops of these rows."""
        drawn, row = np.divmod(wanted, max(len(self), 1))
        found = np.empty(len(wanted), np.int64)
        for draw, at, own in self._divide(row):
            found[at] = draw.number(own, drawn[at])
        return found

    def draw(self, rows: Ints, key: NDArray[np.uint64], positions: Ints) -> Ints:
        """Return the rows with a crop drawn for each, fixed by a key and its position."""
        counts = np.empty(len(rows), np.int64)
        for draw, at, own in self._divide(rows):
            counts[at] = draw.counts(own)
        return rows + len(self) * (1 + draw_numbers(positions, key, counts))

    def describe(self) -> bytes:
        """Return what identifies these rows."""
        every = b"".join(draw.describe() for draw in self.draws)
        return every + np.asarray(self.rows, np.int64).tobytes()


def draw_rows(rows: Rows, wanted: Ints, rng: np.random.Generator) -> Ints:
    """Return the rows with crops drawn by a generator, if any are to be drawn."""
    if not isinstance(rows, Drawn):
        return wanted
    key = rng.integers(1 << 63, size=2).astype(np.uint64)
    return rows.draw(wanted, key, np.arange(len(wanted)))


_FIXED = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)


def draw_numbers(positions: Ints, key: NDArray[np.uint64], counts: Ints | int) -> Ints:
    """Draw a number below each of ``counts``, fixed by a key of two words and a position."""
    first, second = (np.uint64(word) for word in key[:2].tolist())
    mixed = positions.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + first
    for multiplier in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(multiplier) + second
    mixed ^= mixed >> np.uint64(31)
    return (mixed % np.asarray(counts, np.uint64)).astype(np.int64)


def join_rows(
    first: Rows | PartNumbers, count: int, second: Rows | PartNumbers, other: int, shift: int
) -> Rows:
    """Return ``count`` rows, then ``other`` rows of samples that are numbered from ``shift``."""
    if first is None and second is None:
        return None
    if isinstance(first, Drawn) or isinstance(second, Drawn):
        return _join_drawn(_as_drawn(first, count), _as_drawn(second, other), shift)
    return _join_listed(_as_listed(first, count), _as_listed(second, other), shift)


def _as_listed(rows: "Listed | PartNumbers | None", count: int) -> Listed:
    if isinstance(rows, PartNumbers):
        return rows[np.arange(count)]
    return range(count) if rows is None else rows


def _join_listed(first: Listed, second: Listed, shift: int) -> Listed:
    if isinstance(first, range | Ranges) and isinstance(second, range | Ranges):
        return join_ranges(first, second, shift)
    return np.concatenate([np.asarray(first, np.int64), np.asarray(second, np.int64) + shift])


def _as_drawn(rows: Rows | PartNumbers, count: int) -> Drawn:
    if isinstance(rows, Drawn):
        return rows
    return Drawn([Draw(None, _as_listed(rows, count))], range(count))


def _join_drawn(first: Drawn, second: Drawn, shift: int) -> Drawn:
    theirs = [replace(draw, shift=draw.shift + shift) for draw in second.draws]
    return Drawn([*first.draws, *theirs], _join_listed(first.rows, second.rows, first.all))


def is_ascending(rows: Rows | PartNumbers) -> bool:
    """Are the rows in the order in which they are stored?"""
    if isinstance(rows, Drawn):
        return all(map(is_ascending, [rows.rows, *(draw.cases for draw in rows.draws)]))
    if isinstance(rows, range | Ranges):
        every = ranges_of(rows)
        return all(a.step > 0 for a in every) and all(a[-1] < b[0] for a, b in pairwise(every))
    return not isinstance(rows, np.ndarray) or bool((rows[1:] >= rows[:-1]).all())


class Travelling:
    """Row numbers that pickle as a handle to shared memory where there are many."""

    def __init__(self, rows: Listed) -> None:
        self.rows = rows
        self._memory: Shared | None = None

    def __reduce__(self) -> tuple[Callable[..., "Travelling"], tuple[Any, ...]]:
        if isinstance(self.rows, range | Ranges) or len(self.rows) <= _SMALL:
            return Travelling, (self.rows,)
        if self._memory is None:
            self._memory = Shared.of([np.ascontiguousarray(self.rows).view(np.uint8).data])
        return _unpickle, (self._memory,)


def _unpickle(memory: Shared) -> Travelling:
    return Travelling(memory.view().view(np.int64))
