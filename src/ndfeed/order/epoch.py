"""One epoch of an order: rows by position, and which positions are whose.

An epoch may be used by several threads at once. What it remembers between calls only saves
time, and is replaced as one object, so that no lock is needed.

Positions are cut into global batches, and those among ranks. A global batch is
``batch_size * world`` consecutive positions, and rank r takes the r-th slice of it. So the ranks
together walk the one order of the epoch, whatever their number: an epoch that was left after some
global batches can be taken up at that position by another number of ranks. All ranks get the same
number of batches. A short last global batch is split evenly: the first ranks get one sample more
where it does not divide; where samples are fewer than ranks, the last ranks get an empty batch.

Where an order divides files among ranks, they take every ``world``-th position instead of slices
(``stripes``); all of the above holds as well.

A process that feeds several devices may be several ranks at once: it takes the slices of all of
them, one after the other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from ndfeed.order.permutation import Ints

Ranges = list[tuple[int, int]]

_AHEAD = 1 << 15  # rows computed at once when the next requests can be foreseen
_MOST = 1 << 16  # positions computed at once, however many are requested


class Epoch(Protocol):
    """What an order is for one seed and epoch.

    - ``rows(start, stop)`` is the same whatever was requested before, and by whom.
    - Its cost is that of ``stop - start`` rows and a constant, whatever the length.
    - The ranges of ``arriving`` over consecutive spans hold every row once, none later than
      its first use; with ``held`` before the first span, also when that begins in the middle.
    """

    def rows(self, start: int, stop: int, step: int = 1) -> Ints:
        """The rows at every ``step``-th of positions ``[start, stop)``, in a new vector."""
        ...

    def arriving(self, start: int, stop: int) -> Ranges | None:
        """Row ranges first needed at positions ``[start, stop)``, in order of need.

        They are whole blocks or files. ``None`` where rows come one by one from anywhere.
        """
        ...

    def held(self, position: int) -> Ranges | None:
        """Row ranges that arrived before ``position`` and may be needed from there on."""
        ...


class Walk(Protocol):
    """The arithmetic behind an epoch: any positions, in ascending order, to rows."""

    n: int

    def at(self, positions: Ints) -> Ints:
        """The rows at ascending positions."""
        ...

    def arriving(self, start: int, stop: int) -> Ranges | None:
        """As in ``Epoch``."""
        ...

    def held(self, position: int) -> Ranges | None:
        """As in ``Epoch``."""
        ...


Arrival = tuple[int, int, int]  # rows [first, end), and in which turn they arrive


class Window(Protocol):
    """Says which rows arrive when, for one of the windows of an epoch.

    A row arrives once in a turn; where an epoch has it several times, there are several turns.
    ``open_parts`` is how many files or blocks are mixed at a time.
    """

    open_parts: int

    def arriving(self, start: int, stop: int) -> Sequence[Arrival]:
        """Row ranges first needed at positions ``[start, stop)``, in order of need."""
        ...

    def held(self, position: int) -> Sequence[Arrival]:
        """Row ranges that arrived before ``position`` and may be needed from there on."""
        ...


@runtime_checkable
class Windowed(Protocol):
    """An epoch with windows of its own, such as one for each source of a mixture."""

    windows: Sequence[Window]


class EpochWindow:
    """The only window of an epoch that has every row once."""

    def __init__(self, epoch: Epoch, open_parts: int) -> None:
        self._epoch = epoch
        self.open_parts = open_parts

    def arriving(self, start: int, stop: int) -> Sequence[Arrival]:
        """Row ranges first needed at positions ``[start, stop)``, in order of need."""
        return [(first, end, 0) for first, end in self._epoch.arriving(start, stop) or ()]

    def held(self, position: int) -> Sequence[Arrival]:
        """Row ranges that arrived before ``position`` and may be needed from there on."""
        return [(first, end, 0) for first, end in self._epoch.held(position) or ()]


class ScatteredWalk:
    """A walk whose rows come one by one from anywhere: no blocks or files arrive whole."""

    def arriving(self, start: int, stop: int) -> None:
        """Return nothing."""

    def held(self, position: int) -> None:
        """Return nothing."""


class _Memory(NamedTuple):
    """The last request, and rows computed ahead by where their span begins."""

    start: int
    length: int
    ahead: dict[int, Ints]


class WalkEpoch:
    """An epoch over a walk, computing ahead when requests come at regular distances.

    A vectorised walk costs some 60 µs a call however few rows it makes. Batches of one size at
    one distance, as one rank of many takes them, are therefore made many at a time.
    """

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self._memory = _Memory(-1, 0, {})

    def rows(self, start: int, stop: int, step: int = 1) -> Ints:
        """The rows at every ``step``-th of positions ``[start, stop)``, in a new vector."""
        check_span(start, stop, self._walk.n)
        if step != 1:
            return self._at(start, stop, step)
        length, memory = stop - start, self._memory
        ahead = memory.ahead
        found = ahead.get(start)
        if found is not None and len(found) == length:
            self._memory = _Memory(start, length, ahead)
            return found.copy()
        distance = start - memory.start
        if length == memory.length and 0 < length <= distance and 2 * length <= _AHEAD:
            ahead = self._spans(start, length, distance)
            self._memory = _Memory(start, length, ahead)
            return ahead[start].copy()
        self._memory = _Memory(start, length, {})
        return self._at(start, stop, 1)

    def _at(self, start: int, stop: int, step: int) -> Ints:
        far = _MOST * step
        cuts = [(at, min(at + far, stop)) for at in range(start, stop, far)]
        return _join([self._walk.at(np.arange(*cut, step, dtype=np.int64)) for cut in cuts])

    def at(self, positions: Ints) -> Ints:
        """The rows at some ascending positions."""
        cuts = range(0, len(positions), _MOST)
        return _join([self._walk.at(positions[first : first + _MOST]) for first in cuts])

    def _spans(self, start: int, length: int, distance: int) -> dict[int, Ints]:
        last = min(start + distance * (_AHEAD // length), self._walk.n - length + 1)
        starts = np.arange(start, last, distance, dtype=np.int64)
        positions = (starts[:, None] + np.arange(length, dtype=np.int64)).reshape(-1)
        rows = self._walk.at(positions).reshape(len(starts), length)
        return dict(zip(starts.tolist(), rows, strict=True))

    def arriving(self, start: int, stop: int) -> Ranges | None:
        """Row ranges first needed at positions ``[start, stop)``, in order of need."""
        check_span(start, stop, self._walk.n)
        return self._walk.arriving(start, stop)

    def held(self, position: int) -> Ranges | None:
        """Row ranges that arrived before ``position`` and may be needed from there on."""
        check_span(position, position, self._walk.n)
        return self._walk.held(position)


def _join(parts: list[Ints]) -> Ints:
    """Concatenate vectors, of which most often there is one."""
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def rows_at(epoch: Epoch, positions: Ints) -> Ints:
    """The rows of an epoch at ascending positions, of which there is at least one."""
    if isinstance(epoch, WalkEpoch):
        return epoch.at(positions)
    breaks = np.flatnonzero(np.diff(positions) != 1) + 1
    runs = zip([0, *breaks.tolist()], [*breaks.tolist(), len(positions)], strict=True)
    spans = [(int(positions[a]), int(positions[b - 1]) + 1) for a, b in runs]
    return np.concatenate([epoch.rows(*span) for span in spans])


def check_span(start: int, stop: int, n: int) -> None:
    """Refuse positions outside ``[0, n)``."""
    if not 0 <= start <= stop <= n:
        raise IndexError(f"positions must be in [0, {n}), got [{start}, {stop})")


class Cut(Protocol):
    """The positions of one epoch, cut into batches of which a rank takes its part.

    Positions are those of the epoch's rows; ``n`` is how many there are. A pass may start at any
    position where a batch ended, of this cut or of another one.
    """

    @property
    def n(self) -> int:
        """Positions of the epoch."""
        ...

    @property
    def even(self) -> bool:
        """Are all batches of one size, except perhaps the last?"""
        ...

    def batches(self, start: int = 0) -> int:
        """Batches of this and of every rank, from position ``start`` on."""
        ...

    def spans(self, k: int, start: int = 0) -> list[tuple[int, int]]:
        """The positions of global batch ``k`` that are taken: half open, one for each rank."""
        ...

    def stripes(self, k: int, start: int = 0) -> list[tuple[int, int, int]]:
        """The same where ranks take turns: beginning, end and step."""
        ...

    def consumed(self, k: int, start: int = 0) -> int:
        """Positions that all ranks are past after ``k`` batches."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """One rank's part of ``n`` positions. ``batch_size`` is that of one rank.

    ``others`` are ranks above ``rank``, in order, whose slices are taken as well. ``tokens`` is a
    budget for the length of a padded batch, for orders that go by length, or 0; ``batch_size`` is
    then the most samples that a batch could have.
    """

    n: int
    batch_size: int
    rank: int = 0
    world: int = 1
    drop_last: bool = False
    others: tuple[int, ...] = ()
    tokens: int = 0

    def __post_init__(self) -> None:
        for name in ("n", "batch_size", "rank", "world", "tokens"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | np.integer):
                raise TypeError(f"{name} must be an integer, got {value!r}")
            object.__setattr__(self, name, int(value))  # NumPy's would wrap, and are not JSON
        if not isinstance(self.drop_last, bool):
            raise TypeError(f"drop_last must be True or False, got {self.drop_last!r}")
        self._check_numbers()

    def _check_numbers(self) -> None:
        if self.n < 0:
            raise ValueError(f"n must be at least 0, got {self.n}")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")
        if self.world < 1:
            raise ValueError(f"world must be at least 1, got {self.world}")
        if not 0 <= self.rank < self.world:
            raise ValueError(f"rank must be in [0, {self.world}), got {self.rank}")
        if list(self.ranks) != sorted({*self.ranks}) or self.ranks[-1] >= self.world:
            raise ValueError(f"ranks must rise within [0, {self.world}), got {self.ranks}")

    @property
    def ranks(self) -> tuple[int, ...]:
        """Whose slices are taken."""
        return self.rank, *self.others

    def as_facts(self) -> dict[str, int]:
        """Return what has to be the same on all ranks."""
        size = {"tokens": self.tokens} if self.tokens else {"batch_size": self.batch_size}
        return size | {"drop_last": self.drop_last}

    @property
    def even(self) -> bool:
        """All batches are of one size, except perhaps the last."""
        return True

    @property
    def size(self) -> int:
        """Samples of a full batch here."""
        return self.batch_size * len(self.ranks)

    @property
    def together(self) -> int:
        """Samples of a global batch, all ranks together."""
        return self.batch_size * self.world

    def batches(self, start: int = 0) -> int:
        """Batches of this and of every rank, from position ``start`` on."""
        self._check(start)
        whole, rest = divmod(self.n - start, self.together)
        return whole + (rest > 0 and not self.drop_last)

    def spans(self, k: int, start: int = 0) -> list[tuple[int, int]]:
        """The positions of global batch ``k`` that are taken: half open, one for each rank."""
        count = self.batches(start)
        if not 0 <= k < count:
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        first = start + k * self.together
        each, more = divmod(min(self.together, self.n - first), self.world)
        begins = [(rank, first + rank * each + min(rank, more)) for rank in self.ranks]
        return [(begin, begin + each + (rank < more)) for rank, begin in begins]

    def stripes(self, k: int, start: int = 0) -> list[tuple[int, int, int]]:
        """The same where rank r takes every position p with ``p % world == r``.

        Beginning, end and step. A global batch has as many of them for every rank, but for a last
        one that is short.
        """
        count = self.batches(start)
        if not 0 <= k < count:
            raise IndexError(f"batches must be in [0, {count}), got {k}")
        first, end = self.consumed(k, start), self.consumed(k + 1, start)
        begins = [first + (rank - first) % self.world for rank in self.ranks]
        return [(min(begin, end), end, self.world) for begin in begins]

    def consumed(self, k: int, start: int = 0) -> int:
        """Samples of the epoch that all ranks have had after ``k`` batches."""
        self._check(start)
        return min(start + k * self.together, self.n)

    def _check(self, start: int) -> None:
        if not 0 <= start <= self.n:
            raise ValueError(f"start must be in [0, {self.n}], got {start}")
