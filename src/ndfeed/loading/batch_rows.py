"""The rows of the batches of a pass, computed by threads without one waiting for another.

Where batches are small, the order is a good part of the work. Many rows are computed at a time,
since each step costs a call of NumPy's, after which a thread may have to wait for the GIL. What is
needed by several threads is a *chunk*, computed by one of them before the others need it. A group
of batches with as many rows is computed by the thread that makes it.
"""

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np

from ndfeed.order.permutation import Ints

_AT_FIRST = 1 << 14  # rows computed at a time at first: fewer would cost as much
_AT_ONCE = 1 << 18  # and later
_ALONE = 1 << 16  # rows of a group from which on each thread computes its own
_EARLY = 8  # groups whose rows are kept, as they were computed before the group is made


class Chunk(NamedTuple):
    """The rows of several batches: of one size, except perhaps the last, or up to ``ends``."""

    rows: Ints
    size: int
    ends: Ints | None

    def cut(self, first: int, stop: int) -> Ints:
        """Return the rows of some of the batches."""
        if self.ends is None:
            return self.rows[first * self.size : stop * self.size]
        begin = self.ends[first - 1] if first else 0
        return self.rows[begin : self.ends[min(stop, len(self.ends)) - 1]]


class BatchRows:
    """The rows of ``count`` batches of about ``size``, made in groups of ``together``. Thread-safe.

    ``compute`` computes those of batches [first, stop). ``foresee`` is told what was computed.
    """

    def __init__(
        self,
        compute: Callable[[int, int], Chunk],
        foresee: Callable[[Ints], None],
        size: int,
        together: int,
        count: int,
    ) -> None:
        self._compute = compute
        self._foresee = foresee
        self._count = count
        self._alone = size * together >= _ALONE
        # Batches computed at a time.
        self._first_chunk = max(_AT_FIRST // size, 1)
        self._chunk_size = together * max(_AT_ONCE // (size * together), 1)
        self._lock = threading.Lock()
        self._chunks: dict[int, Chunk] = {}  # by the first of their batches
        self._computing: dict[int, threading.Lock] = {}  # held while a chunk is computed
        self._early: dict[tuple[int, int], Ints] = {}  # of groups, by their first and stop
        self._ordering = threading.Lock()
        self._threads: set[int] = set()  # that make groups
        self._order_seconds = self._copy_seconds = 0.0  # that the last group took

    def take(self, first: int, stop: int) -> Ints:
        """Return the rows of batches [first, stop), concatenated; those of a group only once."""
        if self._alone and stop - first > 1:
            early = self._early.pop((first, stop), None)
            return self._compute_group(first, stop) if early is None else early
        parts = []
        while first < stop:
            begin, end = self._bounds(first)
            upto = min(stop, end)
            parts.append(self._chunk(begin).cut(first - begin, upto - begin))
            first = upto
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def look_at(self, first: int, stop: int) -> Ints:
        """Return the rows of a group before it is made. One thread at a time."""
        rows = self.take(first, stop)
        if self._alone:
            self._early[first, stop] = rows
            while len(self._early) > _EARLY:
                self._early.pop(next(iter(self._early)), None)
        return rows

    def note_copy(self, seconds: float) -> None:
        """Note how long it took to read a group whose rows were known."""
        self._copy_seconds = seconds

    def compute_ahead(self, number: int) -> None:
        """Compute the rows after batch ``number``, before other threads have to wait for them."""
        if self._alone:
            return
        begin, end = self._bounds(number)
        if begin < number < begin + (end - begin) // 4:
            return  # enough is computed
        first = begin if number == begin else end
        if first < self._count:
            self._chunk(first)

    def _compute_group(self, first: int, stop: int) -> Ints:
        # One thread at a time, while others read: two that work on the order take longer than one
        # for both. But not if reading takes less time: they would all wait for the order.
        self._threads.add(threading.get_ident())
        waiting = self._order_seconds * (len(self._threads) - 1)
        with self._ordering if waiting <= self._copy_seconds else nullcontext():
            began = time.perf_counter()
            rows = self._compute(first, stop).rows
            self._order_seconds = time.perf_counter() - began
        self._foresee(rows)
        return rows

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return the range of batches computed together with this one: few at first."""
        if number < self._first_chunk:
            return 0, self._first_chunk
        begin = number - (number - self._first_chunk) % self._chunk_size
        return begin, begin + self._chunk_size

    def _chunk(self, begin: int) -> Chunk:
        """Return the rows of batches from ``begin`` on, computed by one thread for all.

        Another thread may compute another chunk meanwhile.
        """
        found = self._chunks.get(begin)
        if found is not None:
            return found
        with self._computing.setdefault(begin, threading.Lock()):
            found = self._chunks.get(begin)
            if found is None:
                found = self._compute(begin, min(self._bounds(begin)[1], self._count))
                self._keep(begin, found)
            return found

    def _keep(self, begin: int, chunk: Chunk) -> None:
        """Remember a chunk for the threads that need it next, and forget those that are used up."""
        with self._lock:
            for old in [one for one in self._chunks if one < begin - 2 * self._chunk_size]:
                del self._chunks[old]
                self._computing.pop(old, None)
            self._foresee(chunk.rows)
            self._chunks[begin] = chunk
