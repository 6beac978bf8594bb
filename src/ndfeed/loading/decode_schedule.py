"""Schedules decoding, so that streams are decoded before batches need them.

The order says which rows come when. From that follows which batch is the first to need a part and
which is the last: a window releases parts in the order in which it took them up. There may be
several windows, over different parts. Where an epoch has rows several times, as a mixture may have
those of a small source, their parts arrive again in another turn. Free threads
decode parts in that order, as far ahead as memory allows, so that a batch never waits for a stream
that another thread could have decoded meanwhile, and no stream is dropped that a batch in progress
still needs.

Where memory does not hold what the order needs, streams are decoded into a file on disk (see
``dataset.large_members``), and "memory" above is the space there. Without such space streams are
dropped all the same and decoded again by the batches that need them: slow, but correct.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ndfeed.dataset import readahead
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.row_selection import Rows, select_rows
from ndfeed.errors import Error
from ndfeed.loading.coded import Coded
from ndfeed.loading.plan import Plan
from ndfeed.loading.timing import Timing
from ndfeed.order.epoch import Arrival

_LISTED_AHEAD = 64


class _ScheduledPart:
    """A part, and the first and last batch that need it; the last as far as known."""

    __slots__ = ("coded", "first", "key", "last", "part", "size", "window")

    def __init__(self, coded: Coded, part: int, first: int, window: int) -> None:
        self.coded = coded
        self.key = id(coded), part
        self.window = window
        self.part = part
        self.first = first
        self.last: int | None = None
        self.size = int(coded.sizes[part])


class Schedule:
    """What to decode, and when, for the ``count`` batches of one pass.

    ``arriving`` gives the ranges of rows that a batch is the first to need in a turn, each with the
    number of the window that takes them up. ``open_parts`` is how many parts each window has open.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        decoded: Decoded,
        arriving: Callable[[int], Iterable[tuple[Arrival, int]]],
        open_parts: Sequence[int],
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
        # For each part: the turn in which it arrived last.
        self._known = [np.full(len(one.sizes), -1, np.int64) for one in plan.coded]
        # For each window: the parts that arrived last.
        self._open = [
            [deque[_ScheduledPart](maxlen=most) for _ in plan.coded] for most in open_parts
        ]
        self._todo: deque[_ScheduledPart] = deque()
        self._doing: list[_ScheduledPart] = []
        # For each window: those decoded or being decoded, and still needed.
        self._kept: list[deque[_ScheduledPart]] = [deque() for _ in open_parts]
        self._uses: Counter[tuple[int, int]] = Counter()  # how often a part is among those
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
            for kept in self._kept:
                while kept and _is_done(kept[0], self._low):
                    self._release(kept.popleft())
            if self._todo and self._may_decode(self._todo[0]):
                first = self._todo.popleft()
                self._doing.append(first)
                self._kept[first.window].append(first)
                self._uses[first.key] += 1
                self._held += first.size
                return lambda timing: self._decode(first, timing)
            short = len(self._todo) < _LISTED_AHEAD and self._listed < self._count
            if short and not self._listing:
                self._listing = True
                return self._list_more
            return None

    def _release(self, over: _ScheduledPart) -> None:
        """Let a part be dropped, unless it has arrived again."""
        self._held -= over.size
        self._uses[over.key] -= 1
        if not self._uses[over.key]:
            del self._uses[over.key]
            self._decoded.retire(over.coded.keys(over.part))

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
            for arrival, window in self._arriving(batch):
                found += self._list_parts(batch, arrival, window)
            batch += 1
        for coded in self._plan.coded:
            parts = [one.part for one in found if one.coded is coded]
            if parts:
                timing.prefetched += readahead.ask_parts(coded.group, coded.parts[parts])
        with self._lock:
            self._todo.extend(found)
            self._listed = batch
            self._listing = False

    def _list_parts(self, batch: int, arrival: Arrival, window: int) -> Iterable[_ScheduledPart]:
        first, end, turn = arrival
        samples = select_rows(self._rows, self._plan.places(np.arange(first, end)))
        every = zip(self._plan.coded, self._known, self._open[window], strict=True)
        for coded, known, still in every:
            parts = np.unique(coded.locate(samples))
            parts = parts[(known[parts] != turn) & (coded.sizes[parts] > 0)]
            known[parts] = turn
            for part in parts.tolist():
                if len(still) == still.maxlen:
                    still[0].last = batch  # a full window: the oldest part leaves with this batch
                made = _ScheduledPart(coded, part, batch, window)
                still.append(made)
                yield made


def _is_done(part: _ScheduledPart, low: int) -> bool:
    """Are all batches finished that need the part?"""
    return part.last is not None and part.last < low
