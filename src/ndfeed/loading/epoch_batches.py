"""One epoch over a dataset, or the rest of one: which rows make up which batch."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from ndfeed.dataset import readahead
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.decoding import Decoded
from ndfeed.dataset.row_selection import select_rows
from ndfeed.loading.batch_maker import BatchMaker
from ndfeed.loading.budget import Budget
from ndfeed.loading.decode_schedule import Schedule
from ndfeed.loading.engine import Delivered, count_batches
from ndfeed.loading.map_rng import SampleSeeds, key_of
from ndfeed.loading.plan import Plan
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints
from ndfeed.order.rank_share import Share

_AT_FIRST = 1 << 14  # rows worked out at a time: fewer cost as much
_AT_ONCE = 1 << 18
_NONE = np.empty(0, np.int64)
_WARM = 16  # most checks in a row that are skipped once everything was in memory


class Pass(NamedTuple):
    """Which batches are wanted: those of one rank, from position ``start`` of an epoch on."""

    share: Share
    seed: int
    epoch: int
    start: int


class EpochBatches:
    """The batches of one pass, which a batch maker makes."""

    def __init__(
        self,
        wanted: Pass,
        ds: Dataset,
        plan: Plan,
        budget: Budget,
        decoded: Decoded,
        maker: BatchMaker,
    ) -> None:
        share, seed, epoch, start = wanted
        self.count = share.batches(start)
        self.together = together = budget.group
        self.slow = bool(ds.steps)
        self.left = False  # nobody wants the remaining batches
        self._share = share
        self._start = start
        self._ds = ds
        self._plan = plan
        self._budget = budget
        self._maker = maker
        self._epoch, self._windows = plan.begin(share.n, seed, epoch)
        self._key = key_of(seed, epoch)
        self._lock = threading.Lock()
        # Batches worked out at a time. Many, since every NumPy call may release the GIL.
        self._few = together * max(_AT_FIRST // (share.size * together), 1)
        self._many = together * max(_AT_ONCE // (share.size * together), 1)
        self._chunks: dict[int, Ints] = {}  # rows of some batches, by the first of them
        self._asking = threading.Lock()
        self._asked = 0  # batches checked, and prefetched if necessary
        self._unasked = 0  # checks skipped in a row
        self._patience = 0
        self._schedule: Schedule | None = None
        if plan.coded and self._epoch.arriving(start, start) is not None:
            self._schedule = Schedule(plan, ds.rows, decoded, self._arriving, self.count)

    def rows(self, first: int, stop: int) -> Ints:
        """Return the rows of batches [first, stop), concatenated."""
        size = self._share.size
        parts = []
        while first < stop:
            begin, end = self._bounds(first)
            upto = min(stop, end)
            # All batches are full except possibly the last.
            parts.append(self._chunk(begin)[(first - begin) * size : (upto - begin) * size])
            first = upto
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _bounds(self, number: int) -> tuple[int, int]:
        """Return the range of batches worked out together with this one: few at first."""
        if number < self._few:
            return 0, self._few
        begin = number - (number - self._few) % self._many
        return begin, begin + self._many

    def _chunk(self, begin: int) -> Ints:
        """Return the rows of batches from ``begin`` on, worked out by one thread for all.

        One thread at a time: two that work on the order take longer than one for both.
        """
        found = self._chunks.get(begin)
        if found is not None:
            return found
        with self._lock:
            found = self._chunks.get(begin)
            if found is None:
                for old in [one for one in self._chunks if one < begin - 2 * self._many]:
                    del self._chunks[old]
                found = self._worked_out(begin, min(self._bounds(begin)[1], self.count))
                self._chunks[begin] = found
            return found

    def _worked_out(self, first: int, stop: int) -> Ints:
        if self._share.world == 1 or (self._plan.lanes and len(self._share.ranks) == 1):
            begin, _, step = self._spans(first)[0]
            return self._plan.places(self._epoch.rows(begin, self._spans(stop - 1)[-1][1], step))
        spans = [one for number in range(first, stop) for one in self._spans(number)]
        parts = [self._epoch.rows(*span) for span in spans]
        return self._plan.places(np.concatenate(parts))

    def _spans(self, number: int) -> list[tuple[int, int, int]]:
        return self._plan.spans(self._share, number, self._start)

    def make(self, first: int, stop: int, timing: Timing) -> Iterator[Delivered]:
        """Make the batches [first, stop)."""
        began = time.perf_counter()
        rows = self.rows(first, stop)
        timing.order += time.perf_counter() - began
        # What maps draw depends on the position only.
        seeds = partial(self._seed_maps, first) if self.slow else None
        made = self._maker.make_several(rows, stop - first, self._share.size, seeds, timing)
        return made if self._schedule is None else self._record(made, first, self._schedule)

    def _seed_maps(self, first: int, number: int) -> SampleSeeds:
        return SampleSeeds.of(self._key, self._spans(first + number))

    def _record(
        self, batches: Iterator[Delivered], number: int, schedule: Schedule
    ) -> Iterator[Delivered]:
        """Tell the schedule which batches are made: it drops what they needed."""
        for made in batches:
            end = number + count_batches(made)
            while number < end:
                schedule.made(number)
                number += 1
            yield made

    def _arriving(self, number: int) -> Iterable[tuple[int, int, int]]:
        """Return the ranges of rows that batch ``number`` is the first to need, with windows."""
        start = self._share.consumed(number, self._start)
        stop = self._share.consumed(number + 1, self._start)
        for window, epoch in enumerate(self._windows):
            held = epoch.held(start) if number == 0 else None
            for first, end in (*(held or ()), *(epoch.arriving(start, stop) or ())):
                yield first, end, window

    def ready(self, stop: int) -> bool:
        """Is everything decoded that the batches before ``stop`` need?"""
        return self._schedule is None or self._schedule.ready(stop)

    def errand(self) -> Callable[[Timing], None] | None:
        """Return a decoding task, or ``None``."""
        return None if self._schedule is None else self._schedule.errand()

    def look_ahead(self, number: int, timing: Timing) -> None:
        """Prefetch the rows of coming batches that are not in memory."""
        # Another thread may be doing this. While rows are not in memory, wait for it: reading them
        # before they are prefetched takes far longer.
        if not self._asking.acquire(blocking=not self._patience):
            return
        try:
            began = time.perf_counter()
            if self._plan.shuffled:
                self._work_ahead(number)
                timing.order += time.perf_counter() - began
            if self._patience and self._unasked < self._patience:
                self._unasked += 1
                return
            began = time.perf_counter()
            self._ask(number, timing)
            timing.ahead += time.perf_counter() - began
        finally:
            self._asking.release()

    def _work_ahead(self, number: int) -> None:
        """Work out the rows after batch ``number``, before other threads have to wait for them."""
        begin, end = self._bounds(number)
        if begin < number < begin + (end - begin) // 4:
            return  # enough is worked out
        first = begin if number == begin else end
        if first < self.count:
            self._chunk(first)

    def _ask(self, number: int, timing: Timing) -> None:
        scattered = self._share.size if self._plan.shuffled else 0
        far = self._budget.readahead(self._maker.largest, scattered)
        end = min(number + far, self.count)
        first = max(self._asked, number - self.together)
        self._unasked = 0
        self._asked = max(end, self._asked)
        for at in range(first, end, self.together):
            if self.left:  # prefetching much from a busy disk may take a minute
                return
            rows = self._coming(at, min(at + self.together, end))
            if not len(rows):
                continue
            samples = select_rows(self._ds.rows, rows)
            asked = sum(readahead.ask(group, samples) for group in self._ds.groups)
            timing.asked += asked
            if not asked:
                # Rows that were in memory are checked less and less often.
                self._patience = min(self._patience + 1, _WARM)
                self._asked = min(self._asked, at + self.together)
                return
            self._patience = 0

    def _coming(self, first: int, end: int) -> Ints:
        """Return the rows that some batches are the first to need: their own, or whole blocks."""
        if not self._plan.order.by_part:
            return self.rows(first, end)
        ranges = [one for number in range(first, end) for one in self._arriving(number)]
        rows = [np.arange(*one[:2]) for one in ranges]
        return self._plan.places(np.concatenate(rows or [_NONE]))
