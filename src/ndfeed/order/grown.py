"""Orders for data that grows: the rest of an epoch in which rows were added, and the newest rows.

The rows that data had at one time are a *generation*. A state lists, for every generation of its
epoch but the last, how many rows there were and how many samples had been delivered when others
came. That is enough to know what was delivered:

- A shuffle of single rows continues with a permutation of what was left and what came. With k of n
  samples delivered and a rows added, position ``k + q`` has the number ``permuted(q, n - k + a)``;
  numbers below ``n - k`` are positions of the epoch as it was, from k on, and the others are new.
- Where rows come in blocks, whole files or as they are stored, those that came follow at the end,
  in an epoch of their own.
- An order that needs to know something of rows, such as a value, continues with the rows that are
  left and those that came, in an order of its own (``rest``).

The positions that were delivered keep their rows, so data may grow again in the same epoch. The
next epoch is one like any other.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ndfeed.order.epoch import Cut, Epoch, Ranges, ScatteredWalk, Share, WalkEpoch, check_span
from ndfeed.order.mixing import Parts
from ndfeed.order.permutation import Ints, key_of, permuted
from ndfeed.order.protocol import Data, Order, Plain, Spec, Traits, check_length, check_positive
from ndfeed.order.rest import Known, Piece, Rest, list_pieces


class Stretches:
    """Rows given by the first and the number of each stretch, in ascending order."""

    def __init__(self, spans: Ints) -> None:
        self.firsts: Ints = spans[:, 0]
        self._ends: Ints = np.cumsum(spans[:, 1])
        self._shifts: Ints = self.firsts - (self._ends - spans[:, 1])  # from numbers to rows

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def lasts(self) -> Ints:
        """The end of each stretch."""
        return self._ends + self._shifts

    def at(self, numbers: Ints) -> Ints:
        """Return the rows that have these numbers among all."""
        if len(self._shifts) == 1:
            return np.asarray(numbers + self._shifts[0])
        return numbers + self._shifts[np.searchsorted(self._ends, numbers, side="right")]

    def list_rows(self) -> Ints:
        """Return all rows."""
        return self.at(np.arange(len(self)))

    def find_ranges(self, ranges: Ranges) -> Ranges:
        """Return ranges of numbers as ranges of rows."""
        found: Ranges = []
        for start, stop in ranges:
            at = start
            while at < stop:
                which = int(np.searchsorted(self._ends, at, side="right"))
                end = min(stop, int(self._ends[which]))
                shift = int(self._shifts[which])
                found.append((at + shift, end + shift))
                at = end
        return found

    def without(self, some: "Stretches") -> "Stretches":
        """Return the rows that are not among ``some`` of them."""
        edges = np.concatenate([self.firsts, some.lasts, self.lasts, some.firsts])
        steps = np.repeat([1, -1], len(edges) // 2)
        at, place = np.unique(edges, return_inverse=True)
        change = np.zeros(len(at), np.int64)
        np.add.at(change, place, steps)
        at, change = at[change != 0], change[change != 0]
        open_now = np.cumsum(change)[:-1] > 0
        return Stretches(np.stack([at[:-1], np.diff(at)], axis=1)[open_now])

    def holding(self, rows: Ints) -> Any:  # noqa: ANN401 - a mask
        """Return which of ``rows`` are among these."""
        which = np.searchsorted(self.lasts, rows, side="right")
        inside = which < len(self.firsts)
        inside[inside] = self.firsts[which[inside]] <= rows[inside]
        return inside


class Generation(NamedTuple):
    """Rows that there were: how many, how many samples were delivered, and where rows are now.

    ``more`` is what the order said about its part of the epoch.
    """

    rows: int
    samples: int
    data: str  # their fingerprint
    now: Stretches
    more: Mapping[str, Any] = {}

    def as_spec(self) -> list[Any]:
        """Return the generation for a state."""
        made = [self.rows, self.samples, self.data]
        return [*made, dict(self.more)] if self.more else made


@dataclass(frozen=True, eq=False)
class Grown(Plain):
    """An order in whose epoch ``epoch`` rows were added, after one or several generations.

    ``base`` is the order of the first generation, whose files have ``counts`` rows; ``latest`` is
    that of all rows, which other epochs follow, and ``asked`` what the caller gave as ``shuffle``.
    ``more`` is what the order says about the part of the epoch that has all rows.
    """

    base: Order
    counts: Ints | None
    latest: Order
    asked: Any
    epoch: int
    past: tuple[Generation, ...]
    more: Mapping[str, Any] = field(default_factory=dict)
    _rests: dict[tuple[int, int], Rest] = field(default_factory=dict, repr=False)

    def __reduce__(self) -> tuple[type["Grown"], tuple[Any, ...]]:
        made = self.base, self.counts, self.latest, self.asked, self.epoch, self.past, self.more
        return Grown, made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Grown):
            return NotImplemented
        same = (self.latest, self.epoch) == (other.latest, other.epoch)
        return same and self.describe(0, self.epoch, 0) == other.describe(0, other.epoch, 0)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"{self.latest}, with rows added to {self.past[-1].rows:,} in epoch {self.epoch}"

    @property
    def traits(self) -> Traits:
        """Those of the order; as many files are in use as any generation needs."""
        one, other = self.base.traits, self.latest.traits
        most = max(one.open_parts, other.open_parts)
        steady = other.steady and other.grows  # else an epoch may be of another length
        return other._replace(by_part=one.by_part, open_parts=most, steady=steady)

    def bind(self, data: Data) -> "Grown":
        """Return the order with the facts that other epochs need, if they need any."""
        latest = self.latest.bind(data)
        return self if latest is self.latest else replace(self, latest=latest)

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut the positions of an epoch into batches."""
        if epoch != self.epoch:
            return self.latest.cut(share, seed, epoch)
        return share if self.latest.traits.grows else self._rest(share.n, seed).cut(share)

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch of ``n`` rows."""
        if epoch != self.epoch:
            return self.latest.begin(n, seed, epoch, counts)
        if not self.latest.traits.grows:
            return self._rest(n, seed).begin()
        rows = [one.now for one in self.past] + [Stretches(np.array([[0, check_length(n)]]))]
        fresh = [rows[0], *(new.without(old) for old, new in pairwise(rows))]
        seeds = [key_of(f"grown {at}", seed, epoch) for at in range(len(fresh))]
        # By the first generation: what comes later must not change what was delivered.
        if self.base.traits.shuffled and not self.base.traits.by_part:
            keys = [key_of("exact", seed, epoch), *seeds[1:]]
            return WalkEpoch(_MixedWalk([one.samples for one in self.past], fresh, keys))
        pieces = [self.base.begin(len(rows[0]), seed, epoch, self.counts)]
        for own, new in zip(seeds[1:], fresh[1:], strict=True):
            files = None if counts is None else _count_in(new, np.asarray(counts))
            pieces.append(self.base.begin(len(new), own, epoch, files))
        return _JoinedEpoch(pieces, fresh)

    def _rest(self, n: int, seed: int) -> Rest:
        """Return the epoch of an order that needs to know something of rows."""
        if (n, seed) not in self._rests:
            self._rests[n, seed] = Rest(partial(self._list_pieces, n, seed))
        return self._rests[n, seed]

    def _list_pieces(self, n: int, seed: int) -> Iterator[Piece]:
        return list_pieces(self.latest, self._list_known(n), seed, self.epoch)

    def _list_known(self, n: int) -> Iterator[Known]:
        every = Stretches(np.array([[0, check_length(n)]]))
        last = Generation(n, self.past[-1].samples, "", every, self.more)
        before = Stretches(np.empty((0, 2), np.int64))
        for one in (*self.past, last):
            new = one.now.without(before)
            yield Known(one.now.list_rows(), new.list_rows(), one.more, one.samples)
            before = one.now

    def largest_batch(self, data: Data) -> int:
        """Return how many samples of average size the largest batch of a rank is worth."""
        return self.latest.largest_batch(data)

    def find_parts(self, n: int, batch: int) -> Parts | None:
        """Return the parts that the order goes by."""
        return self.latest.find_parts(n, batch) if isinstance(self.latest, Plain) else None

    def parts_in_use(self, parts: int, rows: int) -> int:
        """Return the most files that are in use at a time in any generation."""
        return max(self.base.parts_in_use(parts, rows), self.latest.parts_in_use(parts, rows))

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        return self.latest.spec()

    def describe(self, n: int, epoch: int, samples: int) -> Spec:
        """List the generations of the epoch."""
        if epoch != self.epoch:
            return self.latest.describe(n, epoch, samples)
        return {"grown": [one.as_spec() for one in self.past], **self.more}


def _count_in(rows: Stretches, counts: Ints) -> Ints:
    """Return the rows of the files whose rows are among some."""
    found: Ints = counts[(counts > 0) & rows.holding(np.cumsum(counts) - counts)]
    return found


class _MixedWalk(ScatteredWalk):
    """The walk of an epoch of single rows that was mixed anew whenever rows were added.

    ``cuts`` are the positions at which that happened, ``fresh`` has the rows of the first
    generation and those that each of the others added, and ``keys`` one key for each.
    """

    def __init__(self, cuts: list[int], fresh: list[Stretches], keys: list[int]) -> None:
        self._cuts, self._fresh, self._keys = cuts, fresh, keys
        self._ends = np.cumsum([len(one) for one in fresh]).tolist()
        self.n: int = self._ends[-1]

    def at(self, positions: Ints) -> Ints:
        rows = np.empty_like(positions)
        left = np.arange(len(positions))  # which of them are not known yet
        at = positions.copy()
        for number in range(len(self._fresh) - 1, 0, -1):
            cut, end = self._cuts[number - 1], self._ends[number - 1]
            size = self._ends[number] - cut
            if size == 0:
                continue
            late = at >= cut
            at[late] = cut + permuted(at[late] - cut, size, self._keys[number])
            new = at >= end
            rows[left[new]] = self._fresh[number].at(at[new] - end)
            left, at = left[~new], at[~new]
        if len(left):
            rows[left] = self._fresh[0].at(permuted(at, self._ends[0], self._keys[0]))
        return rows


class _JoinedEpoch:
    """An epoch of the rows of the first generation, then one of those that came, and so on."""

    def __init__(self, epochs: list[Epoch], rows: list[Stretches]) -> None:
        self._parts = list(zip(epochs, rows, strict=True))
        ends = np.cumsum([len(one) for one in rows]).tolist()
        self._bounds = list(zip([0, *ends], ends, strict=False))
        self.n: int = ends[-1]

    def rows(self, start: int, stop: int, step: int = 1) -> Ints:
        check_span(start, stop, self.n)
        found = [np.empty(0, np.int64)]
        for (first, end), (epoch, rows) in zip(self._bounds, self._parts, strict=True):
            begin = max(start, first + (start - first) % step)
            if begin < min(stop, end):
                found.append(rows.at(epoch.rows(begin - first, min(stop, end) - first, step)))
        return np.concatenate(found)

    def arriving(self, start: int, stop: int) -> Ranges:
        check_span(start, stop, self.n)
        found: Ranges = []
        for (first, end), (epoch, rows) in zip(self._bounds, self._parts, strict=True):
            begin, until = max(start, first), min(stop, end)
            if begin < until:
                found += rows.find_ranges(epoch.arriving(begin - first, until - first) or [])
        return found

    def held(self, position: int) -> Ranges:
        check_span(position, position, self.n)
        for (first, end), (epoch, rows) in zip(self._bounds, self._parts, strict=True):
            if first < position < end:
                return rows.find_ranges(epoch.held(position - first) or [])
        return []


@dataclass(frozen=True, slots=True)
class Recent(Plain):
    """A shuffle of the last ``rows`` rows of the data, of all if there are fewer.

    With ``loader.refresh()`` before every epoch, this is a replay buffer: the samples of the newest
    files by name.
    """

    rows: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", check_positive("rows", self.rows))

    def cut(self, share: Share, seed: int, epoch: int) -> Cut:
        """Cut as many positions as there are rows into batches."""
        return replace(share, n=min(self.rows, share.n))

    def begin(self, n: int, seed: int, epoch: int, counts: Ints | None = None) -> Epoch:
        """Make one epoch."""
        size = min(self.rows, check_length(n))
        rows = Stretches(np.array([[n - size, size]]))
        return WalkEpoch(_MixedWalk([], [rows], [key_of("recent", seed, epoch)]))

    def continue_with(self, known: Ints, left: Ints, done: int) -> tuple["Recent", Ints]:
        """Return the same order, of the rows that are left."""
        return self, left

    def spec(self) -> Spec:
        """Say which order this is, for JSON; compared on resume."""
        return {"kind": "recent", "rows": self.rows}
