"""Streams that hold many rows and must be decoded whole, decoded before batches need them.

The order says which rows come when; from that follows which parts are needed for the first
time by which batch. They are decoded in that order by whatever thread is free, as far ahead as
memory allows, so that a batch never waits for a stream that another thread could have decoded
meanwhile. What was decoded is kept in ``Decoded``, which is limited; should a stream be given
up too early it is decoded again by the batch that needs it.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import ahead
from ndfeed.dataset.column import Column, Group
from ndfeed.dataset.members import Decoded
from ndfeed.dataset.rows import stream_of
from ndfeed.dataset.rowset import Rows, chosen
from ndfeed.errors import Error
from ndfeed.formats.array import INLINE, RAW
from ndfeed.loader.clock import Clock

Ints = NDArray[np.int64]

_LISTED_AHEAD = 64


class Coded:
    """The streams of a group that hold several rows each."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self.columns = [] if group.by_file else [c for c in group.columns if _coded(c, group).any()]
        # Per part: bytes of its streams, each counted once for all columns it holds.
        self.sizes = np.zeros(len(group.starts) - 1, np.int64)
        seen: list[Ints] = []
        for column in self.columns:
            table, arrays = column.table, column.arrays
            places = table.offset[arrays]
            fresh = _coded(column, group)
            for earlier in seen:
                fresh &= places != earlier
            seen.append(places)
            self.sizes += np.where(
                fresh, np.maximum(table.decoded[arrays], table.length[arrays]), 0
            )

    def decode(self, part: int, decoded: Decoded) -> None:
        """Decode whatever of a part is not decoded yet."""
        for column in self.columns:
            if column.coding[part] not in (RAW, INLINE):
                stream_of(column, part, decoded)


def _coded(column: Column, group: Group) -> NDArray[np.bool_]:
    """Per part: does it hold several rows that cannot be read alone?"""
    coding = column.coding
    return np.asarray((coding != RAW) & (coding != INLINE) & (np.diff(group.starts) > 1))


class _Needed(NamedTuple):
    """A part, and the first batch that needs it."""

    batch: int
    coded: Coded
    part: int

    @property
    def size(self) -> int:
        return int(self.coded.sizes[self.part])


class Schedule:
    """What is to be decoded, when, for the batches of one pass.

    ``arriving`` gives the ranges of rows that a batch is the first to need. ``room`` is how many
    bytes may be decoded ahead of need.
    """

    def __init__(
        self,
        coded: list[Coded],
        rows: Rows,
        places: Callable[[Ints], Ints],
        arriving: Callable[[int], Iterable[tuple[int, int]]],
        count: int,
        decoded: Decoded,
        room: int,
    ) -> None:
        self._coded = coded
        self._rows = rows
        self._places = places
        self._arriving = arriving
        self._count = count
        self._decoded = decoded
        self._room = room
        self._lock = threading.Lock()
        self._listing = False
        self._listed = 0  # batches whose parts are known
        self._known = [np.zeros(len(one.sizes), bool) for one in coded]
        self._todo: deque[_Needed] = deque()
        self._doing: list[_Needed] = []
        self._ahead: deque[_Needed] = deque()  # decoded or being decoded, not yet needed
        self._needed = 0

    def ready(self, batch: int) -> bool:
        """Is everything decoded that the batch needs?"""
        self._needed = batch
        with self._lock:
            waiting = bool(self._todo) and self._todo[0].batch <= batch
            return (
                self._listed > batch
                and not waiting
                and all(one.batch > batch for one in self._doing)
            )

    def errand(self) -> Callable[[Clock], None] | None:
        """A part to decode now, or parts to be listed."""
        with self._lock:
            while self._ahead and self._ahead[0].batch <= self._needed:
                self._ahead.popleft()
            if self._todo:
                held = sum(one.size for one in self._ahead)
                first = self._todo[0]
                if first.batch <= self._needed or held + first.size <= self._room:
                    self._todo.popleft()
                    self._doing.append(first)
                    self._ahead.append(first)
                    return lambda clock: self._decode(first, clock)
            short = len(self._todo) < _LISTED_AHEAD and self._listed < self._count
            if short and not self._listing:
                self._listing = True
                return self._list
            return None

    def _decode(self, one: _Needed, clock: Clock) -> None:
        try:
            with clock.filling():
                one.coded.decode(one.part, self._decoded)
        except (Error, OSError, MemoryError):
            pass  # the batch that needs it will meet it again, in its turn
        finally:
            with self._lock:
                self._doing.remove(one)

    def _list(self, clock: Clock) -> None:
        """Work out the parts of the next batches."""
        found: list[_Needed] = []
        batch = self._listed
        while batch < self._count and len(found) < _LISTED_AHEAD:
            for first, end in self._arriving(batch):
                found += self._parts(batch, first, end)
            batch += 1
        for coded in self._coded:
            parts = [one.part for one in found if one.coded is coded]
            if parts:
                clock.asked += ahead.ask_parts(coded.group, np.array(parts))
        with self._lock:
            self._todo.extend(found)
            self._listed = batch
            self._listing = False

    def _parts(self, batch: int, first: int, end: int) -> Iterable[_Needed]:
        samples = chosen(self._rows, self._places(np.arange(first, end)))
        for coded, known in zip(self._coded, self._known, strict=True):
            parts = np.unique(coded.group.locate(samples).part)
            parts = parts[~known[parts] & (coded.sizes[parts] > 0)]
            known[parts] = True
            for part in parts.tolist():
                yield _Needed(batch, coded, part)
