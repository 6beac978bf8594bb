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
from ndfeed.dataset.row_selection import Drawn, select_rows
from ndfeed.loading.batch_maker import BatchMaker
from ndfeed.loading.batch_rows import BatchRows, Chunk
from ndfeed.loading.budget import Budget
from ndfeed.loading.decode_schedule import Schedule
from ndfeed.loading.engine import Delivered, count_batches
from ndfeed.loading.map_rng import SampleSeeds, key_of, list_positions
from ndfeed.loading.plan import Plan
from ndfeed.loading.timing import Padding, Timing
from ndfeed.order.epoch import Arrival, Cut, Share, WalkEpoch
from ndfeed.order.permutation import Ints

_NONE = np.empty(0, np.int64)
_WARM = 16  # most checks in a row that are skipped once everything was in memory


class Pass(NamedTuple):
    """Which batches are wanted: those of one rank, from position ``start`` of an epoch on."""

    share: Share
    seed: int
    epoch: int
    start: int


class _PassOrder:
    """Which rows the batches of a pass have.

    Not a part of ``EpochBatches``, whose ``BatchRows`` and ``Schedule`` ask it: in a reference
    cycle, the rows of passes that are over would stay in memory until garbage is collected.
    """

    def __init__(self, wanted: Pass, ds: Dataset, plan: Plan) -> None:
        self._share, seed, epoch, self._start = wanted
        self._plan = plan
        self._rows = ds.rows
        self.cut = plan.cut(self._share, seed, epoch)
        self._epoch, self.windows = plan.begin(self._share.n, seed, epoch)
        self.key = key_of(seed, epoch)

    def compute(self, first: int, stop: int) -> Chunk:
        """Return the rows of the batches [first, stop)."""
        if not self.cut.even:
            return self._compute_uneven(first, stop)
        rows = self._order_rows(first, stop)
        if isinstance(self._rows, Drawn):
            spans = [one for number in range(first, stop) for one in self.spans(number)]
            rows = self._rows.draw(rows, self.key, list_positions(spans))
        return Chunk(rows, self._share.size, None)

    def _compute_uneven(self, first: int, stop: int) -> Chunk:
        each = [self.spans(number) for number in range(first, stop)]
        spans = [span for some in each for span in some]
        positions = list_positions(spans)
        if isinstance(self._epoch, WalkEpoch):
            rows = self._epoch.at(positions)
        else:
            rows = np.concatenate([self._epoch.rows(*span) for span in spans])
        rows = self._plan.places(rows)
        if isinstance(self._rows, Drawn):
            rows = self._rows.draw(rows, self.key, positions)
        ends = np.cumsum([sum(len(range(*span)) for span in some) for some in each])
        return Chunk(rows, self._share.size, ends)

    def _order_rows(self, first: int, stop: int) -> Ints:
        whole = self._share.world == 1 or (self._plan.lanes and len(self._share.ranks) == 1)
        if whole:
            begin, _, step = self.spans(first)[0]
            return self._plan.places(self._epoch.rows(begin, self.spans(stop - 1)[-1][1], step))
        spans = [one for number in range(first, stop) for one in self.spans(number)]
        parts = [self._epoch.rows(*span) for span in spans]
        return self._plan.places(np.concatenate(parts))

    def spans(self, number: int) -> list[tuple[int, int, int]]:
        """Return the positions of a batch: from, to, step."""
        return self._plan.spans(self.cut, number, self._start)

    def list_arrivals(self, number: int) -> Iterable[tuple[Arrival, int]]:
        """Return the ranges of rows that batch ``number`` is the first to need, with windows."""
        start = self.cut.consumed(number, self._start)
        stop = self.cut.consumed(number + 1, self._start)
        for at, window in enumerate(self.windows):
            held = window.held(start) if number == 0 else ()
            for arrival in (*held, *window.arriving(start, stop)):
                yield arrival, at


class EpochBatches:
    """The batches of one pass, which a batch maker makes. Implements ``BatchSource``."""

    def __init__(
        self,
        wanted: Pass,
        ds: Dataset,
        plan: Plan,
        budget: Budget,
        decoded: Decoded,
        maker: BatchMaker,
    ) -> None:
        order = self._order = _PassOrder(wanted, ds, plan)
        share, self._cut, self._start = wanted.share, order.cut, wanted.start
        cut = order.cut
        self.count = cut.batches(wanted.start)
        self.size = share.size if cut.even else _average_size(cut, share)
        # Batches of different sizes are made one by one.
        self.together = together = budget.group if cut.even else 1
        self.slow = bool(ds.steps)
        self.abandoned = False  # nobody wants the remaining batches
        self.padding = Padding()
        self._share = share
        self._ds = ds
        self._plan = plan
        self._budget = budget
        self._maker = maker
        self._rows = BatchRows(order.compute, maker.foresee, self.size, together, self.count)
        self._prefetching = threading.Lock()
        self._checked = 0  # batches checked, and prefetched if necessary
        self._skipped_checks = 0  # checks skipped in a row
        self._patience = 0
        self._schedule: Schedule | None = None
        if plan.coded and order.windows:
            open_parts = [window.open_parts for window in order.windows]
            self._schedule = Schedule(
                plan, ds.rows, decoded, order.list_arrivals, open_parts, self.count
            )

    def make(self, first: int, stop: int, timing: Timing) -> Iterator[Delivered]:
        """Make the batches [first, stop)."""
        began = time.perf_counter()
        rows = self._rows.take(first, stop)
        timing.order += time.perf_counter() - began
        # What is drawn depends on the position only.
        seeds = partial(self._seed, first) if self._maker.draws else None
        size = self._share.size if self._cut.even else max(len(rows), 1)
        began = time.perf_counter()
        made = self._maker.make_several(rows, stop - first, size, seeds, timing)
        self._rows.note_copy(time.perf_counter() - began)
        if self._maker.pads:
            made = self._note_padding(made, first, timing)
        return made if self._schedule is None else self._record(made, first, self._schedule)

    def _note_padding(
        self, batches: Iterator[Delivered], number: int, timing: Timing
    ) -> Iterator[Delivered]:
        """Note how much of each batch is padding."""
        tokens, padding = timing.tokens, timing.padding
        for made in batches:
            self.padding.note(number, timing.tokens - tokens, timing.padding - padding)
            tokens, padding = timing.tokens, timing.padding
            number += count_batches(made)
            yield made

    def _seed(self, first: int, number: int) -> SampleSeeds:
        return SampleSeeds.of(self._order.key, self._order.spans(first + number))

    def _record(
        self, batches: Iterator[Delivered], number: int, schedule: Schedule
    ) -> Iterator[Delivered]:
        """Tell the schedule which batches are made: it drops what they needed."""
        for made in batches:
            end = number + count_batches(made)
            while number < end:
                schedule.mark_made(number)
                number += 1
            yield made

    def ready(self, stop: int) -> bool:
        """Is everything decoded that the batches before ``stop`` need?"""
        return self._schedule is None or self._schedule.ready(stop)

    def next_task(self) -> Callable[[Timing], None] | None:
        """Return a decoding task, or ``None``."""
        return None if self._schedule is None else self._schedule.next_task()

    def look_ahead(self, number: int, timing: Timing) -> None:
        """Prefetch the rows of coming batches that are not in memory."""
        # Another thread may be doing this. While rows are not in memory, wait for it: reading them
        # before they are prefetched takes far longer.
        if not self._prefetching.acquire(blocking=not self._patience):
            return
        try:
            began = time.perf_counter()
            if self._plan.shuffled:
                self._rows.compute_ahead(number)
                timing.order += time.perf_counter() - began
            if self._patience and self._skipped_checks < self._patience:
                self._skipped_checks += 1
                return
            began = time.perf_counter()
            self._prefetch(number, timing)
            timing.ahead += time.perf_counter() - began
        finally:
            self._prefetching.release()

    def _prefetch(self, number: int, timing: Timing) -> None:
        scattered = self.size if self._plan.shuffled else 0
        far = self._budget.readahead(self._maker.largest, scattered)
        end = min(number + far, self.count)
        first = max(self._checked, number - self.together)
        self._skipped_checks = 0
        self._checked = max(end, self._checked)
        for at in range(first, end, self.together):
            if self.abandoned:  # prefetching much from a busy disk may take a minute
                return
            rows = self._rows_to_prefetch(at, min(at + self.together, end))
            if not len(rows):
                continue
            samples = select_rows(self._ds.rows, rows)
            nbytes = sum(readahead.ask(group, samples) for group in self._ds.groups)
            timing.prefetched += nbytes
            if not nbytes:
                # Rows that were in memory are checked less and less often.
                self._patience = min(self._patience + 1, _WARM)
                self._checked = min(self._checked, at + self.together)
                return
            self._patience = 0

    def _rows_to_prefetch(self, first: int, end: int) -> Ints:
        """Return the rows that some batches are the first to need: their own, or whole blocks."""
        if not self._plan.order.traits.by_part:
            return self._rows.look_at(first, end)
        ranges = [one for number in range(first, end) for one in self._order.list_arrivals(number)]
        rows = [np.arange(*arrival[:2]) for arrival, _ in ranges]
        return self._plan.places(np.concatenate(rows or [_NONE]))


def _average_size(cut: Cut, share: Share) -> int:
    """Return how many samples a batch has on average, at least one."""
    return max(cut.n * len(share.ranks) // (max(cut.batches(), 1) * share.world), 1)
