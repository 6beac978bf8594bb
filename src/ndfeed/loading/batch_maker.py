"""Makes batches: reads rows into pooled memory, runs the maps, collates and delivers.

Small batches are read several at a time and split again. Where an adapter takes them as a group
they are not split, and those that maps made are joined.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ndfeed.dataset.column import Field
from ndfeed.dataset.dataset import Dataset
from ndfeed.dataset.map_fields import learn_fields, may_differ
from ndfeed.dataset.map_steps import Batch, SampleFailed, Step, try_steps
from ndfeed.errors import CastError, Error, ResourceError, WorkerError
from ndfeed.loading.budget import Budget
from ndfeed.loading.buffer_pool import Pool
from ndfeed.loading.collate import Collator, join_batches, nbytes
from ndfeed.loading.engine import BatchGroup, Delivered
from ndfeed.loading.map_rng import SampleSeeds, key_of
from ndfeed.loading.options import Options, stored_fields
from ndfeed.loading.timing import Timing
from ndfeed.loading.worker_process import Died
from ndfeed.order.permutation import Ints

_NAMED = 8  # rows that an error names
_LISTED = 1000  # skipped samples whose row and error are kept


class Source(Protocol):
    """Where the stored fields of rows come from."""

    def read(self, rows: Ints) -> Batch:
        """Return the fields of ``rows``; those read straight into their ragged form as ``Room``."""
        ...


class Transform(Protocol):
    """Runs the steps of a dataset on a batch, in this process or in another."""

    def __call__(self, batch: Batch, steps: Sequence[Step], seeds: SampleSeeds, /) -> Batch:
        """Return what the steps make of the batch.

        Raises ``SampleFailed`` where a function of single samples fails.
        """
        ...


class Finisher(Protocol):
    """What an adapter does with a batch in the thread that made it. Implemented by ``Adapter``."""

    joint: bool

    def finish(self, made: Batch) -> Delivered:
        """Convert a batch, or a group of them, for a framework."""
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

    ``largest`` is the size of the largest batch so far, including the input of a map, and
    ``skipped`` the samples that ``on_error="skip"`` left out.
    """

    def __init__(
        self,
        ds: Dataset,
        options: Options,
        budget: Budget,
        pool: Pool,
        source: Source,
        finisher: Finisher,
        transform: Transform = try_steps,
    ) -> None:
        self.largest = budget.batch_bytes
        self.skipped = Skipped()
        self._ds, self._steps = ds, ds.steps
        self._budget = budget
        self._pool = pool
        self._source = source
        self._transform = transform
        self._finish = finisher.finish
        self._joint = finisher.joint
        self._skips = options.on_error == "skip"
        self._collator = Collator(ds, options, pool)
        self._lists = options.ragged == "list"
        self._differ = may_differ(ds.groups, ds.steps)
        self._learning = threading.Lock()
        self._learned: Mapping[str, Field] | None = None

    def make_several(
        self,
        rows: Ints,
        count: int,
        size: int,
        seeds: Callable[[int], SampleSeeds] | None,
        timing: Timing,
    ) -> Iterator[Delivered]:
        """Make ``count`` batches of ``size`` rows each, the last perhaps of fewer.

        ``seeds(k)`` seeds the maps for batch ``k`` of these; ``None`` if there are no maps.
        """
        # If that fails, each is read by itself: the error belongs to one of them.
        together = self._try_reading(rows, timing) if count > 1 else None
        each = self._make_each(rows, range(0, count * size, size), seeds, timing, together)
        if together is None or not self._joint:
            return each
        if self._steps:
            return join_batches(each, self._budget.group_bytes, self._pool)
        try:
            group = BatchGroup(self._deliver(together, rows), count)
        except Error:  # an error in one of them: those before it come first
            return each
        timing.batches += count
        timing.rows += len(rows)
        timing.nbytes += nbytes(together)
        return iter((group,))

    def _try_reading(self, rows: Ints, timing: Timing) -> Batch | None:
        try:
            with timing.reading():
                return self._source.read(rows)
        except Error:
            return None

    def _make_each(
        self,
        rows: Ints,
        starts: range,
        seeds: Callable[[int], SampleSeeds] | None,
        timing: Timing,
        together: Batch | None,
    ) -> Iterator[Delivered]:
        """Make the batches that begin at ``starts``, out of what was read if it was."""
        size = starts.step
        for number, at in enumerate(starts):
            batch = None
            if together is not None:
                batch = {name: values[at : at + size] for name, values in together.items()}
            own = None if seeds is None else seeds(number)
            yield self.make(rows[at : at + size], own, timing, batch)

    def make(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Delivered:
        """Make the batch of ``rows``; ``seeds`` seeds the maps, if there are any.

        ``batch`` holds their stored fields if those were read already.
        """
        if self._skips and (batch is None or self._steps):
            rows, batch = self._make_without_bad(rows, seeds, timing)
        else:
            batch = self._make(rows, seeds, timing, batch)
        size = nbytes(batch)
        timing.batches += 1
        timing.rows += len(rows)
        timing.nbytes += size
        held = self._budget.count(size)
        if held > self.largest:
            self.largest = held
        return self._deliver(batch, rows)

    def _deliver(self, batch: Batch, rows: Ints) -> Delivered:
        """Return the batch as the consumer gets it."""
        try:
            return self._finish(batch)
        except CastError as error:
            raise error.in_row(int(rows[error.row])) from None

    def _make(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing, batch: Batch | None = None
    ) -> Batch:
        """Read a batch, run the maps and collate its ragged fields."""
        if not len(rows):
            return self._collator.make_empty(self._known_fields())
        if batch is None:
            batch = self._read(rows, timing)
        if not self._steps and self._lists:
            return batch
        try:
            return self._transform_batch(batch, rows, seeds, timing)
        except Died:
            pass
        batch = self._read(rows, timing)  # again: a map may have modified it
        try:
            return self._transform_batch(batch, rows, seeds, timing)
        except Died as died:
            raise WorkerError(
                f"{died} while running map() on {_format_rows(rows)}, as did the one before it",
                "check whether the function crashes or runs out of memory",
            ) from None

    def _read(self, rows: Ints, timing: Timing) -> Batch:
        with timing.reading():
            return self._source.read(rows)

    def _transform_batch(
        self, batch: Batch, rows: Ints, seeds: SampleSeeds | None, timing: Timing
    ) -> Batch:
        """Run the maps on a batch, and collate it."""
        began = time.perf_counter()
        if seeds is not None:
            batch = self._run_maps(batch, rows, seeds)
        if not self._steps:
            batch = self._collator.collate_stored(batch)
        elif self._differ:
            batch = self._collator.collate_mapped(batch, self._learn_fields())
        elif not self._lists:
            batch = self._collator.collate_mapped(batch, {})
        timing.transform += time.perf_counter() - began
        return batch

    def _run_maps(self, batch: Batch, rows: Ints, seeds: SampleSeeds) -> Batch:
        """Run the maps on a batch; errors say which samples they were called with.

        The error of a single sample is raised as it is, or as ``SampleFailed`` to be skipped.
        """
        try:
            return self._transform(batch, self._steps, seeds)
        except Died:
            raise
        except SampleFailed as failed:
            own = failed.error
            own.add_note(f"in map, at row {int(rows[failed.at])}")
            if self._skips:
                raise
        except Exception as error:
            error.add_note(f"in map, in the batch of {_format_rows(rows)}")
            raise
        try:
            raise own  # not in the handler above, which would become its context
        finally:
            del own  # or it would refer to itself through this frame

    def _known_fields(self) -> Mapping[str, Field]:
        """Return the fields of a batch; the stored ones where a map cannot be tried on a sample."""
        try:
            return self._ds.fields
        except Exception:  # noqa: BLE001 - a map may raise anything
            return self._stored_fields()

    def _stored_fields(self) -> Mapping[str, Field]:
        return {field.name: field for field in stored_fields(self._ds)}

    def _learn_fields(self) -> Mapping[str, Field]:
        """Return the fields that the maps make, learned once."""
        with self._learning:
            if self._learned is None and self._transform is try_steps:
                self._learned = self._known_fields()
            elif self._learned is None:
                try:
                    self._learned = learn_fields(self._ds, self._try_maps)
                except Exception:  # noqa: BLE001 - a map may raise anything, or end its process
                    self._learned = self._stored_fields()
            return self._learned

    def _try_maps(self, rows: Ints) -> Batch:
        """Run the maps on some samples where they normally run: a map may crash its process."""
        seeds = SampleSeeds(key_of(0, 0), 0, np.arange(len(rows)))
        return self._transform(self._source.read(rows), self._steps, seeds)

    def _make_without_bad(
        self, rows: Ints, seeds: SampleSeeds | None, timing: Timing
    ) -> tuple[Ints, Batch]:
        """Make the batch without the samples that cannot be read or that make a map fail.

        Returns the rows that are left, too.
        """
        kept = np.arange(len(rows))
        while len(kept):
            try:
                left = None if seeds is None else seeds.only(kept)
                return rows[kept], self._make(rows[kept], left, timing)
            except SampleFailed as failed:
                self.skipped.add(int(rows[kept[failed.at]]), failed.error)
                kept = np.delete(kept, failed.at)
            except (WorkerError, ResourceError):
                raise
            except Error:
                good = self._find_readable(rows[kept])
                if good.all():
                    raise  # the samples can be read now, or no sample caused it
                kept = kept[good]
        return rows[:0], self._collator.make_empty(self._known_fields())

    def _find_readable(self, rows: Ints) -> NDArray[np.bool_]:
        """Find which of ``rows`` can be read, by bisection."""
        good = np.ones(len(rows), bool)
        todo = [(0, len(rows))]
        while todo:
            first, end = todo.pop()
            try:
                if first < end:
                    self._source.read(rows[first:end])
            except ResourceError:
                raise  # the sample is not the cause
            except Error as error:
                if end - first == 1:
                    good[first] = False
                    self.skipped.add(int(rows[first]), error)
                else:
                    middle = (first + end) // 2
                    todo += [(middle, end), (first, middle)]
        return good


def _format_rows(rows: Ints) -> str:
    """Format the first few rows as text."""
    some = ", ".join(map(str, rows[:_NAMED].tolist()))
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f"rows {some}{more}"
