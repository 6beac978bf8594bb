"""Schedules decoding, so that streams are decoded before batches need them.

The order says which rows come when. From that follows which batch is the first to need a part and
which is the last: a window releases parts in the order in which it took them up. Free threads
decode parts in that order, as far ahead as memory allows, so that a batch never waits for a stream
that another thread could have decoded meanwhile, and no stream is dropped that a batch in progress
still needs.

Where memory does not hold what the order needs, streams are decoded into a file on disk (see
``dataset.large_members``), and "memory" above is the space there. Without such space streams are
dropped all the same and decoded again by the batches that need them: slow, but correct.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable

import numpy as np

from ndfeed.dataset import readahead
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.row_selection import Rows, select_rows
from ndfeed.errors import Error
from ndfeed.loading.plan import Coded, Plan
from ndfeed.loading.timing import Timing

_LISTED_AHEAD = 64


class _ScheduledPart:
    """A part, and the first and last batch that need it; the last as far as known."""

    __slots__ = ("coded", "first", "last", "part", "size")

    def __init__(self, coded: Coded, part: int, first: int) -> None:
        self.coded = coded
        self.part = part
        self.first = first
        self.last: int | None = None
        self.size = int(coded.sizes[part])


class Schedule:
    """What to decode, and when, for the ``count`` batches of one pass.

    ``arriving`` gives the ranges of rows that a batch is the first to need, each with the number
    of the window that takes them up.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        decoded: Decoded,
        arriving: Callable[[int], Iterable[tuple[int, int, int]]],
        count: int,
    ) -> None:
        self._plan = plan
        self._rows = rows
        self._arriving = arriving
        self._count = count
        self._decoded = decoded
        self._lock = threading.Lock()
        self._listing = False
        self._listed = 0  # batches whose parts are known
        self._known = [np.zeros(len(one.sizes), bool) for one in plan.coded]
        # For each window: the parts that arrived last.
        self._open = [
            [deque[_ScheduledPart](maxlen=plan.order.open_parts) for _ in plan.coded]
            for _ in range(max(len(plan.lanes), 1))
        ]
        self._todo: deque[_ScheduledPart] = deque()
        self._doing: list[_ScheduledPart] = []
        self._kept: deque[_ScheduledPart] = deque()  # decoded or being decoded, and still needed
        self._held = 0  # bytes of those
        self._begun = 0  # batches started
        self._made: set[int] = set()
        self._low = 0  # all batches before it are finished
        self._needed = 0  # the last batch that a thread wants to start

    def ready(self, stop: int) -> bool:
        """Is everything decoded that the batches before ``stop`` need? If so, they are started."""
        with self._lock:
            self._needed = stop - 1
            if (
                self._listed < stop
                or (self._todo and self._todo[0].first < stop)
                or any(one.first < stop for one in self._doing)
            ):
                return False
            self._begun = max(self._begun, stop)
            return True

    def mark_made(self, number: int) -> None:
        """Record that a batch is finished, or will never be made."""
        with self._lock:
            self._made.add(number)
            while self._low in self._made:
                self._made.remove(self._low)
                self._low += 1

    def next_task(self) -> Callable[[Timing], None] | None:
        """Return the next part to decode, or the listing of more parts."""
        with self._lock:
            while self._kept and _is_done(self._kept[0], self._low):
                over = self._kept.popleft()
                self._held -= over.size
                self._decoded.retire(over.coded.keys(over.part))
            if self._todo and self._may_decode(self._todo[0]):
                first = self._todo.popleft()
                self._doing.append(first)
                self._kept.append(first)
                self._held += first.size
                return lambda timing: self._decode(first, timing)
            short = len(self._todo) < _LISTED_AHEAD and self._listed < self._count
            if short and not self._listing:
                self._listing = True
                return self._list_more
            return None

    def _may_decode(self, part: _ScheduledPart) -> bool:
        if self._held + part.size <= self._decoded.room:
            return True
        # More than memory holds; but nothing in progress needs space now.
        return part.first <= self._needed and self._low >= self._begun and not self._doing

    def _decode(self, one: _ScheduledPart, timing: Timing) -> None:
        try:
            with timing.reading():
                one.coded.decode(one.part, self._decoded)
        except (Error, OSError, MemoryError):
            pass  # the batch that needs it will raise the same error in its turn
        finally:
            with self._lock:
                self._doing.remove(one)

    def _list_more(self, timing: Timing) -> None:
        """List the parts of the next batches."""
        found: list[_ScheduledPart] = []
        batch = self._listed
        while batch < self._count and len(found) < _LISTED_AHEAD:
            for first, end, number in self._arriving(batch):
                found += self._list_parts(batch, first, end, self._open[number])
            batch += 1
        for coded in self._plan.coded:
            parts = [one.part for one in found if one.coded is coded]
            if parts:
                timing.prefetched += readahead.ask_parts(coded.group, np.array(parts))
        with self._lock:
            self._todo.extend(found)
            self._listed = batch
            self._listing = False

    def _list_parts(
        self, batch: int, first: int, end: int, window: list["deque[_ScheduledPart]"]
    ) -> Iterable[_ScheduledPart]:
        samples = select_rows(self._rows, self._plan.places(np.arange(first, end)))
        for coded, known, still in zip(self._plan.coded, self._known, window, strict=True):
            parts = np.unique(coded.group.locate(samples).part)
            parts = parts[~known[parts] & (coded.sizes[parts] > 0)]
            known[parts] = True
            for part in parts.tolist():
                if len(still) == still.maxlen:
                    still[0].last = batch  # a full window: the oldest part leaves with this batch
                made = _ScheduledPart(coded, part, batch)
                still.append(made)
                yield made


def _is_done(part: _ScheduledPart, low: int) -> bool:
    """Are all batches finished that need the part?"""
    return part.last is not None and part.last < low
