"""One epoch of an order: rows by position, computed when they are needed.

An epoch may be used by several threads at once. What it remembers between calls only saves
time, and is replaced as one object, so that no lock is needed.
"""

from typing import NamedTuple, Protocol

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
        parts = [self._walk.at(np.arange(*cut, step, dtype=np.int64)) for cut in cuts]
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

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


def check_span(start: int, stop: int, n: int) -> None:
    """Refuse positions outside ``[0, n)``."""
    if not 0 <= start <= stop <= n:
        raise IndexError(f"positions must be in [0, {n}), got [{start}, {stop})")
