"""Makes batches: has them built, in this process or another, skips bad samples, and delivers.

Small batches are read several at a time and split again. Where an adapter takes them as a group
they are not split, and those that maps made are joined.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.map_steps import Batch, SampleFailed
from ndfeed.errors import CastError, Error, ResourceError, WorkerError
from ndfeed.loading.batch_builder import BatchBuilder, Builder
from ndfeed.loading.budget import Budget
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.collate import join_batches, nbytes
from ndfeed.loading.engine import BatchGroup, Delivered
from ndfeed.loading.flips import DRAWN
from ndfeed.loading.map_rng import SampleSeeds
from ndfeed.loading.options import Options
from ndfeed.loading.timing import Timing
from ndfeed.order.permutation import Ints

_LISTED = 1000  # skipped samples whose row and error are kept


class Finisher(Protocol):
    """What an adapter does with a batch in the thread that made it. Implemented by ``Adapter``."""

    joint: bool
    draws: bool

    def deliver(self, made: Batch, rows: Ints) -> Delivered:
        """Convert the batch of ``rows``, or a group of them, for a framework."""
        ...


class Skipped:
    """Samples that were skipped: how often, and the first of them with their errors."""

    def __init__(self) -> None:
        self.count = 0
        self.listed: dict[int, str] = {}  # row to its error

    def add(self, row: int, error: BaseException) -> None:
        """Count a sample, perhaps the same one in another epoch."""
        self.count += 1
        if len(self.listed) < _LISTED:
            self.listed.setdefault(row, f"{error}")


def list_skipped(some: Iterable[Skipped]) -> tuple[tuple[int, str], ...]:
    """List the first skipped samples, each once."""
    found: dict[int, str] = {}
    for one in some:
        found |= one.listed
    return tuple(itertools.islice(found.items(), _LISTED))


class BatchMaker:
    """Makes batches of a dataset. Thread-safe.

    ``builder`` builds them, and ``local`` does so in this process, for what is rare: samples that
    cannot be read are looked for here.

    ``largest`` is the size of the largest batch so far, including the input of a map, and
    ``skipped`` the samples that ``on_error="skip"`` left out. ``pads`` says whether batches
    may have padding. ``foresee`` is told which rows will be read, in slices of what it is given.
    ``draws`` says that something is drawn for each sample, by maps or for the adapter.
    """

    def __init__(
        self,
        options: Options,
        budget: Budget,
        pool: Pool,
        local: BatchBuilder,
        builder: Builder,
        finisher: Finisher,
    ) -> None:
        self.largest = budget.batch_bytes
        self.skipped = Skipped()
        self._budget = budget
        self._pool = pool
        self._local = local
        self._builder = builder
        self._convert = finisher.deliver
        self._joint = finisher.joint
        self._maps = local.maps
        self._adds_drawn = finisher.draws
        self.draws = self._maps or self._adds_drawn
        self._skips = options.on_error == "skip"
        self.pads = local.pads
        self.foresee = local.foresee

    def make_several(
        self,
        rows: Ints,
        count: int,
        size: int,
        seeds: Callable[[int], SampleSeeds] | None,
        timing: Timing,
    ) -> Iterator[Delivered]:
        """Make ``count`` batches of ``size`` rows each, the last perhaps of fewer.

        ``seeds(k)`` is what batch ``k`` of these draws from; ``None`` if nothing draws.
        """
        starts = range(0, count * size, size)
        each = None if seeds is None else [seeds(k) for k in range(count)]
        if self._maps and each is not None:
            mapped = self._make_mapped(rows, starts, each, timing)
            if self._joint and count > 1:
                return join_batches(mapped, self._budget.group_bytes, self._pool)
            return mapped
        # If that fails, each is read by itself: the error belongs to one of them.
        together = self._try_reading(rows, timing) if count > 1 else None
        if together is not None and self._joint:
            try:
                joined = None if each is None else SampleSeeds.join(each)
                group = BatchGroup(self._deliver(together, rows, joined), count, size)
            except Error:  # an error in one of them: those before it come first
                together = None
            else:
                timing.batches += count
                timing.rows += len(rows)
                timing.nbytes += nbytes(together)
                return iter((group,))
        return self._make_each(rows, starts, each, timing, together)

    def _try_reading(self, rows: Ints, timing: Timing) -> Batch | None:
        try:
            return self._builder.read(rows, timing)
        except Error:
            return None

    def _make_each(
        self,
        rows: Ints,
        starts: range,
        seeds: Sequence[SampleSeeds] | None,
        timing: Timing,
        together: Batch | None,
    ) -> Iterator[Delivered]:
        """Make the batches that begin at ``starts``, out of what was read if it was."""
        for number, at in enumerate(starts):
            batch, stop = None, at + starts.step
            if together is not None:
                batch = {name: values[at:stop] for name, values in together.items()}
            yield self.make(rows[at:stop], None if seeds is None else seeds[number], timing, batch)

    def _make_mapped(
        self, rows: Ints, starts: range, seeds: Sequence[SampleSeeds], timing: Timing
    ) -> Iterator[Delivered]:
        """Make the batches that begin at ``starts`` with maps, at once where that is faster."""
        each = [rows[at : at + starts.step] for at in starts]
        built: Sequence[Batch] | None = None
        together: Batch | None = None
        if len(each) > 1 and not self._skips:
            with contextlib.suppress(Exception):  # raised again by the batch it belongs to
                built = self._builder.build_several(each, seeds, timing)
                together = self._builder.read(rows, timing) if built is None else None
        if built is None:
            return self._make_each(rows, starts, seeds, timing, together)
        made = zip(built, each, seeds, strict=True)
        return (self._count(one, some, own, timing) for one, some, own in made)

    def make(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Delivered:
        """Make the batch of ``rows``, which draws from ``seeds``.

        ``batch`` holds their stored fields if those were read already.
        """
        if self._skips and (batch is None or self._maps):
            kept, batch = self._make_without_bad(rows, seeds, timing)
            rows, seeds = rows[kept], None if seeds is None else seeds.only(kept)
        else:
            batch = self._build(rows, seeds if self._maps else None, timing, batch)
        return self._count(batch, rows, seeds, timing)

    def _build(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None
    ) -> Batch:
        """Have a batch built; the error of a function of single samples is raised as it is."""
        if not len(rows):
            return self._local.make_empty()
        try:
            return self._builder.build(rows, seeds, timing, batch)
        except SampleFailed as failed:
            own = failed.error
        try:
            raise own  # not in the handler above, which would become its context
        finally:
            del own  # or it would refer to itself through this frame

    def _count(
        self, batch: Batch, rows: Ints, seeds: SampleSeeds | None, timing: Timing
    ) -> Delivered:
        """Count a batch that was built, and return it as the consumer gets it."""
        size = nbytes(batch)
        timing.batches += 1
        timing.rows += len(rows)
        timing.nbytes += size
        if self.pads:
            tokens, padding = self._local.count_padding(batch)
            timing.tokens += tokens
            timing.padding += padding
        held = self._budget.count(size)
        if held > self.largest:
            self.largest = held
        return self._deliver(batch, rows, seeds)

    def _deliver(self, batch: Batch, rows: Ints, seeds: SampleSeeds | None) -> Delivered:
        """Return the batch as the consumer gets it."""
        if self._adds_drawn and seeds is not None:
            batch = {**batch, DRAWN: seeds.draw_bytes()}
        try:
            return self._convert(batch, rows)
        except CastError as error:
            raise error.in_row(self._local.number(rows[error.row])) from None

    def _make_without_bad(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing
    ) -> tuple[Ints, Batch]:
        """Make the batch without the samples that cannot be read or that make a map fail.

        Returns which of ``rows`` are left, too.
        """
        kept = np.arange(len(rows))
        while len(kept):
            try:
                left = seeds.only(kept) if seeds is not None and self._maps else None
                return kept, self._builder.build(rows[kept], left, timing)
            except SampleFailed as failed:
                self.skipped.add(self._local.number(rows[kept[failed.at]]), failed.error)
                kept = np.delete(kept, failed.at)
            except (WorkerError, ResourceError):
                raise
            except Error:
                good = self._find_readable(rows[kept])
                if good.all():
                    raise  # the samples can be read now, or no sample caused it
                kept = kept[good]
        return kept, self._local.make_empty()

    def _find_readable(self, rows: Ints) -> NDArray[np.bool_]:
        """Find which of ``rows`` can be read, by bisection."""
        good = np.ones(len(rows), bool)
        todo = [(0, len(rows))]
        while todo:
            first, end = todo.pop()
            try:
                if first < end:
                    self._local.read(rows[first:end], Timing())
            except ResourceError:
                raise  # the sample is not the cause
            except Error as error:
                if end - first == 1:
                    good[first] = False
                    self.skipped.add(self._local.number(rows[first]), error)
                else:
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]
        return good
