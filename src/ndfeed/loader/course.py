"""One pass over a dataset, or what is left of one: which rows make which batch."""

import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset import ahead
from ndfeed.dataset.rowset import chosen
from ndfeed.loader.clock import Clock
from ndfeed.loader.draws import Key
from ndfeed.loader.fill import Filler
from ndfeed.loader.members import Coded, Schedule
from ndfeed.order.orders import Epoch
from ndfeed.order.share import Share

Ints = NDArray[np.int64]

_AT_ONCE = 1 << 14  # rows worked out at a time: fewer cost as much
_FAR_AHEAD = 64 << 20  # bytes asked for before they are read
_NONE = np.empty(0, np.int64)
_WARM = 8  # how many times in a row nothing is looked at once all was in memory


class Places:
    """From the rows of an order to those of the dataset, where they are not the same.

    A window over files needs the rows of each file side by side; a view of a dataset may have
    them in any order.
    """

    def __init__(self, sorted_rows: Ints | None) -> None:
        self._rows = sorted_rows

    def __call__(self, rows: Ints) -> Ints:
        """Rows of the dataset."""
        return rows if self._rows is None else self._rows[rows]


class Pass:
    """The batches of one epoch from position ``start`` on, for one rank."""

    def __init__(
        self,
        filler: Filler,
        epoch: Epoch,
        share: Share,
        start: int,
        *,
        key: Key,
        places: Places,
        coded: list[Coded],
        room: int,
        together: int,
        blocks: bool,
    ) -> None:
        self.count = share.batches(start)
        self.together = together
        self._filler = filler
        self._epoch = epoch
        self._share = share
        self._start = start
        self._places = places
        self._blocks = blocks  # are rows needed block by block?
        self._key = key
        self._lock = threading.Lock()
        self._each = max(_AT_ONCE // share.batch_size, 1)  # batches worked out at a time
        self._chunks: dict[int, Ints] = {}
        self._asking = threading.Lock()
        self._asked = 0  # batches looked at, and asked for if need be
        self._unasked = 0  # times that nothing was looked at
        self._patience = 0
        self._schedule: Schedule | None = None
        if coded and epoch.arriving(start, start) is not None:
            self._schedule = Schedule(
                coded, filler.ds.rows, places, self._arriving, self.count, filler.decoded, room
            )

    def rows(self, number: int) -> tuple[int, Ints]:
        """The first position of a batch, and its rows."""
        lo, hi = self._share.span(number, self._start)
        chunk = number // self._each
        with self._lock:
            found = self._chunks.get(chunk)
            if found is None:
                found = self._chunks[chunk] = self._worked_out(chunk)
                for old in [c for c in self._chunks if c < chunk - 8]:
                    del self._chunks[old]
        if self._share.world == 1:
            begin = lo - self._share.span(chunk * self._each, self._start)[0]
            return lo, found[begin : begin + hi - lo]
        begin = (number % self._each) * self._share.batch_size
        return lo, found[begin : begin + hi - lo]

    def _worked_out(self, chunk: int) -> Ints:
        first, last = chunk * self._each, min((chunk + 1) * self._each, self.count) - 1
        span = self._share.span
        if self._share.world == 1:
            begin, end = span(first, self._start)[0], span(last, self._start)[1]
            return self._places(self._epoch.rows(begin, end))
        parts = [self._epoch.rows(*span(k, self._start)) for k in range(first, last + 1)]
        return self._places(np.concatenate(parts))

    def make(self, number: int, clock: Clock) -> Any:  # noqa: ANN401
        """The batch of that number."""
        began = time.perf_counter()
        first, rows = self.rows(number)
        clock.order += time.perf_counter() - began
        return self._filler.make(rows, first, self._key, clock)

    def _arriving(self, number: int) -> Iterable[tuple[int, int]]:
        """Ranges of rows that batch ``number`` is the first to need, on any rank."""
        start = self._share.consumed(number, self._start)
        stop = self._share.consumed(number + 1, self._start)
        held = self._epoch.held(start) if number == 0 else None
        return [*(held or ()), *(self._epoch.arriving(start, stop) or ())]

    def ready(self, number: int) -> bool:
        """Is everything decoded that the batch needs?"""
        return self._schedule is None or self._schedule.ready(number)

    def errand(self) -> Callable[[Clock], None] | None:
        """Something to decode."""
        return None if self._schedule is None else self._schedule.errand()

    def look_ahead(self, number: int, clock: Clock) -> None:
        """Ask for the rows of coming batches, if they are not in memory."""
        if not self._asking.acquire(blocking=False):
            return  # another thread is at it
        try:
            if self._patience and self._unasked < self._patience:
                self._unasked += 1
                return
            began = time.perf_counter()
            self._ask(number, clock)
            clock.ahead += time.perf_counter() - began
        finally:
            self._asking.release()

    def _ask(self, number: int, clock: Clock) -> None:
        size = max(self._filler.batch_bytes, 1)
        end = min(number + max(_FAR_AHEAD // size, self.together), self.count)
        first = max(self._asked, number - self.together)
        self._unasked = 0
        self._asked = max(end, self._asked)
        for at in range(first, end, self.together):
            rows = self._coming(at, min(at + self.together, end))
            if not len(rows):
                continue
            ds = self._filler.ds
            samples = chosen(ds.rows, rows)
            asked = sum(ahead.ask(group, samples) for group in ds.groups)
            clock.asked += asked
            if not asked:
                # What was in memory is looked at less and less often.
                self._patience = min(self._patience + 1, _WARM)
                self._asked = min(self._asked, at + self.together)
                return
            self._patience = 0

    def _coming(self, first: int, end: int) -> Ints:
        """Rows that are first needed by some batches: their own, or those of whole blocks."""
        numbers = range(first, end)
        if not self._blocks:
            return np.concatenate([self.rows(number)[1] for number in numbers])
        ranges = [one for number in numbers for one in self._arriving(number)]
        return self._places(np.concatenate([np.arange(*one) for one in ranges] or [_NONE]))
