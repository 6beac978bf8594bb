"""Parts in a permuted order: blocks of one size, computed, or files of any sizes, listed."""

from typing import Protocol

import numpy as np

from ndfeed.order.permutation import Ints, keys_from, permuted


class Parts(Protocol):
    """Parts in their permuted order, none of them empty."""

    count: int
    n: int

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        ...

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        ...

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        ...

    def holding(self, position: int) -> int:
        """The place whose part would hold a position if parts came whole, one after another."""
        ...


class EqualParts:
    """Blocks of one size, permuted, with the short one, if any, put in at a place of its own."""

    def __init__(self, n: int, rows: int, key: int) -> None:
        self.n, self._rows = n, rows
        self._key, place = (int(k) for k in keys_from(key, np.arange(2, 4, dtype=np.int64)))
        self._full, rest = divmod(self.n, self._rows)
        self.count = self._full + (rest > 0)
        self._short = place * self.count >> 64 if rest else self.count
        self._lacking = self._rows - rest if rest else 0

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        sizes: Ints = self._rows - self._lacking * (i == self._short)
        return sizes

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        if not self._full:
            return np.zeros_like(i)
        place = np.minimum(i - (i > self._short), self._full - 1)
        block = permuted(place, self._full, self._key)
        return np.where(i == self._short, self._full, block) * self._rows

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        return i * self._rows - self._lacking * (i > self._short)

    def holding(self, position: int) -> int:
        """The place whose part would hold ``position`` if parts came whole."""
        if position < self.before(self._short + 1):
            return min(position // self._rows, self._short)
        return (position + self._lacking) // self._rows


class ListedParts:
    """Files of any sizes, none empty, in the order in which they are listed."""

    def __init__(self, sizes: Ints, firsts: Ints) -> None:
        self._sizes, self._firsts = sizes, firsts
        self._ends = np.cumsum(sizes)
        self.count = len(sizes)
        self.n = int(self._ends[-1]) if self.count else 0

    @classmethod
    def permuted(cls, counts: Ints, key: int) -> "ListedParts":
        """Files of so many rows each, permuted; the empty ones left out."""
        starts = np.cumsum(counts) - counts
        files = np.flatnonzero(counts)
        if len(files):
            own = int(keys_from(key, np.arange(2, 3, dtype=np.int64))[0])
            files = files[permuted(np.arange(len(files), dtype=np.int64), len(files), own)]
        return cls(counts[files], starts[files])

    def cut(self, start: int, end: int) -> "ListedParts":
        """The rows ``[start, end)`` of all parts end to end: some parts, the outer ones in part."""
        if start >= end:
            return ListedParts(self._sizes[:0], self._firsts[:0])
        first, last = self.holding(start), self.holding(end - 1)
        sizes = self._sizes[first : last + 1].copy()
        firsts = self._firsts[first : last + 1].copy()
        sizes[-1] -= int(self._ends[last]) - end
        skipped = start - self.before(first)
        sizes[0] -= skipped
        firsts[0] += skipped
        return ListedParts(sizes, firsts)

    def sizes(self, i: Ints) -> Ints:
        """Rows of the parts at these places of the order."""
        return self._sizes[i]

    def firsts(self, i: Ints) -> Ints:
        """The first row of each."""
        return self._firsts[i]

    def before(self, i: int) -> int:
        """Rows of all parts before place ``i``."""
        return int(self._ends[i - 1]) if i else 0

    def holding(self, position: int) -> int:
        """The place whose part would hold ``position`` if parts came whole."""
        return int(np.searchsorted(self._ends, position, side="right"))
